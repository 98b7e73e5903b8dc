"""Hashes a key to its candidate workers: one 64-bit mix, then double hashing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import kernel

U64 = np.uint64
_30, _27, _31, _32 = U64(30), U64(27), U64(31), U64(32)
_MIX1, _MIX2, _GOLDEN = U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB), U64(0x9E3779B97F4A7C15)
_ONE = U64(1)


class Hasher(NamedTuple):
    """Parameters of hashing: a salt, which depends on the seed, and the number of workers."""

    salt: NDArray[np.uint64]
    n_workers: NDArray[np.uint64]


def hasher(n_workers: int, seed: int) -> Hasher:
    """Returns the hash function of a seed."""
    salt = mix64(U64((seed * int(_GOLDEN) + 1) % 2**64))
    return Hasher(salt=np.array([salt], U64), n_workers=np.array([n_workers], U64))


@kernel
def mix64(x: np.uint64) -> np.uint64:
    """Mixes 64 bits one-to-one: every input bit flips every output bit with probability near 1/2 (SplitMix64)."""
    x = (x ^ (x >> _30)) * _MIX1
    x = (x ^ (x >> _27)) * _MIX2
    return x ^ (x >> _31)


_UNMIX1, _UNMIX2 = U64(pow(int(_MIX1), -1, 2**64)), U64(pow(int(_MIX2), -1, 2**64))
_54, _60, _62 = U64(54), U64(60), U64(62)


def unmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Inverts `mix64`."""
    x = (x ^ (x >> _31) ^ (x >> _62)) * _UNMIX2
    x = (x ^ (x >> _27) ^ (x >> _54)) * _UNMIX1
    return np.asarray(x ^ (x >> _30) ^ (x >> _60))


@kernel
def below(x: np.uint64, n: np.uint64) -> np.uint64:
    """Maps the upper half of a mixed x evenly to [0, n), n < 2**32, by multiply-shift: no division, no modulo bias."""
    return ((x >> _32) * n) >> _32


# The candidates of a key are c0, c0 + step, c0 + 2 step, ... modulo the number of workers n, where c0 is any worker and
# step any number from 1 to n - 1. Where step and n share a factor, the walk returns to its start before it has visited
# all workers; it then continues one worker on. So the candidates are distinct for any number of choices up to n,
# the first two are any two workers with equal probability, and no state is needed. Double hashing balances
# as well as independent hash functions (Mitzenmacher, "Balanced allocations and double hashing", SPAA 2014).
# Candidate 0 is plain hashing.


@kernel
def mixed(h: Hasher, key: np.uint64) -> np.uint64:
    """Mixes a key once: the upper half gives its first candidate, the lower half its step."""
    return mix64(key ^ h.salt[0])


@kernel
def first(h: Hasher, x: np.uint64) -> np.uint64:
    """Returns candidate 0 of a mixed key."""
    return below(x, h.n_workers[0])


@kernel
def stride(h: Hasher, x: np.uint64) -> np.uint64:
    """Returns the step from one candidate of a mixed key to the next."""
    return _ONE + below(x << _32, h.n_workers[0] - _ONE)


@kernel
def following(h: Hasher, candidate: np.uint64, start: np.uint64, step: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Returns the next candidate, and where its round started (at first: candidate 0)."""
    # x mod n for x < 2n is min(x, x - n) in wrapping arithmetic, which saves an unpredictable branch.
    candidate = min(candidate + step, candidate + step - h.n_workers[0])
    if candidate == start:
        start = min(start + _ONE, start + _ONE - h.n_workers[0])
        candidate = start
    return candidate, start


def candidates(h: Hasher, keys: NDArray[np.uint64], choices: int) -> NDArray[np.int32]:
    """Returns the first `choices` candidates of each key, at most all workers."""
    out = np.empty((keys.size, min(choices, int(h.n_workers[0]))), np.int32)
    _candidates(h, keys, out)
    return out


@kernel
def _candidates(h: Hasher, keys: NDArray[np.uint64], out: NDArray[np.int32]) -> None:
    for i in range(keys.size):
        x = mixed(h, keys[i])
        candidate, step = first(h, x), stride(h, x)
        start = candidate
        out[i, 0] = candidate
        for j in range(1, out.shape[1]):
            candidate, start = following(h, candidate, start, step)
            out[i, j] = candidate


def all_mixed(h: Hasher, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes many keys; see `mixed`."""
    out = np.empty(keys.size, np.uint64)
    _all_mixed(h, keys, out)
    return out


@kernel
def _all_mixed(h: Hasher, keys: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    for i in range(keys.size):
        out[i] = mixed(h, keys[i])


_X1, _X2, _X3 = U64(0x9E3779B185EBCA87), U64(0xC2B2AE3D27D4EB4F), U64(0x165667B19E3779F9)
_X4, _START = U64(0x85EBCA77C2B2AE63), U64((42 + 0x27D4EB2F165667C5 + 8) % 2**64)
_37, _33, _29 = U64(37), U64(33), U64(29)


@kernel
def spark_hash(x: np.uint64) -> np.uint64:
    """Returns what Spark's `xxhash64` returns for a bigint: xxhash64 of eight bytes with seed 42."""
    x *= _X2
    h = _START ^ (((x << _31) | (x >> _33)) * _X1)
    h = ((h << _27) | (h >> _37)) * _X1 + _X4
    h = (h ^ (h >> _33)) * _X2
    h = (h ^ (h >> _29)) * _X3
    return h ^ (h >> _32)
