"""Rows by key: grouped Python functions on whole keys, and aggregates for which hot keys are split."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import StructType

from skewless.arrays import require
from skewless.spark.aggregate import Aggregate, ArrowAggregate
from skewless.spark.batch import WORKER, Placing, placed, routed
from skewless.spark.exact import Exact, Sourced
from skewless.spark.fold import fold_of
from skewless.spark.haste import hastened
from skewless.spark.keys import fields_of, quoted, unused
from skewless.table import RoutingTable


@dataclass(frozen=True)
class Grouped:
    """Rows by key, on balanced workers; what `group_by` gives. Its methods are those of PySpark's GroupedData."""

    df: DataFrame
    keys: tuple[str, ...]
    n_workers: int | None
    partitioner: Placing | Exact
    sample: float | None = None

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """func gets all rows of a key as a pandas frame, or (key, rows), once; an iterator if its type hints say so."""
        rows, name = self._whole()
        call = func if name is None else _keyed(func, _frames_without(name))
        return rows.groupBy(*self._by_key(name)).applyInPandas(call, schema)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """func gets all rows of a key as an Arrow table, or (key, rows), once; an iterator if its type hints say so."""
        rows, name = self._whole()
        call = func if name is None else _keyed(func, _tables_without(name))
        return rows.groupBy(*self._by_key(name)).applyInArrow(call, schema)

    def cogroup(self, other: Grouped) -> Cogrouped:
        """Rows of two DataFrames by the same key, side by side."""
        kinds = [[field.dataType for field in fields_of(side.df, side.keys)] for side in (self, other)]
        require(kinds[0] == kinds[1], f"keys that are cogrouped have the same types, not {kinds[0]} and {kinds[1]}")
        return Cogrouped(self, other)

    def agg(self, *in_arrow: ArrowAggregate, **aggregates: Aggregate) -> DataFrame:
        """One row a key: its columns, and the aggregates by their names; or those of one ArrowAggregate.

        Hot keys are split where that pays, and their parts merged. Aggregates of which no state grows are left to
        Spark, which combines them before it sends rows anywhere.
        """
        fold = fold_of(self.keys, in_arrow, aggregates)
        if not fold.grows:
            return fold.direct(self.df, self.keys)
        native, placing = not in_arrow, (self.partitioner, self.n_workers)
        by = placed(self.df, self.keys, *placing, sample=self.sample, split=True, native=native)
        if by is None:
            return fold.direct(self.df, self.keys)
        (name,) = unused(self.df, WORKER)
        rows = routed(self.df, self.keys, by, name)
        if not by.splits_keys:
            return fold.direct(rows, [*self.keys, name], [name]).drop(name)
        return fold.concluded(fold.partial(rows, [*self.keys, name], [name]), self.keys, fold.schema(self.df))

    def _whole(self) -> tuple[DataFrame, str | None]:
        """The rows on their workers, every key whole, and the name of the column that says where, if there is one."""
        return self._routed(placed(self.df, self.keys, self.partitioner, self.n_workers, sample=self.sample))

    def _routed(self, by: RoutingTable | Sourced | None) -> tuple[DataFrame, str | None]:
        if by is None:
            return self.df, None
        (name,) = unused(self.df, WORKER)
        return routed(self.df, self.keys, by, name), name

    def _by_key(self, name: str | None) -> list[str]:
        return [quoted(each) for each in (name, *self.keys) if each is not None]


@dataclass(frozen=True)
class Cogrouped:
    """Rows of two DataFrames by key; both are routed by one table, so that equal keys meet."""

    left: Grouped
    right: Grouped

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """func gets all rows of a key from both sides as pandas frames, or (key, left, right)."""
        groups, names = self._routed()
        call = _keyed_pair(func, *map(_frames_without, names)) if names else func
        return groups[0].cogroup(groups[1]).applyInPandas(call, schema)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """func gets all rows of a key from both sides as Arrow tables, or (key, left, right)."""
        groups, names = self._routed()
        call = _keyed_pair(func, *map(_tables_without, names)) if names else func
        return groups[0].cogroup(groups[1]).applyInArrow(call, schema)

    def _routed(self) -> tuple[list[GroupedData], list[str]]:
        """The groups of both sides, and the names of our columns in them, if there are any."""
        first, beside = self.left, (self.right.df, self.right.keys)
        by = placed(first.df, first.keys, first.partitioner, first.n_workers, sample=first.sample, beside=beside)
        groups, names = [], []
        for side in (self.left, self.right):
            rows, name = side._routed(by)
            groups.append(rows.groupBy(*side._by_key(name)))
            names += [name] if name else []
        return groups, names


def group_by(
    df: DataFrame,
    *keys: str,
    n_workers: int | None = None,
    partitioner: Placing | Exact = "auto",
    sample: float | None = None,
) -> Grouped:
    """Rows by key, on balanced workers.

    keys: columns, of any types that Spark groups by.
    n_workers: how many partitions; by default as many as Spark runs tasks at a time, or more for much data. Then
        less than 1 MiB is left to Spark (64 MiB if it is its own work, not Python's): say how many if each row is much
        work.
    partitioner: a name, an instance, a RoutingTable or an Exact; by default what costs least.
    sample: the share of rows to look at first, to plan by; by default all of little data, a small portion of much.
    """
    fields_of(df, keys)
    return Grouped(df, keys, n_workers, partitioner, sample)


# What follows makes functions that run in Python workers. Spark pickles those inside others by value, so that they need
# pyarrow there, but not this library.


def _frames_without(name: str) -> Callable[[Any], Any]:
    def without(frame: Any) -> Any:
        del frame[name]  # it is ours alone; a copy without the column takes ten times as long
        return frame

    return without


def _tables_without(name: str) -> Callable[[Any], Any]:
    def without(table: Any) -> Any:
        return table.drop_columns([name])

    return without


def _keyed(func: Callable[..., Any], without: Callable[[Any], Any]) -> Callable[[tuple[Any, ...], Any], Any]:
    """The user's function without our column, which is the first of the key and one of the rows."""
    takes_key = len(inspect.signature(func).parameters) == 2

    def call(key: tuple[Any, ...], rows: Any) -> Any:
        own = map(without, rows) if hasattr(rows, "__next__") else without(rows)
        return func(key[1:], own) if takes_key else func(own)

    call.__name__ = getattr(func, "__name__", "call")  # plans and errors name it
    call.__annotations__ = _hints(func)
    return hastened(call)


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of the user's function for one of (key, rows): they tell Spark whether it takes iterators."""
    try:
        hints = get_type_hints(func)
    except (NameError, TypeError):  # of names that are not there, or of no function
        return {}
    names = [*inspect.signature(func).parameters, "return"]
    is_complete = all(name in hints for name in names)
    return {"key": tuple, "rows": hints[names[-2]], "return": hints["return"]} if is_complete else {}


def _keyed_pair(
    func: Callable[..., Any], of_left: Callable[[Any], Any], of_right: Callable[[Any], Any]
) -> Callable[[tuple[Any, ...], Any, Any], Any]:
    """The same for a function of two sides."""
    takes_key = len(inspect.signature(func).parameters) == 3

    def call(key: tuple[Any, ...], left: Any, right: Any) -> Any:
        sides = of_left(left), of_right(right)
        return func(key[1:], *sides) if takes_key else func(*sides)

    call.__name__ = getattr(func, "__name__", "call")
    return hastened(call)
