"""Routes rows natively: a routing table as an SQL expression, so that no row leaves the JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from skewless.arrays import Keys
from skewless.kernels.position import LOWER, UPPER
from skewless.kernels.routing import WHOLE
from skewless.spark import exact
from skewless.spark.exact import Sourced
from skewless.spark.keys import hashing, quoted, unused
from skewless.table import RoutingTable

SPARSE = 1024  # most slots per key; hashes practically never need more than four
CROWDED = 8  # slots per group
NEAR = 128  # flips tried for a group: Java caches the objects of numbers below this
WORKER = "worker"  # the name of our column, unless the user has a column of that name
EMPTY = -1  # the entry of an empty slot
UNSEEN = ", ".join(["NULL"] * 24)  # `least` ignores these; Spark prints only the first 25 arguments of a function


class Slots(NamedTuple):
    """A perfect hash table: the value of a hot key is in a slot of its own, which one look-up finds.

    The slot of a key is the last bits of its hash, some of them flipped; which ones depends on its group, and its group
    on further bits. The flips were chosen so that no two hot keys share a slot. Slot and group determine the last bits
    of a key, so an entry has the key's upper bits, and its value instead of the last bits.
    """

    shift: int  # to the bits that select the group
    flips: NDArray[np.int64]  # by group
    entries: NDArray[np.int64]  # by slot: the upper bits of a key, then twice its value

    def lookup(self, key: str) -> str:
        """Returns SQL for the value of a key; twice the limit or more if it is not in the table."""
        last = self.entries.size - 1
        flip = element(self.flips, f"shiftrightunsigned({key}, {self.shift}) & {self.flips.size - 1}L", "bigint")
        entry = element(self.entries, f"({key} & {last}L) ^ {flip}", "bigint")
        return f"shiftrightunsigned({entry} ^ ({key} & {~last}L), 1)"


def perfect(keys: Keys, values: NDArray[np.int64] | NDArray[np.int32], limit: int) -> Slots:
    """Builds a table for these keys, each with a value of at least 0 and less than the limit."""
    size = 1 << max(2 * keys.size - 1, 4 * limit + 1, CROWDED - 1).bit_length()
    most = SPARSE * max(keys.size, limit, 1)
    while size <= most:
        for shift in range(size.bit_length() - 1, 65 - (size // CROWDED).bit_length()):
            flips, slots = _arranged(keys, size, shift)
            if slots.size == keys.size:
                entries = np.full(size, EMPTY, np.int64)
                upper, twice = keys & ~np.uint64(size - 1), values.astype(np.uint64) << np.uint64(1)
                entries[slots] = (upper | twice).view(np.int64)
                return Slots(shift, flips, entries)
        size *= 2
    raise ValueError("the keys of this table are not hashes: hash them with skewless.streams.as_keys before planning")


def _arranged(keys: Keys, size: int, shift: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the flips of each group and the slots of the keys; no slots if a group finds no room."""
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


def routed(df: DataFrame, names: Sequence[str], by: RoutingTable | Sourced, into: str) -> DataFrame:
    """Sends rows to their workers, with the worker's number in a new column.

    After this, grouping, joining or windowing on that column and the key needs no further exchange.
    """
    if isinstance(by, Sourced):
        return exact.routed(df, names, by, into)
    key = hashing(df, names)
    if by.splits_keys:
        # Columns: in an expression, each mention would be computed anew, and number its rows by itself.
        ordinal, number = unused(df, "ordinal", "number", besides=[into])
        rows = df.select("*", F.monotonically_increasing_id().alias(ordinal), F.expr(number_sql(by, key)).alias(number))
        share = F.expr(splitting_sql(by, quoted(number), quoted(ordinal)))
        rows = rows.select("*", share.alias(into)).drop(ordinal, number)
    else:
        rows = df.select("*", worker(by, key).alias(into))
    return rows.repartitionById(by.n_workers, quoted(into))


def worker(table: RoutingTable, key: str) -> Column:
    """Returns a row's worker as an int, equal to RoutingTable.route, by a table that splits no keys.

    key: SQL for the hash of its key.
    """
    return F.expr(worker_sql(table, key))


def worker_sql(table: RoutingTable, key: str) -> str:
    """Returns SQL for the number of a row's worker, as `worker` does."""
    return f"{partition_sql(table, key)} % {table.n_workers}"


def partition_sql(table: RoutingTable, key: str) -> str:
    """Returns SQL for repartitionById, which takes the remainder itself: the row's worker, or n_workers more."""
    if table.splits_keys:
        raise ValueError("this table splits keys: use splitting_sql, which takes an ordinal")
    return f"int({number_sql(table, key)})"


