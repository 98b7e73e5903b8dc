"""Joins of skewed keys: rows of a hot key are spread over several workers, and what they must meet is copied there."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from skewless.arrays import require, whole
from skewless.spark.batch import WORKER, checksums, little, workers_for
from skewless.spark.grids import KEEPS, Counted, Grids, gridded
from skewless.spark.keys import any_null, column, fields_of, hashing, quoted, unused
from skewless.spark.profile import explained, profiles, reads
from skewless.spark.route import constant, element, perfect, working

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


def join(
    left: DataFrame, right: DataFrame, on: str | list[str], how: str = "inner", *, n_workers: int | None = None
) -> DataFrame:
    """As left.join(right, on, how), with hot keys spread over several workers; on: columns of both.

    Spark's own plan is left alone where it sends one side to all tasks, where no key is hot, and, unless n_workers is
    given, where less than 1 MiB is read. Otherwise both sides are read more than once, and must have the same rows
    each time.
    """
    names = (on,) if isinstance(on, str) else tuple(on)
    kind = _NAMES.get(how.lower().replace("_", ""), "")
    require(bool(kind), f"how is one of {', '.join(get_args(How))}, not {how!r}")
    types = [[field.dataType for field in fields_of(side, names)] for side in (left, right)]
    require(types[0] == types[1], f"both sides have keys of the same types, not {types[0]} and {types[1]}: cast one")
    if n_workers is not None:
        whole("n_workers", n_workers, 1)
    plain = left.join(right, list(names), kind)
    known = [reads(side) for side in (left, right)]
    if (n_workers is None and little(known, native=False)) or "Broadcast" in explained(plain):
        return plain
    workers = workers_for(left, n_workers, known)
    # Those with a NULL apart: they match nothing.
    found = profiles([(left, names), (right, names)], None, matching=True, known=known)
    counted = [Counted(side.histogram, float(side.nulls)) for side in found]
    grids = gridded(counted[0], counted[1], kind, workers)
    if grids is None:
        return plain
    if any(grids.copies):
        checksums(left)
    name, *ghosts = unused(left.join(right, list(names), "inner"), WORKER, "left_ghost", "right_ghost")
    if grids.distinct:
        right = _without_repeats(right, names, grids)
    haunted = [kept and copied for kept, copied in zip(KEEPS[kind], grids.copies, strict=True)]
    sides = [left, right]
    if any(haunted):
        sides = [
            _ghosts(side, other, names, grids, ghost) if has_them else side.select("*", F.lit(False).alias(ghost))
            for side, other, ghost, has_them in zip((left, right), (right, left), ghosts, haunted, strict=True)
        ]
    sent = [
        placed(side, names, grids, name, is_left, ghost if has_them else None)
        for side, is_left, ghost, has_them in zip(sides, (True, False), ghosts, haunted, strict=True)
    ]
    joined = sent[0].join(sent[1], [*names, name], kind).drop(name)
    if not any(haunted):
        return joined
    of_left, of_right = map(column, ghosts)
    seen = ~((of_left & of_right.isNull()) | (of_right & of_left.isNull()))
    return joined.where(seen).drop(*ghosts)


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
    shared = other.where(_is_hot(other, names, grids)).select(*map(column, names)).distinct()
    shared = F.broadcast(shared.select("*", F.lit(True).alias(into)))
    return side.join(shared, list(names), "left").withColumn(into, F.coalesce(column(into), F.lit(False)))


def placed(
    side: DataFrame, names: tuple[str, ...], grids: Grids, into: str, is_left: bool, ghost: str | None
) -> DataFrame:
    """The rows of a side on their workers; those of hot keys in all cells that they must be in."""
    # A column: in an expression, every mention of it would look the key up again.
    (numbers,) = unused(side, "number", besides=[into])
    number, n_workers = quoted(numbers), grids.table.n_workers
    coin = "shiftrightunsigned(xxhash64(monotonically_increasing_id()), 32)"
    anywhere = f"array(int(shiftrightunsigned({coin} * {n_workers}, 32)))"
    own, other = (grids.rows, grids.columns) if is_left else (grids.columns, grids.rows)
    cells = grids.workers if is_left else grids.transposed
    mine = f"shiftrightunsigned({coin} * {element(own, number, 'bigint')}, 32)"
    width = element(other, number, "bigint")
    start = f"{element(grids.starts[:-1], number, 'bigint')} + {mine} * {width}"
    hot = f"{number} < {grids.keys.size}L"
    # What matches nothing may be anywhere: everywhere alike. That is a NULL, and a hot key that only one side has.
    matchless = any_null(names)
    if ghost is not None:
        matchless += f" OR ({hot} AND NOT {quoted(ghost)})"
    places = f"""CASE WHEN {matchless} THEN {anywhere}
        WHEN {hot} THEN slice({constant(cells)}, int({start} + 1), int({width}))
        ELSE array({working(grids.table, hashing(side, names))}) END"""
    rows = side.select("*", _number(side, names, grids).alias(numbers))
    rows = rows.select("*", F.explode(F.expr(places)).alias(into)).drop(numbers)
    return rows.repartitionById(n_workers, column(into))
