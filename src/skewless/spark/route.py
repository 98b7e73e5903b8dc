"""A routing table as a native expression of Spark: the worker of a row, without a row leaving the JVM."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from skewless.arrays import Keys
from skewless.kernels.hash import spark_hashes
from skewless.table import WHOLE, RoutingTable


class Slots(NamedTuple):
    """A perfect hash: every hot key has a slot of its own, and where that is takes one look-up.

    The slot of a hash are its last bits, after a shift that depends on its group; groups go by the last bits, too.
    Shifts were found so that no two hot keys meet. Spark checks sums and products for overflow: there are none here.
    """

    shifts: NDArray[np.int64]  # by group
    hashes: NDArray[np.int64]  # by slot
    numbers: NDArray[np.int64]  # by slot: which of the hot keys


def perfect(keys: Keys) -> Slots:
    """Slots for the hashes of these keys, of which there is at least one."""
    hashes = spark_hashes(keys)
    size = 1 << max(2, int(2 * hashes.size - 1).bit_length())
    while True:
        found = _placed(hashes, size)
        if found is not None:
            return found
        size *= 2


def _placed(hashes: NDArray[np.uint64], size: int) -> Slots | None:
    groups, bits = size // 4, size.bit_length() - 1
    group = (hashes & np.uint64(groups - 1)).astype(np.int64)
    shifts, owner = np.zeros(groups, np.int64), np.full(size, -1, np.int64)
    order = np.argsort(group, kind="stable")
    numbers, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    for number, start, count in sorted(zip(numbers, starts, counts, strict=True), key=lambda entry: -entry[2]):
        members = order[start : start + count]
        for shift in range(64 - bits):
            slots = (hashes[members] >> np.uint64(shift)).astype(np.int64) & (size - 1)
            if (owner[slots] < 0).all() and np.unique(slots).size == slots.size:
                shifts[number] = shift
                owner[slots] = members
                break
        else:
            return None
    # In a free slot stands the hash of a key that is looked for in its own slot only: nothing is found there.
    numbers = np.maximum(owner, 0)
    return Slots(shifts, hashes.view(np.int64)[numbers], numbers)


def worker(table: RoutingTable, key: Column, ordinal: Column | None = None) -> Column:
    """The worker of a row as an int, from the hash of its key, as RoutingTable.route gives it.

    ordinal: a bigint that differs from row to row; needed if the table splits keys.
    """
    mixed = F.xxhash64(key)
    tail = element(table.hosts, mixed.bitwiseAND(F.lit(table.hosts.size - 1)))
    if table.keys.size == 0:
        return tail
    slots = perfect(table.keys)
    slot = slot_of(slots, mixed)
    hot = element(slots.hashes, slot, "bigint") == mixed
    if not table.splits_keys:
        return F.when(hot, element(table.workers[table.starts[slots.numbers]], slot)).otherwise(tail)
    if ordinal is None:
        raise ValueError("this table splits keys: which part a row goes to needs an ordinal")
    accept, aliases = table.alias
    starts, lengths = table.starts[slots.numbers], np.diff(table.starts)[slots.numbers]
    coin = F.xxhash64(ordinal)
    low = coin.bitwiseAND(F.lit(WHOLE - 1))
    # The upper half of the coin times the number of parts, without its lower half: below that number.
    part = F.shiftrightunsigned(F.shiftrightunsigned(coin, 32) * element(lengths, slot, "bigint"), 32)
    column = element(starts, slot, "bigint") + part
    own = low < element(accept, column, "bigint")
    return F.when(hot, F.when(own, element(table.workers, column)).otherwise(element(aliases, column))).otherwise(tail)


def slot_of(slots: Slots, mixed: Column) -> Column:
    """The slot in which a hash is, if it is that of a hot key."""
    shift = element(slots.shifts, mixed.bitwiseAND(F.lit(slots.shifts.size - 1)))
    shifted = F.call_function("shiftrightunsigned", mixed, shift)
    return shifted.bitwiseAND(F.lit(slots.hashes.size - 1))


def element(values: NDArray[np.int64] | NDArray[np.int32], index: Column, kind: str = "int") -> Column:
    """An element of a constant array."""
    return F.get(constant(values, kind), index.cast("int"))


def constant(values: NDArray[np.int64] | NDArray[np.int32], kind: str = "int") -> Column:
    """A constant array. One string is parsed once; thousands of literals would be a plan of that size."""
    return F.split(F.lit(",".join(map(str, values.tolist()))), ",").cast(f"array<{kind}>")