def number_sql(table: RoutingTable, key: str) -> str:
    """Returns SQL for a number that says what to do with a key, by its hash.

    For a hot key its worker, or n_workers plus its number among the split keys; for other keys a limit above all of
    these plus the worker of its host. A hot key on the worker of its host needs no entry. Not an `if`: Spark would look
    a hot key up twice, for the condition and for its worker. `UNSEEN` moves the constants behind
    the arguments that Spark prints: it prints a query's plan several times, and thousands of numbers took milliseconds.
    """
    tail = _of_host(table, f"shiftrightunsigned({_leading(key)}, {65 - table.hosts.size.bit_length()})")
    split, first = np.diff(table.starts) > 1, table.workers[table.starts[:-1]]
    listed = split | (first != table.hosts[table.host_of(table.keys)])
    if not listed.any():
        return tail
    limit = table.n_workers + int(split.sum())
    values = np.where(split, table.n_workers + np.cumsum(split) - 1, first)
    return f"least({tail} + {limit}L, {UNSEEN}, {perfect(table.keys[listed], values[listed], limit).lookup(key)})"


def splitting_sql(table: RoutingTable, number: str, ordinal: str) -> str:
    """Returns SQL for a row's worker, by a table that splits keys.

    number: what `number_sql` returns; a column like the ordinal, since each mention of an expression is computed anew.
    ordinal: a bigint that differs from row to row.
    """
    n_workers, limit = table.n_workers, table.n_workers + int((np.diff(table.starts) > 1).sum())
    return f"""CASE WHEN {number} < {n_workers}L THEN int({number})
        WHEN {number} < {limit}L THEN {fragment_sql(table, f"{number} - {n_workers}L", ordinal)}
        ELSE int({number} - {limit}L) END"""


def fragment_sql(table: RoutingTable, index: str, ordinal: str) -> str:
    """Returns SQL for the worker of a split key's row.

    index: the number of the key among the split ones.
    ordinal: a bigint that differs from row to row.
    """
    lengths = np.diff(table.starts)
    split = lengths > 1
    accept, aliases = table.alias
    coin = f"xxhash64({ordinal})"
    # The upper half of the coin times the number of parts, shifted right by 32 bits: a part's number.
    upper = f"shiftrightunsigned({coin}, 32) * {element(lengths[split], index, 'bigint')}"
    part = f"({element(table.starts[:-1][split], index, 'bigint')} + shiftrightunsigned({upper}, 32))"
    own = f"({coin} & {WHOLE - 1}L) < {element(accept, part, 'bigint')}"
    return f"CASE WHEN {own} THEN {element(table.workers, part)} ELSE {element(aliases, part)} END"


def position_sql(key: str) -> str:
    """Returns SQL for the position of a key by its hash, as `kernels.position` computes it."""
    return f"({_leading(key)} | shiftrightunsigned({key}, 32))"


def _leading(key: str) -> str:
    """Returns SQL for the leading half of a position, from which hosts are taken, followed by zeros."""
    return f"shiftleft(({key} & {2**32 - 1}L) * {LOWER}L + shiftrightunsigned({key}, 32) * {UPPER}L, 32)"


def _of_host(table: RoutingTable, host: str) -> str:
    """Returns SQL for the worker of a host."""
    if np.array_equal(table.hosts, table.hashed(table.n_workers).hosts):
        return f"shiftright({host} * {table.n_workers}L, {table.hosts.size.bit_length() - 1})"
    return packed(table.hosts, host)


def packed(values: NDArray[np.int64] | NDArray[np.int32], index: str) -> str:
    """Returns SQL for an element of a constant array of small numbers, several of them in each bigint.

    Spark prints constants again and again, and boxes each, which scatters them in memory.
    """
    bits = next(bits for bits in (4, 8, 16, 32) if int(values.max()) < 1 << bits)
    per_word = 64 // bits
    parts = np.zeros((-(-values.size // per_word), per_word), np.uint64)
    parts.flat[: values.size] = values
    words = np.bitwise_or.reduce(parts << (bits * np.arange(per_word, dtype=np.uint64)), axis=1)
    word = element(words.view(np.int64), f"shiftright({index}, {per_word.bit_length() - 1})", "bigint")
    return f"(shiftrightunsigned({word}, int({index} & {per_word - 1}L) * {bits}) & {(1 << bits) - 1}L)"


def element(values: NDArray[np.int64] | NDArray[np.int32], index: str, kind: str = "int") -> str:
    """Returns SQL for an element of a constant array."""
    return f"get({constant(values, kind)}, int({index}))"


def constant(values: NDArray[np.int64] | NDArray[np.int32], kind: str = "int") -> str:
    """Returns SQL for a constant array, parsed from one string: thousands of literals would be a plan of that size."""
    return f"CAST(split('{','.join(map(str, values.tolist()))}', ',') AS ARRAY<{kind}>)"
