"""Joins of skewed keys: rows of a hot key are spread over several workers, and what they must meet is copied there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from skewless.arrays import require, whole
from skewless.histogram import Histogram
from skewless.partitioners.auto import table_for
from skewless.spark.batch import BATCH_COSTS, LITTLE, WORKER, Placing, checksums, chosen, little, workers_for
from skewless.spark.exact import Exact
from skewless.spark.grids import KEEPS, Costs, Counted, Grids, gridded, tabled
from skewless.spark.keys import any_null, column, fields_of, hashing, quoted, unused
from skewless.spark.profile import Profile, Reads, explained, profiles, reads
from skewless.spark.route import constant, element, perfect, shared, working
from skewless.table import RoutingTable

How = Literal["inner", "left", "right", "full", "semi", "anti"]
_NAMES = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "semi",
    "leftsemi": "semi",
    "anti": "anti",
    "leftanti": "anti",
}


@dataclass(frozen=True, eq=False)
class Sides:
    """What is joined: two DataFrames, by columns that both have, and how, in one word."""

    left: DataFrame
    right: DataFrame
    names: tuple[str, ...]
    kind: str

    @classmethod
    def of(cls, left: DataFrame, right: DataFrame, on: str | Sequence[str], how: str) -> Sides:
        """As a user gives them; refused with a sentence if they cannot be joined."""
        names = (on,) if isinstance(on, str) else tuple(on)
        kind = _NAMES.get(how.lower().replace("_", ""), "")
        require(bool(kind), f"how is one of {', '.join(get_args(How))}, not {how!r}")
        types = [[field.dataType for field in fields_of(side, names)] for side in (left, right)]
        require(
            types[0] == types[1], f"both sides have keys of the same types, not {types[0]} and {types[1]}: cast one"
        )
        return cls(left, right, names, kind)

    @property
    def frames(self) -> list[tuple[DataFrame, tuple[str, ...]]]:
        return [(self.left, self.names), (self.right, self.names)]

    @cached_property
    def joined(self) -> DataFrame:
        """As plain Spark does it."""
        return self.left.join(self.right, list(self.names), self.kind)

    def read(self) -> list[Reads]:
        return [reads(side) for side, _ in self.frames]

    def spared(self, known: Sequence[Reads], n_workers: int | None) -> str:
        """Why it is best left to Spark, as far as that can be told without a job; empty if it cannot."""
        if n_workers is None and little(known, native=False):
            return LITTLE
        if "Broadcast" in explained(self.joined):
            return "Spark sends all of one side to every task, so that no row of the other goes anywhere"
        return ""

    def counted(self, known: Sequence[Reads]) -> tuple[list[Profile], Costs]:
        """The profiles of both sides, and what their keys cost. Rows with a NULL are apart: they match nothing."""
        found = profiles(self.frames, None, matching=True, known=known)
        left, right = (Counted(side.histogram, float(side.nulls)) for side in found)
        return found, Costs.of((left, right), self.kind)


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | list[str],
    how: str = "inner",
    *,
    n_workers: int | None = None,
    partitioner: Placing = "auto",
) -> DataFrame:
    """As left.join(right, on, how), with hot keys spread over several workers; on: columns of both.

    Spark's own plan is left alone where it sends one side to all tasks, where no key is hot, and, unless n_workers is
    given, where less than 1 MiB is read. Otherwise both sides are read more than once, and must have the same rows
    each time.

    partitioner: by default keys that are hot on both sides are spread on both. A name, an instance or a RoutingTable
        says itself where keys go, and which are split: those are spread on the side that has more of them.
    """
    sides = Sides.of(left, right, on, how)
    if n_workers is not None:
        whole("n_workers", n_workers, 1)
    grids = _planned(sides, n_workers, partitioner)
    if grids is None:
        return sides.joined
    names, kind = sides.names, sides.kind
    # Copies are of rows that lie where a coin fell; so do rows with a NULL.
    if any(grids.copies) or any(field.nullable for frame in sides.frames for field in fields_of(*frame)):
        checksums(left)
    name, *ghosts = unused(left.join(right, list(names), "inner"), WORKER, "left_ghost", "right_ghost")
    if grids.distinct:
        right = _without_repeats(right, names, grids)
    haunted = [kept and copied for kept, copied in zip(KEEPS[kind], grids.copies, strict=True)]
    both = [left, right]
    if any(haunted):
        both = [
            _ghosts(side, other, names, grids, ghost) if has_them else side.select("*", F.lit(False).alias(ghost))
            for side, other, ghost, has_them in zip((left, right), (right, left), ghosts, haunted, strict=True)
        ]
    sent = [
        placed(side, names, grids, name, is_left, ghost if has_them else None)
        for side, is_left, ghost, has_them in zip(both, (True, False), ghosts, haunted, strict=True)
    ]
    joined = sent[0].join(sent[1], [*names, name], kind).drop(name)
    if not any(haunted):
        return joined
    of_left, of_right = map(column, ghosts)
    seen = ~((of_left & of_right.isNull()) | (of_right & of_left.isNull()))
    return joined.where(seen).drop(*ghosts)


def _planned(sides: Sides, n_workers: int | None, partitioner: Placing | Exact) -> Grids | None:
    """Where keys meet; None if that is best left to Spark."""
    if isinstance(partitioner, Exact):
        raise ValueError("rows of two sides that are routed one by one would not meet: a join takes no Exact")
    if isinstance(partitioner, RoutingTable) and not partitioner.splits_keys:
        workers_for(sides.left, partitioner, n_workers)
        nobody = Histogram(np.empty(0, np.uint64), np.empty(0))
        return tabled(partitioner, nobody, nobody, sides.kind)
    known = sides.read()
    if partitioner == "auto" and sides.spared(known, n_workers):
        return None
    workers = workers_for(sides.left, partitioner, n_workers, known)
    found, costs = sides.counted(known)
    if partitioner == "auto":
        return gridded(costs, sides.kind, workers)
    table = partitioner
    if not isinstance(table, RoutingTable):
        table = table_for(chosen(table, workers, True, BATCH_COSTS), costs.histogram, RoutingTable.hashed(workers))
    return tabled(table, found[0].histogram, found[1].histogram, sides.kind)


def _number(side: DataFrame, names: tuple[str, ...], grids: Grids) -> Column:
    """Which of the hot keys that of a row is; if none of them, more than there are."""
    slots = perfect(grids.keys, np.arange(grids.keys.size), grids.keys.size)
    return F.expr(slots.found(hashing(side, names)))


def _is_hot(side: DataFrame, names: tuple[str, ...], grids: Grids) -> Column:
    return _number(side, names, grids) < grids.keys.size


def _without_repeats(side: DataFrame, names: tuple[str, ...], grids: Grids) -> DataFrame:
    """The keys of a side; hot ones once."""
    keys, hot = side.select(*map(column, names)), _is_hot(side, names, grids)
    return keys.where(~hot).union(keys.where(hot).distinct())


def _ghosts(side: DataFrame, other: DataFrame, names: tuple[str, ...], grids: Grids, into: str) -> DataFrame:
    """A side with a new column: whether the key of a row is hot, and the other side has it too.

    Such a row is copied, and one of the copies finds a match; those that do not are ghosts, and nobody may see them.
    Keys are compared, not hashes: two keys may have the hash of a hot one.
    """
    met = other.where(_is_hot(other, names, grids)).select(*map(column, names)).distinct()
    met = F.broadcast(met.select("*", F.lit(True).alias(into)))
    return side.join(met, list(names), "left").withColumn(into, F.coalesce(column(into), F.lit(False)))


def placed(
    side: DataFrame, names: tuple[str, ...], grids: Grids, into: str, is_left: bool, ghost: str | None
) -> DataFrame:
    """The rows of a side on their workers; those of hot keys in all cells that they must be in."""
    # Columns: in an expression, each mention would look the key up again, and number by itself the rows that get there.
    numbers, ordinals = unused(side, "number", "ordinal", besides=[into])
    number, ordinal, n_workers = quoted(numbers), quoted(ordinals), grids.table.n_workers
    hot, coin = f"{number} < {grids.keys.size}L", f"shiftrightunsigned(xxhash64({ordinal}), 32)"
    # What matches nothing may be anywhere: everywhere alike. That is a NULL, and a hot key that only one side has.
    matchless = any_null(names)
    if ghost is not None:
        matchless += f" OR ({hot} AND NOT {quoted(ghost)})"
    places = f"""CASE WHEN {matchless} THEN array(int(shiftrightunsigned({coin} * {n_workers}, 32)))
        WHEN {hot} THEN {_cells(grids, is_left, number, ordinal, coin)}
        ELSE array({working(grids.table, hashing(side, names))}) END"""
    known = _number(side, names, grids).alias(numbers), F.monotonically_increasing_id().alias(ordinals)
    rows = side.select("*", *known).select("*", F.explode(F.expr(places)).alias(into)).drop(numbers, ordinals)
    return rows.repartitionById(n_workers, column(into))


def _cells(grids: Grids, is_left: bool, number: str, ordinal: str, coin: str) -> str:
    """The workers that a row of a hot key must be on, in SQL."""
    own, other = (grids.rows, grids.columns) if is_left else (grids.columns, grids.rows)
    mine = f"shiftrightunsigned({coin} * {element(own, number, 'bigint')}, 32)"
    width = element(other, number, "bigint")
    start = f"{element(grids.starts[:-1], number, 'bigint')} + {mine} * {width}"
    cells = f"slice({constant(grids.workers if is_left else grids.transposed)}, int({start} + 1), int({width}))"
    if grids.shares is None:
        return cells
    spread = f"array({shared(grids.shares, number, ordinal)})"
    return f"CASE WHEN {element(own, number, 'bigint')} > 1 THEN {spread} ELSE {cells} END"
