"""Joins skewed keys: rows of a hot key are spread over several workers, and their matches are copied there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from skewless.arguments import require
from skewless.spark.decision import decide, plain_join
from skewless.spark.grids import KEEPS, Grids
from skewless.spark.keys import Key, Keyed, any_null, column, fields_of, hashing, keyed, quoted, unused
from skewless.spark.request import PartitionerLike, Request
from skewless.spark.route import WORKER, constant, element, fragment_sql, perfect, worker_sql

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


def sides(left: DataFrame, right: DataFrame, on: Sequence[Key], how: str) -> tuple[tuple[Keyed, Keyed], str]:
    """Returns both sides with their key, and the kind of join in one word; refuses what cannot be joined."""
    kind = _NAMES.get(how.lower().replace("_", ""), "")
    require(bool(kind), f"how is one of {', '.join(get_args(How))}, not {how!r}")
    of_left, of_right = (keyed(side, on) for side in (left, right))
    plain = not (of_left.added or of_right.added)
    require(
        plain,
        f"a join takes names of columns that both sides have, not {', '.join(map(str, on))}: select such columns first",
    )
    if of_left.names != of_right.names:  # they differ in case
        same = dict(zip(of_right.names, of_left.names, strict=True))
        of_right = keyed(right.withColumnsRenamed(same), of_left.names)
    types = [[field.dataType for field in fields_of(side.df, side.names)] for side in (of_left, of_right)]
    require(types[0] == types[1], f"both keys must have the same types, not {types[0]} and {types[1]}: cast one")
    return (of_left, of_right), kind


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | list[str],
    how: str = "inner",
    *,
    n_workers: int | None = None,
    partitioner: PartitionerLike = "auto",
) -> DataFrame:
    """Joins as left.join(right, on, how) does, with hot keys spread over several workers.

    With the default partitioner, Spark's own plan is kept where it broadcasts one side, where no key is hot, where a
    retried task could lose rows, and, unless n_workers is given, where less than 1 MiB is read. Otherwise both sides
    are read more than once, and must have the same rows each time.

    left, right: the two sides.
    on: the name of a column that both sides have, or a list of such names.
    how: inner, left, right, full, semi or anti, or Spark's other names for these.
    n_workers: how many partitions; by default as many as Spark runs tasks at a time, or more for much data.
    partitioner: by default keys that are hot on both sides are spread on both. A name, an instance or a RoutingTable
        decides itself where keys go, and which are split: those are spread on the side that has more of them.

    >>> sl.join(orders, customers, "customer_id", how="left")                                    # doctest: +SKIP
    """
    frames, kind = sides(left, right, [on], how)
    request = Request("join", frames, partitioner, n_workers, how=kind)
    grids = decide(request).grids
    if grids is None:
        return plain_join(request)
    return joined(frames[0].df, frames[1].df, frames[0].names, kind, grids)


def joined(left: DataFrame, right: DataFrame, names: tuple[str, ...], kind: str, grids: Grids) -> DataFrame:
    """Sends the rows of both sides to the workers where their keys meet, and joins them there."""
    name, *marks = unused(left.join(right, list(names), "inner"), WORKER, "left_matches", "right_matches")
    if grids.distinct:
        right = _without_repeats(right, names, grids)
    # Where rows that may come out without a match are copied, copies without a match must not come out.
    is_marked = [keeps and copied for keeps, copied in zip(KEEPS[kind], grids.copies, strict=True)]
    both = [left, right]
    if any(is_marked):
        both = [
            _marked(side, other, names, grids, mark) if with_mark else side.select("*", F.lit(False).alias(mark))
            for side, other, mark, with_mark in zip((left, right), (right, left), marks, is_marked, strict=True)
        ]
    sent = [
        _routed_side(side, names, grids, name, is_left, mark if with_mark else None)
        for side, is_left, mark, with_mark in zip(both, (True, False), marks, is_marked, strict=True)
    ]
    pairs = sent[0].join(sent[1], [*names, name], kind).drop(name)
    if any(is_marked):
        of_left, of_right = map(column, marks)
        visible = ~((of_left & of_right.isNull()) | (of_right & of_left.isNull()))
        pairs = pairs.where(visible).drop(*marks)
    return pairs


def _number(side: DataFrame, names: tuple[str, ...], grids: Grids) -> Column:
    """Returns the number of a row's key among the hot keys; for other keys, a number larger than these."""
    slots = perfect(grids.keys, np.arange(grids.keys.size), grids.keys.size)
    return F.expr(slots.lookup(hashing(side, names)))


