"""A routing table as a native expression of Spark: the worker of a row, without a row leaving the JVM."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column
from pyspark.sql import functions as F

from skewless.arrays import Keys
from skewless.kernels.place import LOWER, UPPER
from skewless.table import WHOLE, RoutingTable

SPARSE = 1024  # slots a key; hashes need four at the most, as good as always
CROWDED = 8  # slots a group
NEAR = 128  # slots among which a key finds its own: up to there, Java has an object for each number, and no second
NOTHING = -1  # stands in a slot that no key has
UNSEEN = ", ".join(["NULL"] * 24)  # `least` passes over these; Spark prints 25 arguments of a function, and no more


class Slots(NamedTuple):
    """A perfect hash: what is known of a hot key stands in a slot of its own, and where that is takes one look-up.

    The slot of a key are the last bits of its hash, some of them flipped, other ones in each group; groups go by bits
    above. What to flip was found so that no two hot keys meet. Slot and group say what the last bits of a key are, so
    that in their place there is room for its value.
    """

    shift: int  # to the bits that make a group
    flips: NDArray[np.int64]  # by group
    entries: NDArray[np.int64]  # by slot: the upper bits of a key, then twice its value

    def found(self, key: str) -> str:
        """The value of a key, in SQL: twice the limit or more if it is not one of these."""
        last = self.entries.size - 1
        flip = element(self.flips, f"shiftrightunsigned({key}, {self.shift}) & {self.flips.size - 1}L", "bigint")
        entry = element(self.entries, f"({key} & {last}L) ^ {flip}", "bigint")
        return f"shiftrightunsigned({entry} ^ ({key} & {~last}L), 1)"


def perfect(keys: Keys, values: NDArray[np.int64] | NDArray[np.int32], limit: int) -> Slots:
    """Slots for these keys, each with a value from 0 to below the limit."""
    size = 1 << max(2 * keys.size - 1, 4 * limit + 1, CROWDED - 1).bit_length()
    most = SPARSE * max(keys.size, limit, 1)
    while size <= most:
        for shift in range(size.bit_length() - 1, 65 - (size // CROWDED).bit_length()):
            flips, slots = _arranged(keys, size, shift)
            if slots.size == keys.size:
                entries = np.full(size, NOTHING, np.int64)
                upper, twice = keys & ~np.uint64(size - 1), values.astype(np.uint64) << np.uint64(1)
                entries[slots] = (upper | twice).view(np.int64)
                return Slots(shift, flips, entries)
        size *= 2
    raise ValueError("the keys of this table are not hashes, as Spark's xxhash64 makes them of a row's key")


def _arranged(keys: Keys, size: int, shift: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What to flip in each group, and the slots of the keys; none if not all groups find room, the largest first."""
    flips, taken = np.zeros(size // CROWDED, np.int64), np.zeros(size, np.bool_)
    group = (keys >> np.uint64(shift)).astype(np.int64) & (flips.size - 1)
    bits = (keys & np.uint64(size - 1)).astype(np.int64)
    none = np.empty(0, np.int64)
    if np.unique(group * size + bits).size < keys.size:
        return flips, none
    order = np.argsort(group, kind="stable")
    numbers, starts, counts = np.unique(group[order], return_index=True, return_counts=True)
    near = np.arange(min(size, NEAR))
    for largest in np.argsort(-counts, kind="stable").tolist():
        members = bits[order[starts[largest] : starts[largest] + counts[largest]]]
        fits = ~taken[members[:, None] ^ near].any(axis=0)
        if not fits.any():
            return flips, none
        flips[numbers[largest]] = fits.argmax()
        taken[members ^ fits.argmax()] = True
    return flips, bits ^ flips[group]


def worker(table: RoutingTable, key: str) -> Column:
    """The worker of a row as an int, as RoutingTable.route gives it, by a table that splits no keys.

    key: the hash of its key, in SQL.
    """
    return F.expr(working(table, key))


def working(table: RoutingTable, key: str) -> str:
    """The same in SQL."""
    return f"{bound_for(table, key)} % {table.n_workers}"


def bound_for(table: RoutingTable, key: str) -> str:
    """For Spark's repartitionById, which takes the remainder itself: the worker of a row, or n_workers more, in SQL."""
    if table.splits_keys:
        raise ValueError("this table splits keys: which part a row goes to needs an ordinal")
    return f"int({numbered(table, key)})"


def numbered(table: RoutingTable, key: str) -> str:
    """What is known of a key by its hash, in SQL: the worker of a hot key, or, if it is split, n_workers and its number
    among those that are; or the worker of its host, beyond all of these.

    A hot key that is where its host is need not be known. Not an `if`: Spark would look a hot key up once for the
    condition, and once more for its worker. The constants stand where Spark does not print them: it prints the plan of
    a query several times, and thousands of numbers took milliseconds; people read it, too.
    """
    tail = _of_host(table, f"shiftrightunsigned({_leading(key)}, {65 - table.hosts.size.bit_length()})")
    split, first = np.diff(table.starts) > 1, table.workers[table.starts[:-1]]
    known = split | (first != table.hosts[table.host_of(table.keys)])
    if not known.any():
        return tail
    limit = table.n_workers + int(split.sum())
    values = np.where(split, table.n_workers + np.cumsum(split) - 1, first)
    return f"least({tail} + {limit}L, {UNSEEN}, {perfect(table.keys[known], values[known], limit).found(key)})"


def sharing(table: RoutingTable, number: str, ordinal: str) -> str:
    """The worker of a row in SQL, by a table that splits keys.

    number: what `numbered` gives. A column, as the ordinal: every mention of an expression would be computed anew.
    ordinal: a bigint that differs from row to row.
    """
    n_workers, limit = table.n_workers, table.n_workers + int((np.diff(table.starts) > 1).sum())
    return f"""CASE WHEN {number} < {n_workers}L THEN int({number})
        WHEN {number} < {limit}L THEN {shared(table, f"{number} - {n_workers}L", ordinal)}
        ELSE int({number} - {limit}L) END"""


def shared(table: RoutingTable, index: str, ordinal: str) -> str:
    """The worker of a row of a split key, in SQL; index: its number among the keys that are split."""
    lengths = np.diff(table.starts)
    split = lengths > 1
    accept, aliases = table.alias
    coin = f"xxhash64({ordinal})"
    # The upper half of the coin times the number of parts, without its lower half: below that number.
    upper = f"shiftrightunsigned({coin}, 32) * {element(lengths[split], index, 'bigint')}"
    part = f"({element(table.starts[:-1][split], index, 'bigint')} + shiftrightunsigned({upper}, 32))"
    own = f"({coin} & {WHOLE - 1}L) < {element(accept, part, 'bigint')}"
    return f"CASE WHEN {own} THEN {element(table.workers, part)} ELSE {element(aliases, part)} END"


def placing(key: str) -> str:
    """The place of a key by its hash, as `kernels.place` has it, in SQL."""
    return f"({_leading(key)} | shiftrightunsigned({key}, 32))"


def _leading(key: str) -> str:
    """The leading half of its place, from which hosts are taken, and zeros behind it."""
    return f"shiftleft(({key} & {2**32 - 1}L) * {LOWER}L + shiftrightunsigned({key}, 32) * {UPPER}L, 32)"


def _of_host(table: RoutingTable, host: str) -> str:
    """The worker of a host."""
    if np.array_equal(table.hosts, table.hashed(table.n_workers).hosts):
        return f"shiftright({host} * {table.n_workers}L, {table.hosts.size.bit_length() - 1})"
    return packed(table.hosts, host)


def packed(values: NDArray[np.int64] | NDArray[np.int32], index: str) -> str:
    """An element of a constant array of small numbers, several of which stand in each bigint.

    Spark prints constants again and again, and boxes them, so that each is in another place of memory.
    """
    bits = next(bits for bits in (4, 8, 16, 32) if int(values.max()) < 1 << bits)
    each = 64 // bits
    parts = np.zeros((-(-values.size // each), each), np.uint64)
    parts.flat[: values.size] = values
    words = np.bitwise_or.reduce(parts << (bits * np.arange(each, dtype=np.uint64)), axis=1)
    word = element(words.view(np.int64), f"shiftright({index}, {each.bit_length() - 1})", "bigint")
    return f"(shiftrightunsigned({word}, int({index} & {each - 1}L) * {bits}) & {(1 << bits) - 1}L)"


def element(values: NDArray[np.int64] | NDArray[np.int32], index: str, kind: str = "int") -> str:
    """An element of a constant array."""
    return f"get({constant(values, kind)}, int({index}))"


def constant(values: NDArray[np.int64] | NDArray[np.int32], kind: str = "int") -> str:
    """A constant array. One string is parsed once; thousands of literals would be a plan of that size."""
    return f"CAST(split('{','.join(map(str, values.tolist()))}', ',') AS ARRAY<{kind}>)"
