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


def worker(table: RoutingTable, key: str, ordinal: str | None = None) -> Column:
    """The worker of a row as an int, as RoutingTable.route gives it.

    key: the hash of its key, in SQL.
    ordinal: a bigint that differs from row to row, in SQL; needed if the table splits keys.
    """
    return F.expr(working(table, key, ordinal))


def working(table: RoutingTable, key: str, ordinal: str | None = None) -> str:
    """The same in SQL."""
    mixed = f"xxhash64({key})"
    tail = element(table.hosts, f"{mixed} & {table.hosts.size - 1}L")
    if table.keys.size == 0:
        return tail
    slots = perfect(table.keys)
    slot = slot_of(slots, mixed)
    if not table.splits_keys:
        own = element(table.workers[table.starts[slots.numbers]], slot)
        return f"CASE WHEN {is_hot(slots, mixed)} THEN {own} ELSE {tail} END"
    if ordinal is None:
        raise ValueError("this table splits keys: which part a row goes to needs an ordinal")
    accept, aliases = table.alias
    starts, lengths = table.starts[slots.numbers], np.diff(table.starts)[slots.numbers]
    coin = f"xxhash64({ordinal})"
    # The upper half of the coin times the number of parts, without its lower half: below that number.
    upper = f"shiftrightunsigned({coin}, 32) * {element(lengths, slot, 'bigint')}"
    part = f"({element(starts, slot, 'bigint')} + shiftrightunsigned({upper}, 32))"
    own = f"({coin} & {WHOLE - 1}L) < {element(accept, part, 'bigint')}"
    place = f"CASE WHEN {own} THEN {element(table.workers, part)} ELSE {element(aliases, part)} END"
    return f"CASE WHEN {is_hot(slots, mixed)} THEN {place} ELSE {tail} END"


def is_hot(slots: Slots, mixed: str) -> str:
    """Whether a hash is that of a hot key."""
    return f"{element(slots.hashes, slot_of(slots, mixed), 'bigint')} = {mixed}"


def slot_of(slots: Slots, mixed: str) -> str:
    """The slot in which a hash is, if it is that of a hot key."""
    shift = element(slots.shifts, f"{mixed} & {slots.shifts.size - 1}L")
    return f"(shiftrightunsigned({mixed}, {shift}) & {slots.hashes.size - 1}L)"


def element(values: NDArray[np.int64] | NDArray[np.int32], index: str, kind: str = "int") -> str:
    """An element of a constant array."""
    return f"get({constant(values, kind)}, int({index}))"


def constant(values: NDArray[np.int64] | NDArray[np.int32], kind: str = "int") -> str:
    """A constant array. One string is parsed once; thousands of literals would be a plan of that size."""
    return f"CAST(split('{','.join(map(str, values.tolist()))}', ',') AS ARRAY<{kind}>)"
