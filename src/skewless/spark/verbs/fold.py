"""Runs aggregates in steps: partial states of rows, merged states, results; in columns, or in Python on Arrow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, IntegralType, StructType

from skewless.arguments import require
from skewless.spark.keys import column, fields_of, ordered, quoted, unused
from skewless.spark.schema import arrow_schema, nullable, schema_of
from skewless.spark.task_startup import quick_start
from skewless.spark.verbs.aggregate import Aggregate, ArrowAggregate, PartialState, checked, count


class Fold(ABC):
    """The aggregates of a verb, in steps: rows become states, states are merged, and merged states give results.

    Each step works on groups: `by` are the columns that rows or states are grouped by, which come first in its result.
    """

    @property
    @abstractmethod
    def grows(self) -> bool:
        """Whether states become larger with the number of rows, so that Spark cannot combine them before a shuffle."""

    @abstractmethod
    def schema(self, rows: DataFrame) -> StructType:
        """Returns the schema of states."""

    @abstractmethod
    def output(self, rows: DataFrame) -> StructType:
        """Returns the schema of results."""

    @abstractmethod
    def partial(self, rows: DataFrame, by: Sequence[str], hidden: Sequence[str] = ()) -> DataFrame:
        """Returns one state for each group of rows.

        hidden: our own columns, which the user's functions do not see.
        """

    @abstractmethod
    def merged(self, states: DataFrame, by: Sequence[str], schema: StructType) -> DataFrame:
        """Merges the states of each group into one.

        schema: of states.
        """

    @abstractmethod
    def concluded(self, states: DataFrame, by: Sequence[str], schema: StructType) -> DataFrame:
        """Returns the result of each group, which may have several states; schema: of states."""

    @abstractmethod
    def direct(self, rows: DataFrame, by: Sequence[str], hidden: Sequence[str] = ()) -> DataFrame:
        """Returns the result of each group, all of whose rows are together; hidden: as for `partial`."""

    @abstractmethod
    def describe(self) -> str:
        """Describes the aggregates; a query refuses a checkpoint with another description."""

    def invertible(self, schema: StructType) -> bool:
        """Returns whether states can be subtracted exactly; only then is there an `inverse`."""
        return False

    def counted(self) -> Fold:
        """Adds a count of rows: without it a group from which everything was subtracted would seem to be there."""
        return self

    def inverse(self, states: DataFrame) -> DataFrame:
        """Returns states that cancel these when they are merged."""
        raise TypeError("this fold has no inverse")

    def present(self, states: DataFrame) -> DataFrame:
        """Returns the states that still have rows: of the others, everything was subtracted."""
        return states


@dataclass(frozen=True)
class InColumns(Fold):
    """Aggregates in columns of Spark, by their names."""

    aggregates: Mapping[str, Aggregate]

    @property
    def grows(self) -> bool:
        return any(aggregate.grows for aggregate in self.aggregates.values())

    def schema(self, rows: DataFrame) -> StructType:
        return nullable(rows.agg(*self._partial()).schema)  # after merging, Spark is not sure that there is no NULL

    def output(self, rows: DataFrame) -> StructType:
        return rows.agg(*self._partial()).select(*self._results()).schema

    def partial(self, rows: DataFrame, by: Sequence[str], hidden: Sequence[str] = ()) -> DataFrame:
        return rows.groupBy(*map(quoted, by)).agg(*self._partial())

    def merged(self, states: DataFrame, by: Sequence[str], schema: StructType) -> DataFrame:
        merged = {into: aggregate.merge(self._state(into)) for into, aggregate in self.aggregates.items()}
        # To Spark, sums of sums are wider decimals; a state keeps its type, however often it is merged.
        kinds = {field.name: field.dataType for field in schema.fields}
        return states.groupBy(*map(quoted, by)).agg(
            *(value.cast(kinds[name]).alias(name) for name, value in _named(merged))
        )

    def concluded(self, states: DataFrame, by: Sequence[str], schema: StructType) -> DataFrame:
        return self.merged(states, by, schema).select(*map(column, by), *self._results())

    def direct(self, rows: DataFrame, by: Sequence[str], hidden: Sequence[str] = ()) -> DataFrame:
        results = {into: _whole(aggregate) for into, aggregate in self.aggregates.items()}
        return rows.groupBy(*map(quoted, by)).agg(*(result.alias(into) for into, result in results.items()))

    def invertible(self, schema: StructType) -> bool:
        exact = all(isinstance(field.dataType, (IntegralType, DecimalType)) for field in schema.fields)
        return exact and all(aggregate.inverse for aggregate in self.aggregates.values())

    def counted(self) -> InColumns:
        return InColumns({**self.aggregates, _ROWS: count()})

    def inverse(self, states: DataFrame) -> DataFrame:
        taken = {
            into: aggregate.inverse(self._state(into))
            for into, aggregate in self.aggregates.items()
            if aggregate.inverse is not None
        }
        return states.withColumns(dict(_named(taken)))

    def present(self, states: DataFrame) -> DataFrame:
        return states.where(self._state(_ROWS)["n"] > 0)

    def describe(self) -> str:
        return "; ".join(f"{name} = {expression}" for name, expression in _named(self._states()))

    def _states(self) -> dict[str, PartialState]:
        return {into: aggregate.partial() for into, aggregate in self.aggregates.items()}

    def _partial(self) -> list[Column]:
        return [value.alias(name) for name, value in _named(self._states())]

    def _state(self, into: str) -> PartialState:
        return {name: column(_name(into, name)) for name in self.aggregates[into].partial()}

    def _results(self) -> list[Column]:
        shown = {into: aggregate for into, aggregate in self.aggregates.items() if into != _ROWS}
        return [aggregate.finish(self._state(into)).alias(into) for into, aggregate in shown.items()]


_ROWS = "rows of group"


def _whole(aggregate: Aggregate) -> Column:
    return aggregate.finish(aggregate.partial()) if aggregate.whole is None else aggregate.whole()


@dataclass(frozen=True)
class InArrow(Fold):
    """One aggregate in Python functions on Arrow tables, which run once for each group."""

    aggregate: ArrowAggregate

    @property
    def grows(self) -> bool:
        return True

    def schema(self, rows: DataFrame) -> StructType:
        return schema_of(self.aggregate.state)

    def output(self, rows: DataFrame) -> StructType:
        return schema_of(self.aggregate.output)

    def partial(self, rows: DataFrame, by: Sequence[str], hidden: Sequence[str] = ()) -> DataFrame:
        return _grouped(rows, by, hidden, self.aggregate.partial, schema_of(self.aggregate.state))

    def merged(self, states: DataFrame, by: Sequence[str], schema: StructType) -> DataFrame:
        others = [name for name in states.columns if name not in schema.names]
        return _grouped(states, by, others, _unless_alone(self.aggregate.merge), schema)

    def concluded(self, states: DataFrame, by: Sequence[str], schema: StructType) -> DataFrame:
        others = [name for name in states.columns if name not in schema.names]
        conclude = _then(_unless_alone(self.aggregate.merge), self.aggregate.finish)
        return _grouped(states, by, others, conclude, schema_of(self.aggregate.output))

    def direct(self, rows: DataFrame, by: Sequence[str], hidden: Sequence[str] = ()) -> DataFrame:
        whole = _then(self.aggregate.partial, self.aggregate.finish)
        return _grouped(rows, by, hidden, whole, schema_of(self.aggregate.output))

    def describe(self) -> str:
        names = [getattr(step, "__qualname__", "a function") for step in (self.aggregate.partial, self.aggregate.merge)]
        return f"{' and '.join(names)} to {schema_of(self.aggregate.state).simpleString()}"


def fold_of(keys: Sequence[str], in_arrow: Sequence[ArrowAggregate], aggregates: Mapping[str, Aggregate]) -> Fold:
    """Returns the fold of a user's aggregates: several by name, or one on Arrow tables."""
    if in_arrow:
        alone = len(in_arrow) == 1 and not aggregates
        require(alone, "agg takes one ArrowAggregate and nothing else: its result may have several columns")
        fits = isinstance(in_arrow[0], ArrowAggregate)
        require(fits, f"agg takes an sl.ArrowAggregate or names, such as n=sl.count(), not {in_arrow[0]!r}")
        for schema in (in_arrow[0].state, in_arrow[0].output):
            _distinct(keys, schema_of(schema).names)
        return InArrow(in_arrow[0])
    checked(aggregates)
    _distinct(keys, list(aggregates))
    return InColumns(aggregates)


