"""Joins of two streams: rows of one key whose times are near each other, with hot keys spread as in a batch join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from skewless.histogram import Histogram
from skewless.spark.grids import Counted, Grids, JoinCosts, gridded
from skewless.spark.keys import any_null, column, hashed, unused
from skewless.spark.profile import frequencies, histogram, observed
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint, read_rows, write_rows
from skewless.spark.streaming.operator import Batch, BatchResult
from skewless.spark.streaming.rows import EventTime, StreamKey
from skewless.spark.streaming.times import EARLIEST, in_milliseconds
from skewless.spark.verbs.join import joined

SIDES = ("left", "right")  # the columns of `both_sides`, and the directories of rows that wait
HOTTEST = 1000  # keys of a side that a commit remembers
_NEW = "new in batch"


class Waiting(NamedTuple):
    """A directory of rows of one side that later rows may match."""

    side: str
    batch: int
    first: int  # the first time of its rows, in microseconds
    last: int


@dataclass(frozen=True, kw_only=True)
class IntervalState:
    """What an interval join carries from batch to batch."""

    latest: tuple[int, int] = (EARLIEST, EARLIEST)  # the latest time seen on each side
    waiting: tuple[Waiting, ...] = ()
    histograms: tuple[Histogram, Histogram] | None = None  # of the last batch in which both sides had rows

    def watermark(self, delay: int) -> int:
        """Returns the watermark: the latest time of the side that is behind, minus the delay."""
        return min(self.latest) - delay if min(self.latest) != EARLIEST else EARLIEST

    def to_json(self) -> dict[str, Any]:
        counted = None if self.histograms is None else [_histogram_to_json(side) for side in self.histograms]
        return {"latest": list(self.latest), "kept": list(self.waiting), "counted": counted}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> IntervalState:
        left, right = content["latest"]
        counted = content["counted"]
        return cls(
            latest=(left, right),
            waiting=tuple(Waiting(*entry) for entry in content["kept"]),
            histograms=None if counted is None else (_histogram_of(counted[0]), _histogram_of(counted[1])),
        )


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Pairs of rows with one key, the right one `least` to `most` after the left one; times are microseconds.

    Rows wait on disk until the watermark says that no more rows can match them.
    """

    key: StreamKey
    times: tuple[EventTime, EventTime]
    schemas: tuple[StructType, StructType]
    least: int  # negative: the right row may be before the left one
    most: int
    n_workers: int
    problem: str = ""  # why hot keys may not be spread; empty if they may

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key.columns

    def is_routed(self, asked: bool) -> bool:
        """Returns False: the join spreads hot keys itself, over grids of workers."""
        return False

    @property
    def delay(self) -> int:
        return max(time.delay for time in self.times)

    def identity(self, df: DataFrame) -> dict[str, str]:
        sides = {f"the {side} side": schema.simpleString() for side, schema in zip(SIDES, self.schemas, strict=True)}
        interval = f"{self.least:,} to {self.most:,} microseconds"
        times = ", ".join(time.column for time in self.times)
        return {"key": ", ".join(self.key.names), "times": times, "interval": interval, **sides}

    def restored(self, state: dict[str, Any]) -> IntervalState:
        return IntervalState.from_json(state)

    def run(self, batch: Batch[IntervalState]) -> BatchResult[IntervalState]:
        """Writes the rows of the batch to disk, then joins them with those that wait there, and with each other."""
        df, files, state = batch.df, batch.files, batch.state or IntervalState()
        watermark = state.watermark(self.delay)
        seen = [Observation(f"{side} {batch.number}") for side in SIDES]
        for number, side in enumerate(SIDES):
            write_rows(self._rows(df, number, watermark, seen[number]), files.path(f"{side}/{batch.number}"))
        left, right = (observed(observation) for observation in seen)
        waiting = state.waiting
        for side, facts in zip(SIDES, (left, right), strict=True):
            if facts.get("first") is not None:
                waiting = (*waiting, Waiting(side, batch.number, facts["first"], facts["last"]))
        histograms = _hottest(histogram(left)), _hottest(histogram(right))
        grids = self._grids(state.histograms or histograms)
        output = self._matches(batch, waiting, grids)
        left_because = f"left to Spark: {self.problem or 'no key is hot enough'}"
        decision = left_because if grids is None else f"{grids.keys.size} hot keys on grids"
        latest = _later(state.latest[0], left.get("latest")), _later(state.latest[1], right.get("latest"))
        after = IntervalState(
            latest=latest,
            waiting=waiting,
            histograms=histograms if all(side.keys.size for side in histograms) else state.histograms,
        )
        watermark = after.watermark(self.delay)
        record = {
            "rows": left.get("everything", 0) + right.get("everything", 0),
            "late": left.get("late", 0) + right.get("late", 0),
            "watermark": in_milliseconds(watermark),
            "decision": decision,
        }
        needed = tuple(entry for entry in waiting if self._is_needed(entry, watermark))
        return BatchResult(state=replace(after, waiting=needed), output=output, record=record)

    def forget(self, state: IntervalState, files: Checkpoint, background: Background[Any]) -> None:
        needed = {(entry.side, entry.batch) for entry in state.waiting}
        for side in SIDES:
            files.forget(side, [batch for batch in files.numbered(side) if (side, batch) not in needed])

    def _rows(self, df: DataFrame, number: int, watermark: int, seen: Observation) -> DataFrame:
        """Returns the new rows of a side that are not late; `seen` observes all of them."""
        rows = df.where(column(SIDES[number]).isNotNull()).select(f"{SIDES[number]}.*")
        at, key = unused(rows, "time", "hash")
        stamp = column(at)
        on_time = stamp >= F.lit(watermark)
        hashes, times = hashed(rows, self.keys).alias(key), self.times[number].micros.alias(at)
        # NULL matches nothing.
        rows = rows.select("*", times, hashes).where(stamp.isNotNull() & ~F.expr(any_null(self.keys)))
        facts = [
            F.count(F.lit(1)).alias("everything"),
            F.count_if(~on_time).alias("late"),
            F.max(stamp).alias("latest"),
            F.min(F.when(on_time, stamp)).alias("first"),
            F.max(F.when(on_time, stamp)).alias("last"),
        ]
        rows = rows.observe(seen, *facts, *frequencies(key))
        return rows.where(on_time).drop(at, key)

    def _is_needed(self, entry: Waiting, watermark: int) -> bool:
        """Returns whether later rows, whose times are at least the watermark, may match rows of this directory."""
        until = self.most if entry.side == "left" else -self.least
        return entry.last + until >= watermark

    def _matches(
        self, batch: Batch[IntervalState], waiting: Sequence[Waiting], grids: Grids | None
    ) -> DataFrame | None:
        """Returns the pairs of which this batch brought at least one row."""
        has_new = any(entry.batch == batch.number for entry in waiting)
        if not has_new or {entry.side for entry in waiting} != set(SIDES):
            return None
        left, right = (self._side(batch, waiting, number) for number in range(2))
        apart = column("right time") - column("left time")
        near = (apart >= F.lit(self.least)) & (apart <= F.lit(self.most))
        pairs = left.join(right, list(self.keys)) if grids is None else joined(left, right, self.keys, "inner", grids)
        pairs = pairs.where(near & (column(f"left {_NEW}") | column(f"right {_NEW}")))
        return pairs.drop(*(f"{side} {what}" for side in SIDES for what in (_NEW, "time")), *self.key.added)

    def _side(self, batch: Batch[IntervalState], waiting: Sequence[Waiting], number: int) -> DataFrame:
        """Returns all rows of a side that may match: with their time, and whether they are new."""
        side, parts = SIDES[number], []
        for is_new in (False, True):
            batches = [entry.batch for entry in waiting if entry.side == side]
            paths = [batch.files.path(f"{side}/{b}") for b in batches if (b == batch.number) == is_new]
            if paths:
                rows = read_rows(batch.df.sparkSession, self.schemas[number], *paths)
                parts.append(rows.select("*", F.lit(is_new).alias(f"{side} {_NEW}")))
        rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        return rows.select("*", self.times[number].micros.alias(f"{side} time"))

    def _grids(self, histograms: tuple[Histogram, Histogram]) -> Grids | None:
        if self.problem:
            return None
        # Counts by `observe` may be too high after a failed attempt; they decide where rows go, not which pairs match.
        of_left, of_right = (Counted(side) for side in histograms)
        return gridded(JoinCosts.of((of_left, of_right), "inner"), "inner", self.n_workers)


