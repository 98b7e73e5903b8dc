"""Aggregates whose keys can be split: partial states of a key's fragments are merged, then finished."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from skewless.arguments import require, whole

PartialState: TypeAlias = Mapping[str, Column]


@dataclass(frozen=True)
class Aggregate:
    """An aggregate in Spark's own expressions, whose state has one or more named columns.

    partial: returns the state of some rows: for each name, an aggregate of the rows.
    merge: takes the columns of several states; returns for each name an aggregate of them, which is the merged state.
    finish: takes the columns of a state; returns the result.
    grows: whether the state is about as large as the rows, as in collecting them. Only then splitting a hot key pays:
        Spark combines other aggregates before it sends rows anywhere.
    inverse: takes the columns of a state; returns a state that cancels it when both are merged. Sliding windows use it
        where all columns are whole numbers or decimals.
    whole: returns the result of rows that need no merging, if Spark can compute it without the state. By default
        the result is what `finish` makes of `partial`.

    >>> mean = sl.Aggregate(                                                                     # doctest: +SKIP
    ...     partial=lambda: {"sum": F.sum("v"), "n": F.count("v")},
    ...     merge=lambda s: {"sum": F.sum(s["sum"]), "n": F.sum(s["n"])},
    ...     finish=lambda s: s["sum"] / s["n"],
    ... )
    >>> sl.group_by(df, "user").agg(mean=mean)                                                   # doctest: +SKIP
    """

    partial: Callable[[], PartialState]
    merge: Callable[[PartialState], PartialState]
    finish: Callable[[PartialState], Column]
    grows: bool = False
    inverse: Callable[[PartialState], PartialState] | None = None
    whole: Callable[[], Column] | None = None


@dataclass(frozen=True)
class ArrowAggregate:
    """An aggregate in Python functions on Arrow tables. A hot key's rows are split, and their states merged.

    partial: takes some or all rows of one key; returns their state, a table with the schema `state`.
    merge: takes states of one key, one below the other; returns the state of all. Not called for a single state.
    finish: takes the state of a key; returns its result with the schema `output`. The key's columns are put before it.
    state, output: schemas, as StructTypes or DDL strings such as "s long".

    >>> total = sl.ArrowAggregate(                                                               # doctest: +SKIP
    ...     partial=lambda rows: pa.table({"s": [pc.sum(rows["v"])]}),
    ...     merge=lambda states: pa.table({"s": [pc.sum(states["s"])]}),
    ...     finish=lambda state: state,
    ...     state="s long",
    ...     output="s long",
    ... )
    >>> sl.group_by(df, "user").agg(total)                                                       # doctest: +SKIP
    """

    partial: Callable[[pa.Table], pa.Table]
    merge: Callable[[pa.Table], pa.Table]
    finish: Callable[[pa.Table], pa.Table]
    state: StructType | str
    output: StructType | str


def count(column: str | None = None) -> Aggregate:
    """Counts rows.

    column: count only rows in which this column is not NULL.

    >>> sl.group_by(df, "user").agg(n=sl.count())  # doctest: +SKIP
    """
    return Aggregate(
        lambda: {"n": F.count(F.lit(1) if column is None else column)},
        lambda s: {"n": F.coalesce(F.sum(s["n"]), F.lit(0))},
        lambda s: s["n"],
        inverse=_negative,
    )


def sum(column: str) -> Aggregate:  # as in pyspark.sql.functions
    """Sums up a column; NULL if it has no value.

    column: its name.

    >>> sl.group_by(df, "user").agg(spent=sl.sum("price"))  # doctest: +SKIP
    """
    return Aggregate(
        lambda: {"sum": F.sum(column), "n": F.count(column)},
        lambda s: {"sum": F.sum(s["sum"]), "n": F.sum(s["n"])},
        lambda s: F.when(s["n"] > 0, s["sum"]),
        inverse=_negative,
        whole=lambda: F.sum(column),
    )


def min(column: str) -> Aggregate:
    """Returns the least value of a column.

    column: its name.

    >>> sl.group_by(df, "user").agg(first=sl.min("ts"))  # doctest: +SKIP
    """
    return _folded(lambda: F.min(column), F.min)


def max(column: str) -> Aggregate:
    """Returns the greatest value of a column.

    column: its name.

    >>> sl.group_by(df, "user").agg(last=sl.max("ts"))  # doctest: +SKIP
    """
    return _folded(lambda: F.max(column), F.max)


def mean(column: str) -> Aggregate:
    """Returns the mean of a column; NULL if it has no value.

    column: its name.

    >>> sl.group_by(df, "user").agg(price=sl.mean("price"))  # doctest: +SKIP
    """
    return replace(sum(column), finish=lambda s: F.when(s["n"] > 0, s["sum"] / s["n"]), whole=None)


def variance(column: str) -> Aggregate:
    """Returns the variance of a sample, as Spark's var_samp: NULL for fewer than two values.

    column: its name.

    >>> sl.group_by(df, "user").agg(spread=sl.variance("price"))  # doctest: +SKIP
    """
    spread = "array<struct<n:double,mean:double,squares:double>>"

    def together(states: Column) -> Column:
        """Merges states by Chan's rule, which does not lose digits where the mean is large."""

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
    """Estimates the number of different values, by HyperLogLog sketches.

    column: its name.

    >>> sl.group_by(df, "user").agg(pages=sl.approx_count_distinct("page"))  # doctest: +SKIP
    """
    return Aggregate(
        lambda: {"sketch": F.hll_sketch_agg(column)},
        lambda s: {"sketch": F.hll_union_agg(s["sketch"])},
        lambda s: F.coalesce(F.hll_sketch_estimate(s["sketch"]), F.lit(0).cast("bigint")),
    )