def _distinct(keys: Sequence[str], names: Sequence[str]) -> None:
    taken = sorted(set(names) & set(keys))
    require(not taken, f"{', '.join(taken)} is a column of the key already: take another name")


def _name(into: str, name: str) -> str:
    return f"{into} {name}"


def _named(states: Mapping[str, PartialState]) -> list[tuple[str, Column]]:
    return [(_name(into, name), value) for into, state in states.items() for name, value in state.items()]


Step: TypeAlias = Callable[[pa.Table], pa.Table]


def _grouped(rows: DataFrame, by: Sequence[str], unseen: Sequence[str], step: Step, result: StructType) -> DataFrame:
    """Runs a step for each group, as `groupBy(by).applyInArrow` does; the grouping columns come before its result.

    applyInArrow hands groups to Python one by one, each as a stream of its own, which takes about a millisecond. Here
    Spark brings the rows of a group together and marks where one begins, so that many groups go to Python at a time.

    unseen: columns that the step does not see.
    """
    (begins,) = unused(rows, "begins")
    group = Window.partitionBy(*ordered(rows, by)).orderBy(F.lit(1))
    marked = rows.select("*", (F.row_number().over(group) == 1).alias(begins))
    schema = StructType([*fields_of(rows, by), *result.fields])
    return marked.mapInArrow(_each(begins, by, unseen, step, arrow_schema(result)), schema)