def _later(before: int, latest: int | None) -> int:
    return before if latest is None else max(before, latest)


def _hottest(histogram: Histogram) -> Histogram:
    keys, counts = histogram.keys[:HOTTEST], histogram.counts[:HOTTEST]
    return Histogram(keys, counts, max(0.0, histogram.total - float(counts.sum())))


def _histogram_to_json(side: Histogram) -> dict[str, Any]:
    return {"keys": [str(key) for key in side.keys.tolist()], "counts": side.counts.tolist(), "rest": side.rest}


def _histogram_of(content: dict[str, Any]) -> Histogram:
    keys = np.array([int(key) for key in content["keys"]], np.uint64)
    return Histogram(keys, np.array(content["counts"]), content["rest"])


def both_sides(left: DataFrame, right: DataFrame) -> DataFrame:
    """Returns two streams as one, with a struct column for the rows of each; it is NULL in rows of the other."""
    empty = F.lit(None)
    of_left = F.struct(*map(column, left.columns)), empty.cast(right.schema)
    of_right = empty.cast(left.schema), F.struct(*map(column, right.columns))
    first, second = (
        side.select(*(value.alias(name) for name, value in zip(SIDES, values, strict=True)))
        for side, values in ((left, of_left), (right, of_right))
    )
    return first.union(second)
