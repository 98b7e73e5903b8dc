"""Aggregates that can be split: partial results of a key's fragments, merged, then finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from skewless.arrays import require

State: TypeAlias = Mapping[str, Column]


@dataclass(frozen=True)
class Aggregate:
    """An aggregate in columns of Spark.

    partial: the state of some rows, by name, as aggregates of the rows.
    merge: the state of several states together, as aggregates of them.
    finish: the result, from the state.
    grows: the state is about as large as the rows, as in collecting them. Only then splitting a hot key pays: Spark
        combines other aggregates before it sends rows anywhere.

    >>> mean = Aggregate(                                                                        # doctest: +SKIP
    ...     partial=lambda: {"sum": F.sum("v"), "n": F.count("v")},
    ...     merge=lambda s: {"sum": F.sum(s["sum"]), "n": F.sum(s["n"])},
    ...     finish=lambda s: s["sum"] / s["n"],
    ... )
    """

    partial: Callable[[], State]
    merge: Callable[[State], State]
    finish: Callable[[State], Column]
    grows: bool = False


@dataclass(frozen=True)
class ArrowAggregate:
    """An aggregate in Python functions on Arrow tables; those of one key are split where it is hot, and merged.

    partial: rows of one key, some or all of them -> their state, a table by the schema `state`.
    merge: states of one key, one below the other -> the state of all, by the same schema. It is not called for a key
        with one state.
    finish: the state of a key -> its result, by the schema `output`; the columns of the key are put before it.
    """

    partial: Callable[[pa.Table], pa.Table]
    merge: Callable[[pa.Table], pa.Table]
    finish: Callable[[pa.Table], pa.Table]
    state: StructType | str
    output: StructType | str


def count(column: str | None = None) -> Aggregate:
    """The number of rows, or of those in which a column is not NULL."""
    return _folded(lambda: F.count(F.lit(1) if column is None else column), lambda n: F.coalesce(F.sum(n), F.lit(0)))


def sum(column: str) -> Aggregate:  # as in pyspark.sql.functions
    return _folded(lambda: F.sum(column), F.sum)


def min(column: str) -> Aggregate:
    return _folded(lambda: F.min(column), F.min)


def max(column: str) -> Aggregate:
    return _folded(lambda: F.max(column), F.max)


def mean(column: str) -> Aggregate:
    return Aggregate(
        lambda: {"sum": F.sum(column), "n": F.count(column)},
        lambda s: {"sum": F.sum(s["sum"]), "n": F.sum(s["n"])},
        lambda s: F.when(s["n"] > 0, s["sum"] / s["n"]),
    )


def collect_list(column: str) -> Aggregate:
    """All values in an array, in no order."""
    return Aggregate(
        lambda: {"values": F.collect_list(column)},
        lambda s: {"values": F.flatten(F.collect_list(s["values"]))},
        lambda s: s["values"],
        grows=True,
    )


def _folded(of_rows: Callable[[], Column], of_states: Callable[[Column], Column]) -> Aggregate:
    """An aggregate whose state is its result."""
    return Aggregate(lambda: {"value": of_rows()}, lambda s: {"value": of_states(s["value"])}, lambda s: s["value"])


def checked(aggregates: Mapping[str, Any]) -> None:
    require(bool(aggregates), "agg needs at least 1 aggregate, such as n=sl.count()")
    for name, aggregate in aggregates.items():
        fits = isinstance(aggregate, Aggregate)
        require(fits, f"{name} is an sl.Aggregate, such as sl.sum('v'), not {type(aggregate).__name__}")
