"""Joins of two streams: rows of one key whose times are near each other, with hot keys spread as in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from skewless.histogram import Histogram
from skewless.spark.batch import WORKER
from skewless.spark.checkpoint import Checkpoint, write_rows
from skewless.spark.engine import Batch, Found
from skewless.spark.grids import Costs, Counted, Grids, gridded
from skewless.spark.join import placed
from skewless.spark.keys import any_null, column, hashed, unused
from skewless.spark.profile import frequencies, histogram, observed
from skewless.spark.windows import EARLIEST

SIDES = ("left", "right")  # columns of the two streams in one, and the directories of their rows
HOTTEST = 1000  # keys of a side that are remembered
_NEW = "new in batch"


class Kept(NamedTuple):
    """Rows of one side that wait for others, on disk."""

    side: str
    batch: int
    first: int  # time, in microseconds
    last: int


@dataclass(frozen=True)
class Intervals:
    """Pairs of rows with one key, the right one between `early` and `late` after the left one; times are microseconds.

    Rows wait on disk as long as one may come that they match: until the watermark says that none can.
    """

    keys: tuple[str, ...]
    times: tuple[str, str]
    schemas: tuple[StructType, StructType]
    early: int
    late: int
    delay: int  # of the watermark behind the latest time seen on the side that is behind
    n_workers: int

    @property
    def left_to_spark(self) -> bool:
        return True

    def identity(self, df: DataFrame) -> dict[str, str]:
        """What must not change while there is a checkpoint."""
        sides = {f"the {side} side": schema.simpleString() for side, schema in zip(SIDES, self.schemas, strict=True)}
        interval = f"{self.early:,} to {self.late:,} microseconds"
        return {"key": ", ".join(self.keys), "times": ", ".join(self.times), "interval": interval, **sides}

    def run(self, given: Batch) -> Found:
        """One batch: its rows go to disk, and those that match what is there, or each other, come out."""
        df, batch, state, _, files, _ = given
        last = state or {"latest": [EARLIEST, EARLIEST], "kept": [], "counted": None}
        kept = [Kept(*entry) for entry in last["kept"]]
        watermark = min(last["latest"]) - self.delay if min(last["latest"]) != EARLIEST else EARLIEST
        seen = [Observation(f"{side} {batch}") for side in SIDES]
        for number, side in enumerate(SIDES):
            write_rows(self._rows(df, number, watermark, seen[number]), files.place(f"{side}/{batch}"))
        facts = [observed(observation) for observation in seen]
        for side, fact in zip(SIDES, facts, strict=True):
            if fact.get("first") is not None:
                kept = [*kept, Kept(side, batch, fact["first"], fact["last"])]
        latest = [
            max(before, fact["latest"] if fact.get("latest") is not None else EARLIEST)
            for before, fact in zip(last["latest"], facts, strict=True)
        ]
        counted = [_counts(histogram(fact)) for fact in facts]
        output = self._matches(df, batch, kept, last["counted"] or counted, files)
        moved_on = min(latest) - self.delay if min(latest) != EARLIEST else EARLIEST
        left = [entry for entry in kept if self._waits(entry, moved_on)]
        record = {
            "rows": sum(fact.get("everything", 0) for fact in facts),
            "late": sum(fact.get("late", 0) for fact in facts),
            "watermark": None if moved_on == EARLIEST else moved_on // 1000,
            "decision": f"joined on {self.n_workers} workers",
        }
        # What is counted is that of the last batch in which both sides had rows.
        both = counted if all(entry["keys"] for entry in counted) else last["counted"]
        return Found({"latest": latest, "kept": left, "counted": both}, output, None, record)

    def forget(self, state: dict[str, Any], files: Checkpoint) -> None:
        """Delete rows that match nothing any more."""
        needed = {(entry[0], entry[1]) for entry in state["kept"]}
        for side in SIDES:
            files.forget(side, [batch for batch in files.numbered(side) if (side, batch) not in needed])

    def _rows(self, df: DataFrame, number: int, watermark: int, seen: Observation) -> DataFrame:
        """The new rows of a side that are not late, and what is observed of them."""
        rows = df.where(column(SIDES[number]).isNotNull()).select(f"{SIDES[number]}.*")
        at, key = unused(rows, "time", "hash")
        stamp = column(at)
        on_time = stamp >= F.lit(watermark)
        hashes, times = hashed(rows, self.keys).alias(key), F.unix_micros(column(self.times[number])).alias(at)
        # NULL matches nothing.
        rows = rows.select("*", times, hashes).where(stamp.isNotNull() & ~F.expr(any_null(self.keys)))
        told = [
            F.count(F.lit(1)).alias("everything"),
            F.count_if(~on_time).alias("late"),
            F.max(stamp).alias("latest"),
            F.min(F.when(on_time, stamp)).alias("first"),
            F.max(F.when(on_time, stamp)).alias("last"),
        ]
        rows = rows.observe(seen, *told, *frequencies(key))
        return rows.where(on_time).drop(at, key)

    def _waits(self, entry: Kept, watermark: int) -> bool:
        """Whether a row may come that matches one of these: its time is at least the watermark."""
        until = self.late if entry.side == "left" else -self.early
        return entry.last + until >= watermark

    def _matches(
        self, df: DataFrame, batch: int, kept: Sequence[Kept], counted: Sequence[dict[str, Any]], files: Checkpoint
    ) -> DataFrame | None:
        """All pairs of which this batch has brought one."""
        if not any(entry.batch == batch for entry in kept) or {entry.side for entry in kept} != set(SIDES):
            return None
        sides = []
        for side, schema, time in zip(SIDES, self.schemas, self.times, strict=True):
            parts = []
            for is_new in (False, True):
                places = [
                    f"{side}/{entry.batch}" for entry in kept if entry.side == side and (entry.batch == batch) == is_new
                ]
                if places:
                    found = df.sparkSession.read.schema(schema).parquet(*map(files.place, places))
                    parts.append(found.select("*", F.lit(is_new).alias(f"{side} {_NEW}")))
            rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
            sides.append(rows.select("*", F.unix_micros(column(time)).alias(f"{side} time")))
        apart = column("right time") - column("left time")
        near = (apart >= F.lit(self.early)) & (apart <= F.lit(self.late))
        pairs = self._joined(sides[0], sides[1], counted)
        pairs = pairs.where(near & (column(f"left {_NEW}") | column(f"right {_NEW}")))
        return pairs.drop(*(f"{side} {what}" for side in SIDES for what in (_NEW, "time")))

    def _joined(self, left: DataFrame, right: DataFrame, counted: Sequence[dict[str, Any]]) -> DataFrame:
        of_left, of_right = (Counted(_histogram(side), 0.0) for side in counted)
        grids = gridded(Costs.of((of_left, of_right), "inner"), "inner", self.n_workers)
        if grids is None:
            return left.join(right, list(self.keys), "inner")
        return _placed_pairs(left, right, self.keys, grids)


def _placed_pairs(left: DataFrame, right: DataFrame, keys: tuple[str, ...], grids: Grids) -> DataFrame:
    (name,) = unused(left.join(right, list(keys)), WORKER)
    sides = [placed(side, keys, grids, name, is_left, None) for side, is_left in ((left, True), (right, False))]
    return sides[0].join(sides[1], [*keys, name], "inner").drop(name)


def _counts(histogram: Histogram) -> dict[str, Any]:
    """What the commit keeps of a side: its hottest keys."""
    keys, counts = histogram.keys[:HOTTEST], histogram.counts[:HOTTEST]
    rest = max(0.0, histogram.total - float(counts.sum()))
    return {"keys": [str(key) for key in keys.tolist()], "counts": counts.tolist(), "rest": rest}


def _histogram(counts: dict[str, Any]) -> Histogram:
    return Histogram(
        np.array([int(key) for key in counts["keys"]], np.uint64), np.array(counts["counts"]), counts["rest"]
    )


def both_sides(left: DataFrame, right: DataFrame) -> DataFrame:
    """Two streams as one, with a column for the rows of each."""
    empty = F.lit(None)
    of_left = F.struct(*map(column, left.columns)), empty.cast(right.schema)
    of_right = empty.cast(left.schema), F.struct(*map(column, right.columns))
    first, second = (
        side.select(*(value.alias(name) for name, value in zip(SIDES, values, strict=True)))
        for side, values in ((left, of_left), (right, of_right))
    )
    return first.union(second)
