"""An open-addressing hash table over arrays, which grows between calls of kernels, not inside them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import kernel

_0, _1 = np.uint64(0), np.uint64(1)


class Table(NamedTuple):
    """Maps well-mixed 64-bit keys (see `hash.mix64`) to values other than 0; a value of 0 marks a free slot.

    A key and its value are adjacent, so that a look-up misses the cache once. Linear probing, at most half full.
    """

    slots: NDArray[np.uint64]  # key, value, key, value, ...
    shift: NDArray[np.uint64]  # the upper 64 - shift bits of a key say where to look first
    used: NDArray[np.int64]


class Entries(NamedTuple):
    """The content of a table: its keys, ascending, and their values."""

    keys: NDArray[np.uint64]
    values: NDArray[np.uint64]


def table(at_least: int = 8) -> Table:
    """Returns an empty table with room for `at_least` keys."""
    bits = max(4, (2 * at_least - 1).bit_length())
    return Table(
        slots=np.zeros(2 << bits, np.uint64), shift=np.array([64 - bits], np.uint64), used=np.zeros(1, np.int64)
    )


def grown(old: Table) -> Table:
    """Returns a table with the same entries and twice the room."""
    new = table(old.slots.size // 2)
    _copy(old.slots, new)
    return new


def entries(t: Table) -> Entries:
    """Returns the content of a table: equal for any two tables with the same content, whatever their sizes."""
    pairs = t.slots.reshape(-1, 2)
    pairs = pairs[pairs[:, 1] != 0]
    pairs = pairs[np.argsort(pairs[:, 0])]
    return Entries(pairs[:, 0].copy(), pairs[:, 1].copy())


def filled(keys: NDArray[np.uint64], values: NDArray[np.uint64], room: int = 0) -> Table:
    """Returns a table with these entries; the keys are distinct and the values are not 0.

    room: how many keys it must have room for.
    """
    new = table(max(keys.size + 1, room))
    _copy(np.column_stack((keys, values)).reshape(-1), new)
    return new


def sums(tables: list[Entries]) -> Entries:
    """Returns the keys of all tables, each with the sum of its values (exact below 2**53), without sums of 0."""
    keys, inverse = np.unique(np.concatenate([keys for keys, _ in tables]), return_inverse=True)
    totals = np.bincount(inverse, np.concatenate([values for _, values in tables]), minlength=keys.size)
    return Entries(keys[totals > 0], totals[totals > 0].astype(np.uint64))


def most_bytes(n_keys: int) -> int:
    """Returns the most bytes of a table that grew to n_keys: 16 per slot, at least a quarter of the slots in use."""
    return 64 * (n_keys + 1)


@kernel
def full(t: Table) -> bool:
    """Returns whether the table must grow before another key may be put."""
    return bool(4 * t.used[0] >= t.slots.size)


@kernel
def find(t: Table, key: np.uint64) -> np.uint64:
    """Returns the slot of a key, or the free slot where it would go: t.slots[slot + 1] is 0 there."""
    last = np.uint64(t.slots.size - 1)
    slot: np.uint64 = (key >> t.shift[0]) << _1
    while t.slots[slot] != key and t.slots[slot + _1] != _0:
        slot = (slot + _1 + _1) & last
    # A free slot has the key 0, which is a valid key too: only its value says that it is free.
    return slot


@kernel
def put(t: Table, slot: np.uint64, key: np.uint64, value: np.uint64) -> None:
    """Writes a value into the slot that `find` returned for its key."""
    if t.slots[slot + _1] == _0:
        t.used[0] += 1
    t.slots[slot] = key
    t.slots[slot + _1] = value


@kernel
def remove(t: Table, slot: np.uint64) -> None:
    """Frees a slot and moves up entries behind it that would not be found any more (no tombstones)."""
    last = np.uint64(t.slots.size - 1)
    hole, slot = slot, (slot + _1 + _1) & last
    while t.slots[slot + _1] != _0:
        home = (t.slots[slot] >> t.shift[0]) << _1
        if ((slot - home) & last) >= ((slot - hole) & last):
            t.slots[hole], t.slots[hole + _1] = t.slots[slot], t.slots[slot + _1]
            hole = slot
        slot = (slot + _1 + _1) & last
    t.slots[hole], t.slots[hole + _1] = _0, _0
    t.used[0] -= 1


@kernel
def clear(t: Table) -> None:
    """Removes all entries."""
    t.slots[:] = _0
    t.used[0] = 0


@kernel
def _copy(slots: NDArray[np.uint64], new: Table) -> None:
    for i in range(0, slots.size, 2):
        if slots[i + 1] != _0:
            put(new, find(new, slots[i]), slots[i], slots[i + 1])
