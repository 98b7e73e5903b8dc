"""Rows by key: grouped Python functions on whole keys, and aggregates for which hot keys are split."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.types import IntegerType, StructField, StructType

from skewless.arrays import require
from skewless.spark.aggregate import Aggregate, ArrowAggregate, State, checked
from skewless.spark.batch import WORKER, Placing, placed, routed, whole_keys
from skewless.spark.keys import column, fields_of, unused


@dataclass(frozen=True)
class Grouped:
    """Rows by key, on balanced workers; what `group_by` gives. Its methods are those of PySpark's GroupedData."""

    df: DataFrame
    keys: tuple[str, ...]
    n_workers: int | None
    partitioner: Placing

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """func gets all rows of a key as a pandas frame, or (key, rows), once for each key."""
        rows, name = whole_keys(self.df, self.keys, self.partitioner, self.n_workers)
        call = _keyed(func, lambda rows: rows.drop(columns=name))
        return rows.groupBy(column(name), *self._by_key()).applyInPandas(call, schema)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """func gets all rows of a key as an Arrow table, or (key, rows), once for each key."""
        rows, name = whole_keys(self.df, self.keys, self.partitioner, self.n_workers)
        call = _keyed(func, lambda rows: rows.drop_columns([name]))
        return rows.groupBy(column(name), *self._by_key()).applyInArrow(call, schema)

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
        if in_arrow:
            alone = len(in_arrow) == 1 and not aggregates
            require(alone, "an ArrowAggregate stands alone: it may have several columns")
            return self._in_arrow(in_arrow[0])
        checked(aggregates)
        taken = sorted(set(aggregates) & set(self.keys))
        require(not taken, f"{', '.join(taken)} is a column of the key already")
        partial = {into: aggregate.partial() for into, aggregate in aggregates.items()}
        states = {into: {name: column(_state(into, name)) for name in state} for into, state in partial.items()}
        if not any(aggregate.grows for aggregate in aggregates.values()):
            rows = self.df.groupBy(*self._by_key()).agg(*_columns(partial))
        else:
            by = placed(self.df, self.keys, self.partitioner, self.n_workers, split=True)
            (name,) = unused(self.df, WORKER)
            rows = routed(self.df, self.keys, by, name)
            rows = rows.groupBy(column(name), *self._by_key()).agg(*_columns(partial))
            if by.splits_keys:
                merged = {into: aggregate.merge(states[into]) for into, aggregate in aggregates.items()}
                rows = rows.groupBy(*self._by_key()).agg(*_columns(merged))
        results = [aggregate.finish(states[into]).alias(into) for into, aggregate in aggregates.items()]
        return rows.select(*self._by_key(), *results)

    def _in_arrow(self, aggregate: ArrowAggregate) -> DataFrame:
        by = placed(self.df, self.keys, self.partitioner, self.n_workers, split=True)
        (name,) = unused(self.df, WORKER)
        groups = routed(self.df, self.keys, by, name).groupBy(column(name), *self._by_key())
        key = fields_of(self.df, self.keys)
        of_worker = StructField(name, IntegerType())
        output = StructType([*key, *_schema(aggregate.output).fields])
        if not by.splits_keys:
            return groups.applyInArrow(_whole(aggregate, self.keys, name), output)
        state = StructType([*key, of_worker, *_schema(aggregate.state).fields])
        partial = groups.applyInArrow(_partial(aggregate, self.keys, name), state)
        return partial.groupBy(*self._by_key()).applyInArrow(_merged(aggregate, self.keys, name), output)

    def _by_key(self) -> list[Column]:
        return [column(key) for key in self.keys]


@dataclass(frozen=True)
class Cogrouped:
    """Rows of two DataFrames by key; both are routed by one table, so that equal keys meet."""

    left: Grouped
    right: Grouped

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """func gets all rows of a key from both sides as pandas frames, or (key, left, right)."""
        left, right, names = self._routed()
        drops = [lambda rows, name=name: rows.drop(columns=name) for name in names]
        return left.cogroup(right).applyInPandas(_keyed_pair(func, *drops), schema)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """func gets all rows of a key from both sides as Arrow tables, or (key, left, right)."""
        left, right, names = self._routed()
        drops = [lambda rows, name=name: rows.drop_columns([name]) for name in names]
        return left.cogroup(right).applyInArrow(_keyed_pair(func, *drops), schema)

    def _routed(self) -> tuple[GroupedData, GroupedData, list[str]]:
        first = self.left
        beside = (self.right.df, self.right.keys)
        by = placed(first.df, first.keys, first.partitioner, first.n_workers, beside=beside)
        groups, names = [], []
        for side in (self.left, self.right):
            (name,) = unused(side.df, WORKER)
            rows = routed(side.df, side.keys, by, name)
            groups.append(rows.groupBy(column(name), *(column(key) for key in side.keys)))
            names.append(name)
        return groups[0], groups[1], names


