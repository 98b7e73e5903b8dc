"""Groups rows by key on balanced workers: Python functions on whole keys, and aggregates whose hot keys are split."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.types import StructType

from skewless.arguments import require
from skewless.partitioner import Partitioner
from skewless.spark.decision import decide
from skewless.spark.exact import Exact, Sourced
from skewless.spark.keys import Key, Keyed, fields_of, keyed, quoted, unused
from skewless.spark.request import PartitionerLike, Request, Verb
from skewless.spark.route import WORKER, routed
from skewless.spark.task_startup import with_quick_start
from skewless.spark.verbs.aggregate import Aggregate, ArrowAggregate
from skewless.spark.verbs.fold import fold_of
from skewless.table import RoutingTable


@dataclass(frozen=True)
class Grouped:
    """Rows by key, on balanced workers; what `group_by` returns. Its methods are those of PySpark's GroupedData.

    >>> sl.group_by(df, "user").agg(n=sl.count())                                                # doctest: +SKIP
    """

    df: DataFrame
    keys: tuple[Key, ...]
    n_workers: int | None
    partitioner: PartitionerLike | Exact
    sample: float | None = None

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """Calls a function once for each key, with all of its rows as a pandas frame.

        func: takes rows, or (key, rows); iterators of frames if its type hints say so, as in PySpark.
        schema: of the frames that it returns.

        >>> sl.group_by(df, "user").applyInPandas(summarize, "user long, n long")                # doctest: +SKIP
        """
        groups, hidden = self._grouped(self._decided("applyInPandas"))
        return groups.applyInPandas(_keyed(func, _frames_without(hidden)) if hidden else func, schema)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """Calls a function once for each key, with all of its rows as an Arrow table.

        func: takes rows, or (key, rows); iterators of batches if its type hints say so, as in PySpark.
        schema: of the tables that it returns.

        >>> sl.group_by(df, "user").applyInArrow(summarize, "user long, n long")                 # doctest: +SKIP
        """
        groups, hidden = self._grouped(self._decided("applyInArrow"))
        return groups.applyInArrow(_keyed(func, _tables_without(hidden)) if hidden else func, schema)

    def cogroup(self, other: Grouped) -> Cogrouped:
        """Groups two DataFrames by the same key, for functions that take the rows of both.

        other: what `group_by` returned for the right side; its key has the same types.

        >>> sl.group_by(left, "k").cogroup(sl.group_by(right, "k")).applyInPandas(f, "k long")   # doctest: +SKIP
        """
        kinds = [[field.dataType for field in fields_of(side.rows.df, side.rows.names)] for side in (self, other)]
        require(kinds[0] == kinds[1], f"cogrouped keys must have the same types, not {kinds[0]} and {kinds[1]}")
        for name in ("n_workers", "partitioner", "sample"):
            ours, theirs = getattr(self, name), getattr(other, name)
            agrees = theirs in (None, "auto") or _same(ours, theirs)
            require(
                agrees, f"one table routes both sides: give {name}={theirs!r} to the left group_by, not the right one"
            )
        return Cogrouped(self, other)

    def agg(self, *in_arrow: ArrowAggregate, **aggregates: Aggregate) -> DataFrame:
        """Aggregates each key: one row with its columns, and the aggregates by their names.

        Hot keys are split where that pays, and their parts merged. Aggregates whose states stay small are left to
        Spark, which combines them before it sends rows anywhere.

        in_arrow: one ArrowAggregate, instead of named aggregates.
        aggregates: such as n=sl.count(), spent=sl.sum("price").

        >>> sl.group_by(df, "user").agg(n=sl.count(), pages=sl.collect_list("page"))             # doctest: +SKIP
        """
        rows = self.rows
        fold = fold_of(tuple({*rows.names, *rows.shown}), in_arrow, aggregates)
        operator: Verb = "agg" if not fold.grows else "ArrowAggregate" if in_arrow else "collect_list"
        routing = self._decided(operator)
        if routing is None:
            return rows.renamed(fold.direct(rows.df, rows.names, rows.added))
        state = fold.schema(rows.df)
        (name,) = unused(rows.df, WORKER, besides=[*state.names, *fold.output(rows.df).names])
        sent = routed(rows.df, rows.names, routing, name)
        by, hidden = [*rows.names, name], [name, *rows.added]
        if not routing.splits_keys:
            return rows.renamed(fold.direct(sent, by, hidden).drop(name))
        return rows.renamed(fold.concluded(fold.partial(sent, by, hidden), rows.names, state))

    @cached_property
    def rows(self) -> Keyed:
        """The rows with their key in columns of its own."""
        return keyed(self.df, self.keys)

    def _decided(self, operator: Verb, *others: Keyed) -> RoutingTable | Sourced | None:
        request = Request(operator, (self.rows, *others), self.partitioner, self.n_workers, self.sample)
        return decide(request).by_key

    def _grouped(self, routing: RoutingTable | Sourced | None) -> tuple[GroupedData, list[str]]:
        """Returns the groups, and the columns in them that are ours."""
        if routing is None:
            return self.df.groupBy(*self.rows.by), []
        df, names, hidden = self.rows.df, self.rows.names, self.rows.added
        (worker,) = unused(df, WORKER)
        sent = routed(df, names, routing, worker)
        return sent.groupBy(*map(quoted, (worker, *names))), [worker, *hidden]


@dataclass(frozen=True)
class Cogrouped:
    """Rows of two DataFrames by key; both sides are routed by one table, so that equal keys meet.

    >>> sl.group_by(left, "k").cogroup(sl.group_by(right, "k")).applyInArrow(f, "k long")        # doctest: +SKIP
    """

    left: Grouped
    right: Grouped

    def applyInPandas(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """Calls a function once for each key, with all of its rows from both sides as pandas frames.

        func: takes (left, right) or (key, left, right).
        schema: of the frames that it returns.

        >>> sides = sl.group_by(left, "k").cogroup(sl.group_by(right, "k"))                      # doctest: +SKIP
        >>> sides.applyInPandas(lambda left, right: summarize(left, right), "k long, n long")    # doctest: +SKIP
        """
        left, right, hidden = self._grouped()
        call = _keyed_pair(func, *map(_frames_without, hidden)) if all(hidden) else func
        return left.cogroup(right).applyInPandas(call, schema)

    def applyInArrow(self, func: Callable[..., Any], schema: StructType | str) -> DataFrame:  # noqa: N802
        """Calls a function once for each key, with all of its rows from both sides as Arrow tables.

        func: takes (left, right) or (key, left, right).
        schema: of the tables that it returns.

        >>> sides = sl.group_by(left, "k").cogroup(sl.group_by(right, "k"))                      # doctest: +SKIP
        >>> sides.applyInArrow(lambda left, right: summarize(left, right), "k long, n long")     # doctest: +SKIP
        """
        left, right, hidden = self._grouped()
        call = _keyed_pair(func, *map(_tables_without, hidden)) if all(hidden) else func
        return left.cogroup(right).applyInArrow(call, schema)

    def _grouped(self) -> tuple[GroupedData, GroupedData, list[list[str]]]:
        """Returns the groups of both sides, and the columns in them that are ours."""
        routing = self.left._decided("cogroup", self.right.rows)
        (left, of_left), (right, of_right) = (side._grouped(routing) for side in (self.left, self.right))
        return left, right, [of_left, of_right]


def group_by(
    df: DataFrame,
    *keys: Key,
    n_workers: int | None = None,
    partitioner: PartitionerLike | Exact = "auto",
    sample: float | None = None,
) -> Grouped:
    """Groups rows by key, on balanced workers.

    df: the rows.
    keys: what PySpark's groupBy takes: names of columns, nested fields, Columns, or lists of these.
    n_workers: how many partitions; by default as many as Spark runs tasks at a time, or more for much data. Without
        a number, less than 1 MiB is left to Spark (64 MiB for `collect_list`): give one if each row is much work.
    partitioner: a name, an instance, a RoutingTable or an Exact; by default what costs least.
    sample: the share of rows to plan by; by default all of little data, a small portion of much.

    >>> sl.group_by(df, "user").applyInPandas(summarize, "user long, n long")                    # doctest: +SKIP
    """
    grouped = Grouped(df, keys, n_workers, partitioner, sample)
    _ = grouped.rows  # refuses keys that cannot be grouped by, before any work is done
    return grouped


# The functions below return functions that run on executors. Spark pickles nested functions by value, so that they need
# pyarrow there, but not this library.


def _same(one: object, other: object) -> bool:
    """Returns whether two values of a parameter mean the same; partitioners do if their parameters are equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Exact) and isinstance(other, Exact):
        return _same(one.partitioner, other.partitioner)
    if isinstance(one, RoutingTable) and isinstance(other, RoutingTable):
        return one.to_json() == other.to_json()
    return repr(one) == repr(other) if isinstance(one, Partitioner) else one == other