def approx_quantile(column: str, share: float) -> Aggregate:
    """Estimates the value below which a share of the values lies, as a double, by KLL sketches.

    column: its name.
    share: between 0 and 1; 0.5 is the median.

    >>> sl.group_by(df, "user").agg(median=sl.approx_quantile("price", 0.5))  # doctest: +SKIP
    """
    require(0 <= share <= 1, f"share is between 0 and 1, not {share}")
    return Aggregate(
        lambda: {"sketch": F.kll_sketch_agg_double(F.col(column).cast("double"))},
        lambda s: {"sketch": F.kll_merge_agg_double(s["sketch"])},
        lambda s: F.when(
            F.kll_sketch_get_n_double(s["sketch"]) > 0, F.kll_sketch_get_quantile_double(s["sketch"], F.lit(share))
        ),
    )


def approx_top_k(column: str, k: int = 5) -> Aggregate:
    """Estimates the k most frequent values with their counts, as an array of (item, count).

    column: its name.
    k: how many values.

    >>> sl.group_by(df, "user").agg(top=sl.approx_top_k("page", k=3))  # doctest: +SKIP
    """
    k = whole("k", k, 1, 100_000)
    tracked = 1 << (16 * k - 1).bit_length() if 16 * k > 10_000 else 10_000
    return Aggregate(
        lambda: {"sketch": F.call_function("approx_top_k_accumulate", F.col(column), F.lit(tracked))},
        lambda s: {"sketch": F.call_function("approx_top_k_combine", s["sketch"], F.lit(tracked))},
        lambda s: F.call_function("approx_top_k_estimate", s["sketch"], F.lit(k)),
    )


def collect_list(column: str) -> Aggregate:
    """Collects all values in an array, in no particular order.

    column: its name.

    >>> sl.group_by(df, "user").agg(pages=sl.collect_list("page"))  # doctest: +SKIP
    """
    return Aggregate(
        lambda: {"values": F.collect_list(column)},
        lambda s: {"values": F.flatten(F.collect_list(s["values"]))},
        lambda s: s["values"],
        grows=True,
    )


def _folded(of_rows: Callable[[], Column], of_states: Callable[[Column], Column]) -> Aggregate:
    """Returns an aggregate whose state is its result."""
    return Aggregate(lambda: {"value": of_rows()}, lambda s: {"value": of_states(s["value"])}, lambda s: s["value"])


def _negative(state: PartialState) -> PartialState:
    return {name: -value for name, value in state.items()}


def _spread(n: Column, mean: Column, squares: Column) -> Column:
    return F.struct(n.alias("n"), mean.alias("mean"), squares.alias("squares"))


def checked(aggregates: Mapping[str, Any]) -> None:
    """Refuses to compute no aggregates, or anything but aggregates."""
    require(bool(aggregates), "agg needs at least 1 aggregate, such as n=sl.count()")
    for name, aggregate in aggregates.items():
        fits = isinstance(aggregate, Aggregate)
        require(fits, f"{name} must be an sl.Aggregate, such as sl.sum('v'), not {type(aggregate).__name__}")