def group_by(df: DataFrame, *keys: str, n_workers: int | None = None, partitioner: Placing = "auto") -> Grouped:
    """Rows by key, on balanced workers.

    keys: columns, of any types that Spark groups by.
    n_workers: how many partitions; by default the session's shuffle partitions.
    partitioner: a name, an instance, a RoutingTable or an Exact; by default what costs least.
    """
    fields_of(df, keys)
    return Grouped(df, keys, n_workers, partitioner)


def _state(into: str, name: str) -> str:
    return f"{into} {name}"


def _columns(states: Mapping[str, State]) -> list[Column]:
    return [value.alias(_state(into, name)) for into, state in states.items() for name, value in state.items()]


def _schema(given: StructType | str) -> StructType:
    schema = StructType.fromDDL(given) if isinstance(given, str) else given
    require(isinstance(schema, StructType), f"a schema names its columns, such as 'n long', not {given!r}")
    return cast(StructType, schema)


# What follows makes functions that run in Python workers. Spark pickles those inside others by value, so that they need
# pyarrow there, but not this library.


def _keyed(func: Callable[..., Any], without: Callable[[Any], Any]) -> Callable[[tuple[Any, ...], Any], Any]:
    """The user's function without our column, which is the first of the key and one of the rows."""
    takes_key = len(inspect.signature(func).parameters) == 2

    def call(key: tuple[Any, ...], rows: Any) -> Any:
        return func(key[1:], without(rows)) if takes_key else func(without(rows))

    call.__name__ = getattr(func, "__name__", "call")  # plans and errors name it
    return call


def _keyed_pair(
    func: Callable[..., Any], of_left: Callable[[Any], Any], of_right: Callable[[Any], Any]
) -> Callable[[tuple[Any, ...], Any, Any], Any]:
    """The same for a function of two sides."""
    takes_key = len(inspect.signature(func).parameters) == 3

    def call(key: tuple[Any, ...], left: Any, right: Any) -> Any:
        sides = of_left(left), of_right(right)
        return func(key[1:], *sides) if takes_key else func(*sides)

    call.__name__ = getattr(func, "__name__", "call")
    return call


def _partial(aggregate: ArrowAggregate, keys: tuple[str, ...], worker: str) -> Callable[[pa.Table], pa.Table]:
    """Rows of a key on one worker -> their state, with the key and the worker before it."""
    of_rows, before = aggregate.partial, _before()

    def call(rows: pa.Table) -> pa.Table:
        return before(rows, [*keys, worker], of_rows(rows.drop_columns([worker])))

    return call


def _merged(aggregate: ArrowAggregate, keys: tuple[str, ...], worker: str) -> Callable[[pa.Table], pa.Table]:
    """States of a key -> its result, with the key before it."""
    merge, finish, before = aggregate.merge, aggregate.finish, _before()

    def call(states: pa.Table) -> pa.Table:
        bare = states.drop_columns([*keys, worker])
        split = pc.count_distinct(states[worker]).as_py() > 1
        return before(states, list(keys), finish(merge(bare) if split else bare))

    return call


def _whole(aggregate: ArrowAggregate, keys: tuple[str, ...], worker: str) -> Callable[[pa.Table], pa.Table]:
    """All rows of a key -> its result, with the key before it."""
    of_rows, finish, before = aggregate.partial, aggregate.finish, _before()

    def call(rows: pa.Table) -> pa.Table:
        return before(rows, list(keys), finish(of_rows(rows.drop_columns([worker]))))

    return call


def _before() -> Callable[[pa.Table, list[str], pa.Table], pa.Table]:
    def before(rows: pa.Table, names: list[str], result: pa.Table) -> pa.Table:
        """The result, with columns that are the same in all rows put before it."""
        constant = rows.select(names).take([0] * result.num_rows)
        for name in result.column_names:
            constant = constant.append_column(name, result[name])
        return constant

    return before
