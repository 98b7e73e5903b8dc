"""Streams by key: `sl.stream(events, "k", time="ts").window("1 minute").agg(n=sl.count()).start(sink, checkpoint)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from skewless.spark.exact import Exact
from skewless.spark.keys import Key
from skewless.spark.request import PartitionerLike
from skewless.spark.state.group_state import Timeout
from skewless.spark.state.job import StateSettings, processor_job, state_job
from skewless.spark.state.processor import TimeMode
from skewless.spark.state.task import Function
from skewless.spark.streaming.job import Job
from skewless.spark.streaming.pairs import interval_job
from skewless.spark.streaming.rows import KeyedRows, keyed_rows
from skewless.spark.streaming.windowed import Windowed, windowed


@dataclass(frozen=True)
class Stream:
    """The rows of a stream by key; `sl.stream` returns it. Its methods say what to compute.

    >>> sl.stream(events, "user", time="ts").window("1 minute").agg(n=sl.count())  # doctest: +SKIP
    """

    rows: KeyedRows

    def window(self, size: str, slide: str | None = None) -> Windowed:
        """Groups rows by key and window of event time.

        size: the length of a window, such as "60 seconds".
        slide: the time from the start of a window to that of the next; by default the size.

        >>> clicks = sl.stream(events, "user", time="ts", watermark="10 seconds")  # doctest: +SKIP
        >>> job = clicks.window("1 minute", "10 seconds").agg(n=sl.count())  # doctest: +SKIP
        """
        return windowed(self.rows, size, slide)

    def join(self, other: Stream, earliest: str, latest: str) -> Job:
        """Joins each row with those of another stream that have the same key and a time near its own: an inner join.

        Hot keys are spread over workers, whether one side has them or both.

        other: another `sl.stream(...)`.
        earliest, latest: how long after this stream's row the other's may be, such as "-5 seconds" and "10 seconds".

        >>> clicks = sl.stream(clicked, "ad", time="at")  # doctest: +SKIP
        >>> job = sl.stream(shown, "ad", time="ts").join(clicks, "0 seconds", "1 hour")  # doctest: +SKIP
        """
        return interval_job(self.rows, other.rows if isinstance(other, Stream) else other, earliest, latest)

    def applyInArrowWithState(  # noqa: N802
        self,
        func: Function,
        outputStructType: StructType | str,  # noqa: N803
        stateStructType: StructType | str,  # noqa: N803
        timeoutConf: Timeout = "NoTimeout",  # noqa: N803
        initialState: DataFrame | None = None,  # noqa: N803
    ) -> Job:
        """Calls a function with the rows and the state of each key of a batch, and of each key that times out.

        func: a function (key, rows, state). key is a tuple, rows an Arrow table, state a `GroupState` with the names
            of PySpark's. It returns an Arrow table with the output's schema, or an iterable of these, or None.
        outputStructType: the schema of the output.
        stateStructType: the schema of a state.
        timeoutConf: "NoTimeout", "ProcessingTimeTimeout" or "EventTimeTimeout", as in PySpark.
        initialState: the states before the first batch, one row for each key: the columns of the key and of the state.

        >>> def count(key, rows, state):
        ...     n = rows.num_rows + (state.get[0] if state.exists else 0)
        ...     state.update((n,))
        ...     return pa.table({"user": [key[0]], "n": [n]})
        >>> job = sl.stream(events, "user").applyInArrowWithState(  # doctest: +SKIP
        ...     count, "user string, n long", "n long"
        ... )
        """
        settings = StateSettings(
            output=outputStructType,
            state=stateStructType,
            timeout=timeoutConf,
            initial=initialState,
            in_pandas=False,
        )
        return state_job(self.rows, func, settings)

    def applyInPandasWithState(  # noqa: N802
        self,
        func: Function,
        outputStructType: StructType | str,  # noqa: N803
        stateStructType: StructType | str,  # noqa: N803
        timeoutConf: Timeout = "NoTimeout",  # noqa: N803
        initialState: DataFrame | None = None,  # noqa: N803
    ) -> Job:
        """Calls a function as `applyInArrowWithState` does, with pandas frames instead of Arrow tables.

        The rows of a key are one frame, where PySpark has an iterator of frames.

        func: a function (key, rows, state) that returns a frame with the output's schema, an iterable of these or None.
        outputStructType, stateStructType, timeoutConf, initialState: as in `applyInArrowWithState`.

        >>> job = sl.stream(events, "user").applyInPandasWithState(  # doctest: +SKIP
        ...     count, "user string, n long", "n long"
        ... )
        """
        settings = StateSettings(
            output=outputStructType,
            state=stateStructType,
            timeout=timeoutConf,
            initial=initialState,
            in_pandas=True,
        )
        return state_job(self.rows, func, settings)

    def transformWithStateInPandas(  # noqa: N802
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803
        timeMode: TimeMode = "None",  # noqa: N803
        initialState: DataFrame | None = None,  # noqa: N803
    ) -> Job:
        """Runs an unchanged processor of PySpark, with values, lists, maps and timers of each key.

        statefulProcessor: an instance of PySpark's StatefulProcessor.
        outputStructType: the schema of the output.
        timeMode: "None", "ProcessingTime" or "EventTime", as in PySpark.
        initialState: rows for `handleInitialState` before the first batch, with the columns of the key.

        >>> job = sl.stream(events, "user").transformWithStateInPandas(  # doctest: +SKIP
        ...     Counting(), "user string, n long"
        ... )
        """
        return processor_job(self.rows, statefulProcessor, outputStructType, timeMode, initialState, in_pandas=True)

    def transformWithState(  # noqa: N802
        self,
        statefulProcessor: StatefulProcessor,  # noqa: N803
        outputStructType: StructType | str,  # noqa: N803
        timeMode: TimeMode = "None",  # noqa: N803
        initialState: DataFrame | None = None,  # noqa: N803
    ) -> Job:
        """Runs a processor as `transformWithStateInPandas` does, with `Row` objects instead of pandas frames.

        statefulProcessor, outputStructType, timeMode, initialState: as in `transformWithStateInPandas`.

        >>> job = sl.stream(events, "user").transformWithState(Counting(), "user string, n long")  # doctest: +SKIP
        """
        return processor_job(self.rows, statefulProcessor, outputStructType, timeMode, initialState, in_pandas=False)


def stream(
    df: DataFrame,
    *keys: Key,
    time: str | None = None,
    watermark: str = "0 seconds",
    partitioner: PartitionerLike | Exact = "auto",
    n_workers: int | tuple[int, int] | None = None,
    statistics: Literal["last", "present"] | float = "last",
) -> Stream:
    """Groups the rows of a stream by key, on balanced workers.

    df: a streaming DataFrame, such as `spark.readStream` returns.
    keys: what PySpark's groupBy takes: names, lists of names, nested fields ("a.b") or Columns.
    time: the column with the time of each row, for windows, joins and timeouts in event time.
    watermark: how far behind the latest time seen a row's time may be; later rows are dropped, and counted. Keyed state
        drops them only with timeouts or timers in event time.
    partitioner: a name, an instance, a RoutingTable or an `sl.Exact`; by default what costs least. Keyed state takes no
        `sl.Exact`, and a join takes no partitioner.
    n_workers: how many partitions, by default as many as Spark runs tasks at a time; or (least, most): as many as the
        load needs, by Prompt's elastic rule.
    statistics: what the routing table of a batch is planned from. "last": the batch before it, whose keys are counted
        while it runs (about 50,000 rows of it). "present": its own rows, in a pass before it. A number: this share of
        its own rows.

    >>> events = spark.readStream.schema("user string, ts timestamp").parquet("/data/events")  # doctest: +SKIP
    >>> job = sl.stream(events, "user", time="ts").window("1 minute").agg(n=sl.count())  # doctest: +SKIP
    >>> query = job.start("/data/counts", "/data/checkpoint")  # doctest: +SKIP
    """
    rows = keyed_rows(df, keys, time, watermark)
    return Stream(rows.routed_by(partitioner, n_workers, statistics))
