"""Aggregates that can be split: partial results of a key's fragments, merged, then finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from skewless.arrays import require, whole

State: TypeAlias = Mapping[str, Column]


@dataclass(frozen=True)
class Aggregate:
    """An aggregate in columns of Spark.

    partial: the state of some rows, by name, as aggregates of the rows.
    merge: the state of several states together, as aggregates of them.
    finish: the result, from the state.
    grows: the state is about as large as the rows, as in collecting them. Only then splitting a hot key pays: Spark
        combines other aggregates before it sends rows anywhere.
    inverse: the state that takes a state away again when both are merged; used where its types are exact.
    whole: the result of rows that need no merging, if it is simpler than by the state.

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
    inverse: Callable[[State], State] | None = None
    whole: Callable[[], Column] | None = None


@dataclass(frozen=True)
class ArrowAggregate:
    """An aggregate in Python functions on Arrow tables; those of one key are split where it is hot, and merged.

    partial: rows of one key, some or all of them -> their state, a table by the schema `state`.
    merge: states of one key, one below the other -> the state of all, by the same schema. It is not called for a
        single row.
    finish: the state of a key -> its result, by the schema `output`; the columns of the key are put before it.
    """

    partial: Callable[[pa.Table], pa.Table]
    merge: Callable[[pa.Table], pa.Table]
    finish: Callable[[pa.Table], pa.Table]
    state: StructType | str
    output: StructType | str


def count(column: str | None = None) -> Aggregate:
    """The number of rows, or of those in which a column is not NULL."""
    return Aggregate(
        lambda: {"n": F.count(F.lit(1) if column is None else column)},
        lambda s: {"n": F.coalesce(F.sum(s["n"]), F.lit(0))},
        lambda s: s["n"],
        inverse=_negative,
    )


def sum(column: str) -> Aggregate:  # as in pyspark.sql.functions
    return Aggregate(
        lambda: {"sum": F.sum(column), "n": F.count(column)},
        lambda s: {"sum": F.sum(s["sum"]), "n": F.sum(s["n"])},
        lambda s: F.when(s["n"] > 0, s["sum"]),
        inverse=_negative,
        whole=lambda: F.sum(column),
    )


def min(column: str) -> Aggregate:
    return _folded(lambda: F.min(column), F.min)


def max(column: str) -> Aggregate:
    return _folded(lambda: F.max(column), F.max)


def mean(column: str) -> Aggregate:
    return replace(sum(column), finish=lambda s: F.when(s["n"] > 0, s["sum"] / s["n"]), whole=None)


def variance(column: str) -> Aggregate:
    """The variance of a sample, as Spark's own: NULL for no value, or one."""
    spread = "array<struct<n:double,mean:double,squares:double>>"

    def together(states: Column) -> Column:
        """One state of several, by Chan's rule, which does not lose digits where the mean is large."""

        def both(a: Column, b: Column) -> Column:
            n, apart = a["n"] + b["n"], b["mean"] - a["mean"]
            squares = a["squares"] + b["squares"] + apart * apart * a["n"] * b["n"] / n
            return _spread(n, a["mean"] + apart * b["n"] / n, squares)

        nothing = _spread(F.lit(0.0), F.lit(0.0), F.lit(0.0))
        return F.aggregate(F.filter(states, lambda s: s["n"] > 0), nothing, both)

    return Aggregate(
        lambda: {
            "spread": _spread(
                F.count(column).cast("double"),
                F.coalesce(F.avg(F.col(column).cast("double")), F.lit(0.0)),
                F.coalesce(F.var_pop(column) * F.count(column), F.lit(0.0)),
            )
        },
        lambda s: {"spread": together(F.collect_list(s["spread"]).cast(spread))},
        lambda s: F.when(s["spread"]["n"] > 1, s["spread"]["squares"] / (s["spread"]["n"] - 1)),
        whole=lambda: F.var_samp(column),
    )


def approx_count_distinct(column: str) -> Aggregate:
    """About how many different values there are, by HyperLogLog sketches."""
    return Aggregate(
        lambda: {"sketch": F.hll_sketch_agg(column)},
        lambda s: {"sketch": F.hll_union_agg(s["sketch"])},
        lambda s: F.coalesce(F.hll_sketch_estimate(s["sketch"]), F.lit(0).cast("bigint")),
    )


def approx_quantile(column: str, share: float) -> Aggregate:
    """The value below which about this share of the values lies, as a double, by KLL sketches."""
    require(0 <= share <= 1, f"a quantile is between 0 and 1, not {share}")
    return Aggregate(
        lambda: {"sketch": F.kll_sketch_agg_double(F.col(column).cast("double"))},
        lambda s: {"sketch": F.kll_merge_agg_double(s["sketch"])},
        lambda s: F.when(
            F.kll_sketch_get_n_double(s["sketch"]) > 0, F.kll_sketch_get_quantile_double(s["sketch"], F.lit(share))
        ),
    )


def approx_top_k(column: str, k: int = 5) -> Aggregate:
    """The k most frequent values with their counts, about, as an array of (item, count)."""
    k = whole("k", k, 1, 100_000)
    tracked = 1 << (16 * k - 1).bit_length() if 16 * k > 10_000 else 10_000
    return Aggregate(
        lambda: {"sketch": F.call_function("approx_top_k_accumulate", F.col(column), F.lit(tracked))},
        lambda s: {"sketch": F.call_function("approx_top_k_combine", s["sketch"], F.lit(tracked))},
        lambda s: F.call_function("approx_top_k_estimate", s["sketch"], F.lit(k)),
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


def _negative(state: State) -> State:
    return {name: -value for name, value in state.items()}


def _spread(n: Column, mean: Column, squares: Column) -> Column:
    return F.struct(n.alias("n"), mean.alias("mean"), squares.alias("squares"))


def checked(aggregates: Mapping[str, Any]) -> None:
    require(bool(aggregates), "agg needs at least 1 aggregate, such as n=sl.count()")
    for name, aggregate in aggregates.items():
        fits = isinstance(aggregate, Aggregate)
        require(fits, f"{name} is an sl.Aggregate, such as sl.sum('v'), not {type(aggregate).__name__}")
