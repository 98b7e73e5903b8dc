"""Sketches of bounded size for compiled loops: SpaceSaving, count-min and HyperLogLog, on well-mixed keys."""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import hashtable, kernel
from skewless.kernels.hash import mix64
from skewless.kernels.hashtable import Table
from skewless.kernels.lowest import Floor, floor, lowered, lowest

_0, _1 = np.uint64(0), np.uint64(1)


class SpaceSaving(NamedTuple):
    """The heaviest keys by the counters of Metwally et al. (ICDT 2005): a new key takes over the least counter.

    count - error <= true frequency <= count, and error <= seen / counters.
    """

    keys: NDArray[np.uint64]
    counts: NDArray[np.int64]
    errors: NDArray[np.int64]
    seen: NDArray[np.int64]
    least: Floor
    where: Table  # key -> counter + 1


def space_saving(counters: int) -> SpaceSaving:
    """Returns an empty sketch with this many counters."""
    return SpaceSaving(
        keys=np.zeros(counters, np.uint64),
        counts=np.zeros(counters, np.int64),
        errors=np.zeros(counters, np.int64),
        seen=np.zeros(1, np.int64),
        least=floor(),
        where=hashtable.table(2 * counters),  # at most a quarter full: else half of all probes take a second step
    )


@kernel
def tally(s: SpaceSaving, key: np.uint64) -> int:
    """Counts one occurrence of a key; returns the number of its counter."""
    s.seen[0] += 1
    slot = hashtable.find(s.where, key)
    held = s.where.slots[slot + _1]
    if held != _0:
        counter = int(np.int64(held - _1))  # numba converts a mix of uint64 and int64 to float64
        s.counts[counter] += 1
        return counter
    counter = lowest(s.counts, s.least)
    if s.counts[counter] > 0:
        hashtable.remove(s.where, hashtable.find(s.where, s.keys[counter]))
        slot = hashtable.find(s.where, key)
    s.keys[counter] = key
    s.errors[counter] = s.counts[counter]
    s.counts[counter] += 1
    hashtable.put(s.where, slot, key, np.uint64(counter) + _1)
    return counter


@kernel
def sure(s: SpaceSaving, counter: int) -> int:
    """Returns a lower bound on how often the key of a counter occurred."""
    return int(s.counts[counter] - s.errors[counter])


@kernel
def halve(s: SpaceSaving) -> None:
    """Halves all counts, so that older occurrences weigh less and less."""
    s.seen[0] >>= 1
    for counter in range(s.counts.size):
        s.errors[counter] >>= 1
        # A counter in use never falls to 0, which means "free".
        if s.counts[counter] > 1:
            s.counts[counter] >>= 1
    lowered(s.least)


class CountMin(NamedTuple):
    """Estimated frequencies of all keys in a fixed grid (Cormode and Muthukrishnan); they are never too low."""

    cells: NDArray[np.int64]  # [depth, width], width a power of two


def count_min(depth: int, width: int) -> CountMin:
    """Returns an empty sketch; its width is rounded up to a power of two."""
    return CountMin(np.zeros((depth, 1 << max(0, (width - 1).bit_length())), np.int64))


@kernel
def count(s: CountMin, key: np.uint64) -> int:
    """Counts one occurrence of a key; returns its estimated frequency so far."""
    least = np.int64(2**62)
    x = key
    for row in range(s.cells.shape[0]):
        x = mix64(x + _1)
        column = x & np.uint64(s.cells.shape[1] - 1)
        s.cells[row, column] += 1
        least = min(least, s.cells[row, column])
    return int(least)


@kernel
def frequency(s: CountMin, key: np.uint64) -> int:
    """Returns the estimated frequency of a key."""
    least = np.int64(2**62)
    x = key
    for row in range(s.cells.shape[0]):
        x = mix64(x + _1)
        least = min(least, s.cells[row, x & np.uint64(s.cells.shape[1] - 1)])
    return int(least)


REGISTERS = 4096  # as in the Holistic paper, section 5.1: a standard error of 1.04 / sqrt(4096) = 1.6 %
_INDEX_BITS = np.uint64(12)
_RAW = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS * REGISTERS
# Linear counting for small cardinalities, by the number of registers that are still 0.
_LINEAR: NDArray[np.float64] = np.array(
    [np.inf] + [REGISTERS * log(REGISTERS / zeros) for zeros in range(1, REGISTERS + 1)]
)
_HALVES: NDArray[np.float64] = np.power(0.5, np.arange(64), dtype=np.float64)


class HyperLogLog(NamedTuple):
    """One sketch of distinct keys per worker (Flajolet et al. 2007), with sums that make an estimate O(1)."""

    registers: NDArray[np.uint8]  # [workers, REGISTERS]
    zeros: NDArray[np.int64]  # registers at 0
    harmonic: NDArray[np.float64]  # sum of 2 ** -register


def hyperloglog(n_workers: int) -> HyperLogLog:
    """Returns an empty sketch for each worker."""
    return HyperLogLog(
        registers=np.zeros((n_workers, REGISTERS), np.uint8),
        zeros=np.full(n_workers, REGISTERS, np.int64),
        harmonic=np.full(n_workers, float(REGISTERS)),
    )


@kernel
def hll_cell(key: np.uint64) -> tuple[np.uint64, np.uint8]:
    """Returns the register of a key and its value there: in the remaining bits, the number of the first 1, from 1."""
    # Workers are chosen by the upper bits of the key: without another mix a worker would use few registers.
    x = mix64(key)
    register, rest, rank = x >> (np.uint64(64) - _INDEX_BITS), x << _INDEX_BITS, 1
    while rest < np.uint64(1 << 63) and rank < 53:
        rest <<= _1
        rank += 1
    return register, np.uint8(rank)


@kernel
def estimate(zeros: int, harmonic: float) -> float:
    """Returns the estimated number of distinct keys, from the sums of a sketch."""
    raw = _RAW / harmonic
    if raw <= 2.5 * REGISTERS and zeros > 0:
        return float(_LINEAR[zeros])
    return raw


@kernel
def contains(s: HyperLogLog, worker: int | np.uint64, register: np.uint64, rank: np.uint8) -> bool:
    """Returns whether a worker probably has a key: adding it would not change the estimate (Holistic 3.2.2)."""
    old = s.registers[worker, register]
    if rank <= old:
        return True
    zeros = s.zeros[worker] - (1 if old == 0 else 0)
    harmonic = s.harmonic[worker] + (_HALVES[rank] - _HALVES[old])
    return estimate(zeros, harmonic) == estimate(s.zeros[worker], s.harmonic[worker])


@kernel
def update(s: HyperLogLog, worker: int | np.uint64, register: np.uint64, rank: np.uint8) -> bool:
    """Adds a key to a worker; returns whether anything changed."""
    old = s.registers[worker, register]
    if rank <= old:
        return False
    s.registers[worker, register] = rank
    if old == 0:
        s.zeros[worker] -= 1
    s.harmonic[worker] += _HALVES[rank] - _HALVES[old]
    return True


@kernel
def empty(s: HyperLogLog) -> None:
    """Forgets all keys."""
    s.registers[:] = 0
    s.zeros[:] = REGISTERS
    s.harmonic[:] = float(REGISTERS)
