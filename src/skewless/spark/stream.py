"""Streams: `sl.stream(events, "k", time="ts").window("60 seconds").agg(n=sl.count()).start(sink, checkpoint)`."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast, get_args

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType, TimestampType

from skewless.arrays import require, whole
from skewless.partitioner import Partitioner
from skewless.spark.aggregate import Aggregate, ArrowAggregate
from skewless.spark.batch import BATCH_COSTS, Placing, checksums, chosen
from skewless.spark.checkpoint import Checkpoint
from skewless.spark.engine import Engine, Operator, Sink
from skewless.spark.exact import Exact
from skewless.spark.fold import fold_of
from skewless.spark.groupstate import Timeout
from skewless.spark.intervals import Intervals, both_sides
from skewless.spark.keys import fields_of
from skewless.spark.panes import Span
from skewless.spark.parallelism import parallelism
from skewless.spark.processor import TimeMode, processing
from skewless.spark.query import QUERIES, Query, free
from skewless.spark.schema import arrow_schema, schema_of
from skewless.spark.sink import claim
from skewless.spark.state import Stateful, load
from skewless.spark.task import Function, Lasting
from skewless.spark.windows import Windows
from skewless.table import RoutingTable

STATE_COSTS = (1.0, 1.0, 0.1)  # a key that moves takes its state along
SLIDES = 4  # panes of a window from which on it is made from the one before


@dataclass(frozen=True)
class Stream:
    """Rows of a stream by key; what `stream` gives."""

    df: DataFrame
    keys: tuple[str, ...]
    time: str | None
    watermark: int  # microseconds
    partitioner: Placing | Exact
    n_workers: int | tuple[int, int] | None
    statistics: str | float

    def window(self, size: str, slide: str | None = None) -> Windowed:
        """Windows of event time: one after the other, or one every slide, such as ("60 seconds", "1 second")."""
        require(self.time is not None, 'windows need the time of rows: sl.stream(..., time="ts")')
        length = duration("a window's size", size)
        step = length if slide is None else duration("a window's slide", slide)
        require(length > 0, f"a window is longer than 0, not {size}")
        require(0 < step <= length, f"a slide is more than 0 and at most the size {size}, not {slide}")
        return Windowed(self, Span(length, step))

    def join(self, other: Stream, earliest: str, latest: str) -> Job:
        """Pairs of rows with one key, the other's between `earliest` and `latest` after this one's: an inner join.

        earliest, latest: such as "-5 seconds" and "10 seconds". Hot keys are spread, on either side or on both.
        """
        require(isinstance(other, Stream), f"join takes another sl.stream(...), not {type(other).__name__}")
        times = self.time, other.time
        require(None not in times, 'both streams need the time of rows: sl.stream(..., time="ts")')
        kinds = [[(field.name, field.dataType) for field in fields_of(side.df, side.keys)] for side in (self, other)]
        require(kinds[0] == kinds[1], f"both streams have the same key, not {kinds[0]} and {kinds[1]}")
        shared = sorted((set(self.df.columns) & set(other.df.columns)) - set(self.keys))
        require(not shared, f"both streams have columns {', '.join(shared)}: rename them in one")
        by_grids = self.partitioner == other.partitioner == "auto"
        require(by_grids, "a join places its keys itself: leave the partitioner out")
        low, high = duration("earliest", earliest, signed=True), duration("latest", latest, signed=True)
        require(low <= high, f"earliest is at most latest, not {earliest} and {latest}")
        n = self.n_workers or parallelism(self.df.sparkSession)
        require(isinstance(n, int), f"n_workers of a join is a number, not {n}")
        schemas = (self.df.schema, other.df.schema)
        delay = max(self.watermark, other.watermark)
        operator = Intervals(self.keys, (str(self.time), str(other.time)), schemas, low, high, delay, cast(int, n))
        checksums(self.df)
        return Job(replace(self, df=both_sides(self.df, other.df)), operator, split=True)

    def applyInArrowWithState(  # noqa: N802
        self,
        func: Function,
        outputStructType: StructType | str,  # noqa: N803
        stateStructType: StructType | str,  # noqa: N803
        timeoutConf: Timeout = "NoTimeout",  # noqa: N803
        initialState: DataFrame | None = None,  # noqa: N803
    ) -> Job:
        """func(key, rows, state) is called for each key of a batch, whole on one worker, and for keys that time out.

        key: a tuple. rows: an Arrow table. state: a `GroupState`, with the names of PySpark's.
        It returns an Arrow table by the output's schema, or several one by one, or None.
        initialState: the states of keys before the first batch, one row a key: the columns of the key and of the state.
        """
        return self._with_state(func, outputStructType, stateStructType, timeoutConf, initialState, in_pandas=False)

    def applyInPandasWithState(  # noqa: N802
        self,
        func: Function,
        outputStructType: StructType | str,  # noqa: N803
        stateStructType: StructType | str,  # noqa: N803
        timeoutConf: Timeout = "NoTimeout",  # noqa: N803
        initialState: DataFrame | None = None,  # noqa: N803
    ) -> Job:
        """The same with pandas frames: rows are one frame, where PySpark gives an iterator of frames."""
        return self._with_state(func, outputStructType, stateStructType, timeoutConf, initialState, in_pandas=True)

    def transformWithStateInPandas(  # noqa: N802
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803
        timeMode: TimeMode = "None",  # noqa: N803
        initialState: DataFrame | None = None,  # noqa: N803
    ) -> Job:
        """A processor as it is written for PySpark: variables of a key are values, lists and maps, and it has timers.

        initialState: rows for `handleInitialState`, before the first batch, with the columns of the key.
        """
        return self._processed(statefulProcessor, outputStructType, timeMode, initialState, in_pandas=True)

    def transformWithState(  # noqa: N802
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803
        timeMode: TimeMode = "None",  # noqa: N803
        initialState: DataFrame | None = None,  # noqa: N803
    ) -> Job:
        """The same with a `Row` for each row, in and out."""
        return self._processed(statefulProcessor, outputStructType, timeMode, initialState, in_pandas=False)

    def _processed(
        self,
        processor: StatefulProcessor,
        output: StructType | str,
        mode: TimeMode,
        initial: DataFrame | None,
        *,
        in_pandas: bool,
    ) -> Job:
        function = processing(processor, mode, arrow_schema(schema_of(output)), in_pandas)
        return self._with_state(function, output, function.state, function.timeout, initial, in_pandas=in_pandas)

    def _with_state(
        self,
        func: Function | Lasting,
        output: StructType | str,
        state: StructType | str,
        timeout: Timeout,
        initial: DataFrame | None,
        *,
        in_pandas: bool,
    ) -> Job:
        by_table = not isinstance(self.partitioner, Exact)
        require(by_table, "keyed state goes by routing tables: take the partitioner itself, not an Exact")
        is_function = callable(func) or isinstance(func, Lasting)
        require(is_function, f"keyed state takes a function (key, rows, state), not {func!r}")
        require(timeout in get_args(Timeout), f"timeoutConf is one of {', '.join(get_args(Timeout))}, not {timeout!r}")
        timed = timeout != "EventTimeTimeout" or self.time is not None
        require(timed, 'timeouts in event time need the time of rows: sl.stream(..., time="ts")')
        kinds = schema_of(output), schema_of(state)
        arrow_schema(kinds[1])
        operator = Stateful(self.keys, func, *kinds, timeout, self.time, self.watermark, in_pandas)
        return Job(self, operator, split=False, before=None if initial is None else partial(load, initial, operator))


@dataclass(frozen=True)
class Windowed:
    """Rows of a stream by key and window."""

    stream: Stream
    span: Span

    def agg(
        self, *in_arrow: ArrowAggregate, mode: Literal["append", "update"] = "append", **aggregates: Aggregate
    ) -> Job:
        """One row a window and key: `window`, the columns of the key, and the aggregates by their names.

        mode: "append" tells of windows once, when they are complete; "update" of those that a batch has changed.
        """
        require(mode in ("append", "update"), f'mode is "append" or "update", not {mode!r}')
        given = self.stream
        require("window" not in (*given.keys, *aggregates), "window is the name of a column of the result")
        fold = fold_of(given.keys, in_arrow, aggregates)
        panes = self.span.size // self.span.pane
        incremental = mode == "append" and panes >= SLIDES and fold.invertible(fold.schema(given.df))
        windows = Windows(
            given.keys,
            str(given.time),
            self.span,
            given.watermark,
            fold.counted() if incremental else fold,
            mode,
            incremental,
        )
        return Job(given, windows, split=True)


@dataclass(frozen=True)
class Job:
    """All that a query does; `start` begins it."""

    stream: Stream
    operator: Operator
    split: bool  # may keys be split?
    before: Callable[[Checkpoint], None] | None = None  # what is done before the first batch

    def start(self, sink: Sink, checkpoint: str, *, interval: str | None = None, available_now: bool = False) -> Query:
        """Begin, or go on where it was.

        sink: a function (df, batch_id), or a directory, to which each batch is written as Parquet once.
        checkpoint: a directory for what must survive, which the driver and all workers can reach.
        interval: between batches, such as "1 second"; left out, one follows the other.
        available_now: stop when everything that is there now has been read.
        """
        given = self.stream
        require(interval is None or not available_now, "take an interval, or available_now, not both")
        require(
            callable(sink) or isinstance(sink, str), f"a sink is a function (df, batch_id) or a directory, not {sink!r}"
        )
        seconds = None if interval is None else duration("an interval", interval) / 1e6
        limits = given.n_workers if isinstance(given.n_workers, tuple) else None
        files = Checkpoint(checkpoint)
        free(checkpoint)
        with closing(files.lock()):
            identity = files.identify(self.operator.identity(given.df))
            if isinstance(sink, str):
                claim(sink, identity)
            files.write("rescale.json", {})  # what was said of the last run is over
            if self.before is not None:
                self.before(files)
        exact = isinstance(given.partitioner, Exact)
        run = Engine(checkpoint, self.operator, sink, self._placing(), exact, given.statistics, seconds, limits)
        writer = given.df.writeStream.foreachBatch(run).option("checkpointLocation", files.of_spark)
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif interval is not None:
            writer = writer.trigger(processingTime=interval)
        query = Query(writer, files)
        QUERIES[checkpoint] = query
        return query

    def _placing(self) -> Partitioner[Any, Any] | RoutingTable | None:
        given = self.stream
        if given.partitioner == "auto" and self.operator.left_to_spark:
            return None
        if isinstance(given.partitioner, RoutingTable):
            require(self.split or not given.partitioner.splits_keys, "this table splits keys, but each is needed whole")
            placing: Partitioner[Any, Any] | RoutingTable = given.partitioner
        else:
            n = given.n_workers[0] if isinstance(given.n_workers, tuple) else given.n_workers
            wanted = given.partitioner.partitioner if isinstance(given.partitioner, Exact) else given.partitioner
            costs = BATCH_COSTS if self.split else STATE_COSTS
            placing = chosen(wanted, n or parallelism(given.df.sparkSession), self.split, costs)
        if placing.splits_keys:
            checksums(given.df)
        return placing


def stream(
    df: DataFrame,
    *keys: str,
    time: str | None = None,
    watermark: str = "0 seconds",
    partitioner: Placing | Exact = "auto",
    n_workers: int | tuple[int, int] | None = None,
    statistics: Literal["last", "present"] | float = "last",
) -> Stream:
    """The rows of a stream by key, on balanced workers.

    keys: columns, of any types that Spark groups by.
    time: the column with the time of each row, for windows.
    watermark: how long after the latest time seen a row may still come; later ones are dropped, and counted.
    partitioner: a name, an instance, a RoutingTable or an Exact; by default what costs least.
    n_workers: how many partitions, by default as many as Spark runs tasks at a time; (least, most): as many as the load
        needs, by Prompt's elastic rule.
    statistics: what the table of a batch is planned from: the batch before it ("last"), which reads nothing twice, and
        counts some 50,000 rows or more; all of its own rows ("present"), before they are worked on; or this share.
    """
    require(
        df.isStreaming, "stream takes a streaming DataFrame, such as spark.readStream gives; sl.group_by takes others"
    )
    fields_of(df, keys)
    if time is not None:
        (field,) = fields_of(df, [time])
        is_time = isinstance(field.dataType, TimestampType)
        require(is_time, f"column {time!r} is a timestamp, not {field.dataType.simpleString()}: cast it first")
    if isinstance(n_workers, tuple):
        require(len(n_workers) == 2, f"n_workers is a number, or (least, most), not {n_workers}")
        n_workers = whole("n_workers", n_workers[0], 1), whole("n_workers", n_workers[1], n_workers[0])
    elif n_workers is not None:
        n_workers = whole("n_workers", n_workers, 1)
    if not isinstance(statistics, str):
        require(0 < statistics <= 1, f"the share of rows to look at is more than 0 and at most 1, not {statistics}")
        statistics = float(statistics)
    else:
        require(statistics in ("last", "present"), f'statistics is "last", "present" or a share, not {statistics!r}')
    delay = duration("a watermark", watermark)
    return Stream(df, keys, time, delay, partitioner, n_workers, statistics)


_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}


def duration(what: str, given: str, *, signed: bool = False) -> int:
    """A length of time such as "10 seconds" or "1 minute 30 seconds", in microseconds; signed: or "-5 seconds"."""
    if signed and isinstance(given, str) and given.strip().startswith("-"):
        return -duration(what, given.strip()[1:])
    parts = re.findall(r"(\d+)\s*([a-z]+?)s?(?=[\s\d]|$)", given.lower()) if isinstance(given, str) else []
    rest = re.sub(r"(\d+)\s*([a-z]+?)s?(?=[\s\d]|$)", "", given.lower()) if isinstance(given, str) else "?"
    known = bool(parts) and not rest.strip() and all(unit in _UNITS for _, unit in parts)
    require(known, f'{what} is a length of time such as "10 seconds", not {given!r}; units are {", ".join(_UNITS)}')
    return sum(int(number) * _UNITS[unit] for number, unit in parts)
