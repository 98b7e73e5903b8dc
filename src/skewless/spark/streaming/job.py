"""A streaming job: rows by key, the operator that processes them, and how to start it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from skewless.arguments import require
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.engine import Engine, Sink
from skewless.spark.streaming.operator import Operator
from skewless.spark.streaming.query import Query
from skewless.spark.streaming.rows import KeyedRows
from skewless.spark.streaming.running import StreamRouting
from skewless.spark.streaming.scaling import Scaling
from skewless.spark.streaming.sink import claim
from skewless.spark.streaming.times import duration


@dataclass(frozen=True)
class Job:
    """Everything that a query does; `start` runs it."""

    rows: KeyedRows
    operator: Operator[Any]
    split: bool  # may keys be split?
    prepare: Callable[[Checkpoint], None] | None = None  # called at every start, before Spark's query

    def start(self, sink: Sink, checkpoint: str, *, interval: str | None = None, available_now: bool = False) -> Query:
        """Starts the query, or continues it where it ended.

        sink: a function (df, batch_id), or a directory, to which each batch is written as Parquet exactly once.
        checkpoint: a directory that the driver and all executors can reach, for what must survive a restart.
        interval: the time between batches, such as "1 second"; by default each follows the last one at once.
        available_now: whether to process everything that is there now, and then end.

        >>> counts = sl.stream(events, "user", time="ts").window("1 minute").agg(n=sl.count())  # doctest: +SKIP
        >>> query = counts.start("/data/counts", "/data/checkpoint", interval="10 seconds")  # doctest: +SKIP
        """
        require(interval is None or not available_now, "give an interval or available_now=True, not both")
        is_sink = callable(sink) or isinstance(sink, str)
        require(is_sink, f"a sink is a function (df, batch_id) or a directory, not {sink!r}")
        seconds = None if interval is None else duration("an interval", interval) / 1e6
        df, files = self.rows.df, Checkpoint(checkpoint)
        routing = self._routing()  # refuses what cannot route, before anything is written
        with closing(files.lock()):
            identity = files.identify(self.operator.identity(df))
            if isinstance(sink, str):
                claim(sink, identity)
            files.write("rescale.json", {})  # Query.rescale holds until the query ends
            if self.prepare is not None:
                self.prepare(files)
        engine = Engine(checkpoint, self.operator, sink, routing, Scaling(seconds, self.rows.limits))
        writer = df.writeStream.foreachBatch(engine).option("checkpointLocation", files.of_spark)
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif interval is not None:
            writer = writer.trigger(processingTime=interval)
        return Query(writer, engine)

    def _routing(self) -> StreamRouting:
        asked = self.rows.partitioner != "auto" or self.rows.n_workers is not None
        is_routed = self.operator.is_routed(asked)
        return self.rows.routing(split=self.split) if is_routed else StreamRouting(router=None)
