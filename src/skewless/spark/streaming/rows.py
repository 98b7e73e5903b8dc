"""The rows of a stream by key, and what routes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from skewless.arguments import require, whole
from skewless.partitioner import Partitioner
from skewless.spark.checksums import check_splitting
from skewless.spark.exact import Exact, Sourced
from skewless.spark.keys import Key, Keyed, column, fields_of, keyed, renamed
from skewless.spark.plans import parallelism
from skewless.spark.request import BATCH_COSTS, PartitionerLike, check_workers, chosen, is_safe_to_split
from skewless.spark.streaming.running import StreamRouting
from skewless.spark.streaming.times import duration
from skewless.table import RoutingTable

STATE_COSTS = (1.0, 1.0, 0.1)  # the `costs` of Auto: a key that moves takes its state along


@dataclass(frozen=True)
class StreamKey:
    """The names of a key's columns; picklable, as operators are over Connect."""

    columns: tuple[str, ...]  # in the rows
    shown: tuple[str, ...]  # in results
    added: tuple[str, ...] = ()  # columns that users must not see: those for nested fields and expressions

    @classmethod
    def of(cls, keyed: Keyed) -> StreamKey:
        return cls(keyed.names, keyed.shown, tuple(keyed.added))

    @classmethod
    def plain(cls, *columns: str) -> StreamKey:
        """Returns a key of columns that the rows have."""
        return cls(columns, columns)

    @property
    def names(self) -> list[str]:
        """What identifies the key: the user's columns, and what results show for added ones."""
        pairs = zip(self.columns, self.shown, strict=True)
        return [shown if name in self.added else name for name, shown in pairs]

    def schema(self, df: DataFrame) -> StructType:
        """Returns the types of the key, under the names that identify it."""
        fields = zip(self.names, fields_of(df, self.columns), strict=True)
        return StructType([StructField(name, field.dataType, field.nullable) for name, field in fields])

    def stored(self, df: DataFrame) -> StructType:
        """Returns the types of the key, under the names that it has in the rows."""
        return StructType(fields_of(df, self.columns))

    def renames(self) -> dict[str, str]:
        """Returns the names that results show, by the key's columns."""
        return dict(zip(self.columns, self.shown, strict=True))

    def renamed(self, result: DataFrame) -> DataFrame:
        """Returns a result with the names that it should show."""
        return renamed(result, self.renames())


@dataclass(frozen=True)
class EventTime:
    """The time of rows."""

    column: str
    delay: int  # microseconds that the watermark is behind the latest time seen

    @property
    def micros(self) -> Column:
        return F.unix_micros(column(self.column))


@dataclass(frozen=True)
class KeyedRows:
    """The rows of a stream, and the parameters of `stream`."""

    df: DataFrame
    key: StreamKey
    time: EventTime | None = None
    partitioner: PartitionerLike | Exact = "auto"
    n_workers: int | tuple[int, int] | None = None
    statistics: str | float = "last"

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key.columns

    @property
    def limits(self) -> tuple[int, int] | None:
        """The least and the most workers, if their number follows the load."""
        return self.n_workers if isinstance(self.n_workers, tuple) else None

    def routed_by(
        self,
        partitioner: PartitionerLike | Exact,
        n_workers: int | tuple[int, int] | None,
        statistics: str | float,
    ) -> KeyedRows:
        """Returns the same rows, routed as these parameters of `stream` say."""
        if isinstance(n_workers, tuple):
            require(len(n_workers) == 2, f"n_workers is a number, or (least, most), not {n_workers}")
            is_fixed = isinstance(partitioner, RoutingTable)
            require(not is_fixed, f"a routing table has a fixed number of workers: leave n_workers={n_workers} out")
            n_workers = whole("n_workers", n_workers[0], 1), whole("n_workers", n_workers[1], n_workers[0])
            check_workers(partitioner, None)  # an instance begins with its own number of workers, or the nearest limit
        else:
            n_workers = None if n_workers is None else whole("n_workers", n_workers, 1)
            check_workers(partitioner, n_workers)
        if isinstance(statistics, str):
            is_valid = statistics in ("last", "present")
            require(is_valid, f'statistics is "last", "present" or a share of rows, not {statistics!r}')
        else:
            is_valid = 0 < statistics <= 1
            require(is_valid, f"statistics, as a share of rows, is more than 0 and at most 1, not {statistics}")
            statistics = float(statistics)
        return replace(self, partitioner=partitioner, n_workers=n_workers, statistics=statistics)

    def routing(self, *, split: bool) -> StreamRouting:
        """Returns what routes the rows.

        split: whether keys may be split; if not, a table or partitioner that splits them is refused.
        """
        row_by_row = isinstance(self.partitioner, Exact)
        return StreamRouting(router=self._router(split), row_by_row=row_by_row, statistics=self.statistics)

    def _router(self, split: bool) -> Partitioner[Any, Any] | RoutingTable:
        if isinstance(self.partitioner, RoutingTable):
            may_route = split or not self.partitioner.splits_keys
            require(may_route, "this table splits keys, but keyed state needs each key whole on one worker")
            router: Partitioner[Any, Any] | RoutingTable = self.partitioner
            splits = router.splits_keys
        else:
            n = self.n_workers[0] if isinstance(self.n_workers, tuple) else self.n_workers
            given = self.partitioner.partitioner if isinstance(self.partitioner, Exact) else self.partitioner
            costs = BATCH_COSTS if split else STATE_COSTS
            may_split = split and is_safe_to_split(self.df, given)
            router = partitioner = chosen(given, n or parallelism(self.df.sparkSession), may_split, costs)
            # Sources that route rows themselves may send one key to several workers, even if none of them splits it.
            row_by_row = isinstance(self.partitioner, Exact)
            splits = Sourced(partitioner).splits_keys if row_by_row else partitioner.splits_keys
        if splits:
            check_splitting(self.df)
        return router


def keyed_rows(df: DataFrame, keys: Sequence[Key], time: str | None, watermark: str) -> KeyedRows:
    """Checks and resolves the parameters of `stream` of these names."""
    require(
        df.isStreaming, "stream takes a streaming DataFrame, such as spark.readStream gives; sl.group_by takes others"
    )
    key, delay = keyed(df, keys), duration("a watermark", watermark)
    event_time = None
    if time is not None:
        (field,) = fields_of(df, [time])
        is_time = isinstance(field.dataType, TimestampType)
        require(is_time, f"column {time!r} must be a timestamp, not {field.dataType.simpleString()}: cast it first")
        event_time = EventTime(time, delay)
    return KeyedRows(key.df, StreamKey.of(key), event_time)