# The functions below return functions that run on executors. Spark pickles nested functions by value, so that they need
# numpy and pyarrow there, but not this library.


def _each(
    begins: str, by: Sequence[str], unseen: Sequence[str], step: Step, wanted: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    constant, hidden, names = list(by), [begins, *unseen], wanted.names

    def whole(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yields tables of whole groups."""
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            starts = pc.indices_nonzero(batch[begins])
            last = starts[-1].as_py() if len(starts) else 0  # the group that begins there may go on
            if last or (len(starts) and waiting):
                yield pa.Table.from_batches([*waiting, batch.slice(0, last)])
                waiting = []
            waiting.append(batch.slice(last))
        if waiting:
            yield pa.Table.from_batches(waiting)

    def validated(result: Any) -> pa.Table:
        if not isinstance(result, pa.Table):
            raise TypeError(f"the function must return a pyarrow Table, not {type(result).__name__}")
        if sorted(result.column_names) != sorted(names):
            raise ValueError(f"the function's result must have columns {names}, not {result.column_names}")
        return result.select(names)

    def joined(results: list[pa.Table]) -> pa.Table:
        try:
            return pa.concat_tables(results).cast(wanted)
        except pa.ArrowException:  # the results may have several types for one column
            return pa.concat_tables([result.cast(wanted) for result in results])

    def call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        quick_start()
        for groups in whole(batches):
            rows = groups.combine_chunks()
            starts = pc.indices_nonzero(rows[begins]).to_numpy().astype(np.int64)
            lengths = np.diff(np.append(starts, rows.num_rows))
            seen = rows.drop_columns(hidden)
            parts = zip(starts.tolist(), lengths.tolist(), strict=True)
            results = [validated(step(seen.slice(*part))) for part in parts]
            keys = rows.select(constant).take(np.repeat(starts, [result.num_rows for result in results]))
            columns = [*keys.columns, *joined(results).columns]
            yield from pa.table(columns, names=[*constant, *names]).combine_chunks().to_batches()

    return call


def _unless_alone(merge: Step) -> Step:
    def call(states: pa.Table) -> pa.Table:
        return merge(states) if states.num_rows > 1 else states

    return call


def _then(first: Step, second: Step) -> Step:
    def call(rows: Any) -> Any:
        return second(first(rows))

    return call