def _is_hot(side: DataFrame, names: tuple[str, ...], grids: Grids) -> Column:
    return _number(side, names, grids) < grids.keys.size


def _without_repeats(side: DataFrame, names: tuple[str, ...], grids: Grids) -> DataFrame:
    """Returns the keys of a side, each hot key only once."""
    keys, hot = side.select(*map(column, names)), _is_hot(side, names, grids)
    return keys.where(~hot).union(keys.where(hot).distinct())


def _marked(side: DataFrame, other: DataFrame, names: tuple[str, ...], grids: Grids, into: str) -> DataFrame:
    """Adds a column that says whether a row's key is hot and occurs on the other side, too.

    Such a row is copied, and one of its copies finds a match; the others must not come out. Keys are compared, not
    hashes: another key may have the hash of a hot one.
    """
    shared_keys = other.where(_is_hot(other, names, grids)).select(*map(column, names)).distinct()
    shared_keys = F.broadcast(shared_keys.select("*", F.lit(True).alias(into)))
    return side.join(shared_keys, list(names), "left").withColumn(into, F.coalesce(column(into), F.lit(False)))


def _routed_side(
    side: DataFrame, names: tuple[str, ...], grids: Grids, into: str, is_left: bool, matches: str | None = None
) -> DataFrame:
    """Sends the rows of a side to their workers; rows of a hot key go to all cells that they must be in."""
    # Columns: in an expression, each mention would look the key up again, and number its rows by itself.
    numbers, ordinals = unused(side, "number", "ordinal", besides=[into])
    number, ordinal, n_workers = quoted(numbers), quoted(ordinals), grids.table.n_workers
    hot, coin = f"{number} < {grids.keys.size}L", f"shiftrightunsigned(xxhash64({ordinal}), 32)"
    # Rows that match nothing are spread evenly: those with a NULL, and those of a hot key that only one side has.
    matchless = any_null(names)
    if matches is not None:
        matchless += f" OR ({hot} AND NOT {quoted(matches)})"
    workers = f"""CASE WHEN {matchless} THEN array(int(shiftrightunsigned({coin} * {n_workers}, 32)))
        WHEN {hot} THEN {_cells(grids, is_left, number, ordinal, coin)}
        ELSE array({worker_sql(grids.table, hashing(side, names))}) END"""
    helpers = _number(side, names, grids).alias(numbers), F.monotonically_increasing_id().alias(ordinals)
    rows = side.select("*", *helpers).select("*", F.explode(F.expr(workers)).alias(into)).drop(numbers, ordinals)
    return rows.repartitionById(n_workers, column(into))


def _cells(grids: Grids, is_left: bool, number: str, ordinal: str, coin: str) -> str:
    """Returns SQL for the workers that a row of a hot key must be on."""
    own, other = (grids.rows, grids.columns) if is_left else (grids.columns, grids.rows)
    mine = f"shiftrightunsigned({coin} * {element(own, number, 'bigint')}, 32)"
    width = element(other, number, "bigint")
    start = f"{element(grids.starts[:-1], number, 'bigint')} + {mine} * {width}"
    cells = f"slice({constant(grids.workers if is_left else grids.transposed)}, int({start} + 1), int({width}))"
    if grids.shares is None:
        return cells
    spread = f"array({fragment_sql(grids.shares, number, ordinal)})"
    return f"CASE WHEN {element(own, number, 'bigint')} > 1 THEN {spread} ELSE {cells} END"