def _frames_without(names: list[str]) -> Callable[[Any], Any]:
    def without(frame: Any) -> Any:
        for name in names:
            del frame[name]  # the column is ours alone; a copy of the frame without it takes ten times as long
        return frame

    return without


def _tables_without(names: list[str]) -> Callable[[Any], Any]:
    def without(table: Any) -> Any:
        return table.drop_columns(names)

    return without


def _keyed(func: Callable[..., Any], without: Callable[[Any], Any]) -> Callable[[tuple[Any, ...], Any], Any]:
    """Hides our columns from the user's function: the worker, which is the first part of the key, and added ones."""
    takes_key = len(inspect.signature(func).parameters) == 2

    def call(key: tuple[Any, ...], rows: Any) -> Any:
        own = map(without, rows) if hasattr(rows, "__next__") else without(rows)
        return func(key[1:], own) if takes_key else func(own)

    call.__name__ = getattr(func, "__name__", "call")  # plans and errors name it
    call.__annotations__ = _hints(func)
    return with_quick_start(call)


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    """Returns the user's type hints for a function of (key, rows): they tell Spark whether it takes iterators."""
    try:
        hints = get_type_hints(func)
    except (NameError, TypeError):  # hints of undefined names, or not a function
        return {}
    names = [*inspect.signature(func).parameters, "return"]
    is_complete = all(name in hints for name in names)
    return {"key": tuple, "rows": hints[names[-2]], "return": hints["return"]} if is_complete else {}


def _keyed_pair(
    func: Callable[..., Any], of_left: Callable[[Any], Any], of_right: Callable[[Any], Any]
) -> Callable[[tuple[Any, ...], Any, Any], Any]:
    """Hides our columns from a function that takes the rows of two sides."""
    takes_key = len(inspect.signature(func).parameters) == 3

    def call(key: tuple[Any, ...], left: Any, right: Any) -> Any:
        sides = of_left(left), of_right(right)
        return func(key[1:], *sides) if takes_key else func(*sides)

    call.__name__ = getattr(func, "__name__", "call")
    return with_quick_start(call)
