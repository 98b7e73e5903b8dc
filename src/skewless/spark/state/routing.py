"""Routes the rows of a stateful batch to tasks, sorted by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from skewless.spark.keys import column, hashing, quoted, unused
from skewless.spark.plans import parallelism
from skewless.spark.profile import observed
from skewless.spark.route import WORKER, position_sql, worker
from skewless.spark.state.task import POSITION
from skewless.spark.streaming.rows import EventTime, StreamKey
from skewless.spark.streaming.times import EARLIEST
from skewless.store import Share
from skewless.table import RoutingTable

IN_TURN = 4  # the most tasks that run one after the other in a slot: each costs Spark about 25 milliseconds


@dataclass(frozen=True)
class RoutedRows:
    """Rows in tasks, sorted by the positions of their keys."""

    rows: DataFrame
    position: str  # the name of the column with positions
    seen: Observation

    @classmethod
    def of(cls, df: DataFrame, table: RoutingTable, tasks: int, key: StreamKey, late: LateRows) -> RoutedRows:
        """Routes rows to this many tasks, without the rows that are late."""
        Share.of(table, 0)  # refuses split keys
        seen = Observation()
        (position, number), key_hash = unused(df, POSITION, WORKER), hashing(df, key.columns)
        positions, numbers = F.expr(position_sql(key_hash)).alias(position), worker(table, key_hash).alias(number)
        rows = late.dropped(df, seen).select("*", positions, numbers)
        # One row without a key for each task: keys may time out where no rows come.
        blank = [F.lit(None).cast(field.dataType) for field in rows.schema.fields[:-1]]
        blanks = df.sparkSession.range(0, tasks, 1, 1).select(*blank, F.col("id").cast("int"))
        sent = rows.union(blanks).repartitionById(tasks, F.expr(f"{quoted(number)} % {tasks}"))
        return cls(sent.sortWithinPartitions(column(position)).drop(number), position, seen)

    def facts(self) -> dict[str, Any]:
        """Returns the number of `late` rows and the `latest` time, once the rows have been read.

        Before Spark 4.3 the late rows of failed attempts count too.
        """
        return observed(self.seen)


@dataclass(frozen=True)
class LateRows:
    """Which rows are late: those at or before the watermark of the last batch, as in Structured Streaming."""

    time: EventTime | None
    until: int = EARLIEST  # no row is late by default

    def dropped(self, df: DataFrame, seen: Observation) -> DataFrame:
        """Returns the rows that are not late; `seen` observes all rows."""
        at = F.lit(None).cast("bigint") if self.time is None else self.time.micros
        late = F.lit(False) if self.until == EARLIEST else F.coalesce(at <= self.until, F.lit(False))
        rows = df.observe(seen, F.count_if(late).alias("late"), F.max(at).alias("latest"))
        return rows if self.until == EARLIEST else rows.where(~late)


def task_count(spark: SparkSession, n_workers: int) -> int:
    """Returns the number of tasks for this many workers: at most `IN_TURN` for each task slot."""
    return min(n_workers, IN_TURN * parallelism(spark))
