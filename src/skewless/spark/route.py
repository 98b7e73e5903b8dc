"""A routing table as a native expression of Spark: the worker of a row, without a row leaving the JVM."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from skewless.arrays import Keys
from skewless.table import WHOLE, RoutingTable

SPARSE = 1024  # slots a key; hashes need two at the most, as good as always


class Slots(NamedTuple):
    """A perfect hash: every hot key has a slot of its own, and where that is takes one look-up.

    The slot of a key are some bits of its hash, other ones flipped in each group; groups go by its last bits. What to
    flip was found so that no two hot keys meet, with few more slots than keys: Spark prints constants again and again.
    """

    shift: int  # to the bits that make a slot
    flips: NDArray[np.int64]  # by group
    keys: NDArray[np.int64]  # by slot
    numbers: NDArray[np.int64]  # by slot: which of the hot keys


def perfect(keys: Keys) -> Slots:
    """Slots for these keys, of which there is at least one."""
    size = 1 << max(1, int(keys.size - 1).bit_length())
    while size <= SPARSE * keys.size:
        for shift in range(size.bit_length() - 2, 65 - size.bit_length()):
            found = _placed(keys, size, shift)
            if found is not None:
                return found
        size *= 2
    raise ValueError("the keys of this table are not hashes, as Spark's xxhash64 makes them of a row's key")


def _placed(keys: Keys, size: int, shift: int) -> Slots | None:
    """Slots by these bits, if no keys of a group have the same and all groups find room, the largest first."""
    group = (keys & np.uint64(size // 2 - 1)).astype(np.int64)
    bits = (keys >> np.uint64(shift)).astype(np.int64) & (size - 1)
    if np.unique(group * size + bits).size < keys.size:
        return None
    flips, owner = np.zeros(size // 2, np.int64), np.full(size, -1, np.int64)
    order = np.argsort(group, kind="stable")
    numbers, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    several = counts > 1
    for number, start, count in sorted(
        zip(numbers[several], starts[several], counts[several], strict=True), key=lambda entry: -entry[2]
    ):
        members = order[start : start + count]
        fits = (owner[bits[members, None] ^ np.arange(size)] < 0).all(axis=0)
        if not fits.any():
            return None
        flips[number] = fits.argmax()
        owner[bits[members] ^ flips[number]] = members
    alone = order[starts[~several]]  # any slot will do
    free = np.flatnonzero(owner < 0)[: alone.size]
    flips[group[alone]], owner[free] = bits[alone] ^ free, alone
    # In a free slot stands a key that is looked for in its own slot only: nothing is found there.
    numbers = np.maximum(owner, 0)
    return Slots(shift, flips, keys.view(np.int64)[numbers], numbers)


def worker(table: RoutingTable, key: str, ordinal: str | None = None) -> Column:
    """The worker of a row as an int, as RoutingTable.route gives it.

    key: the hash of its key, in SQL.
    ordinal: a bigint that differs from row to row, in SQL; needed if the table splits keys.
    """
    return F.expr(working(table, key, ordinal))


def working(table: RoutingTable, key: str, ordinal: str | None = None) -> str:
    """The same in SQL."""
    host = f"(xxhash64({key}) & {table.hosts.size - 1}L)"
    tail = element(table.hosts, host)
    if table.keys.size == 0:
        return tail
    slots = perfect(table.keys)
    slot = slot_of(slots, key)
    if not table.splits_keys:
        # One look-up after the decision, not one in each branch: then Spark computes the slot once.
        places = np.concatenate((table.workers[table.starts[slots.numbers]], table.hosts))
        return element(places, f"if({is_hot(slots, key)}, {slot}, {slots.keys.size} + {host})")
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
    return f"CASE WHEN {is_hot(slots, key)} THEN {place} ELSE {tail} END"


def is_hot(slots: Slots, key: str) -> str:
    """Whether a key is one of the hot ones."""
    return f"{element(slots.keys, slot_of(slots, key), 'bigint')} = {key}"


def slot_of(slots: Slots, key: str) -> str:
    """The slot in which a key is, if it is one of the hot ones."""
    flip = element(slots.flips, f"{key} & {slots.flips.size - 1}L")
    return f"((shiftrightunsigned({key}, {slots.shift}) ^ {flip}) & {slots.keys.size - 1}L)"


def element(values: NDArray[np.int64] | NDArray[np.int32], index: str, kind: str = "int") -> str:
    """An element of a constant array."""
    return f"get({constant(values, kind)}, int({index}))"


def constant(values: NDArray[np.int64] | NDArray[np.int32], kind: str = "int") -> str:
    """A constant array. One string is parsed once; thousands of literals would be a plan of that size."""
    return f"CAST(split('{','.join(map(str, values.tolist()))}', ',') AS ARRAY<{kind}>)"
