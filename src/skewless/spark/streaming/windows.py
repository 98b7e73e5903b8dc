"""Windows over a stream: each batch adds states to panes, and windows are merged from panes when they are complete."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, NamedTuple

from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as F

from skewless.histogram import Histogram
from skewless.spark.keys import column, fields_of, hashed, unused
from skewless.spark.profile import EXACT_OBSERVATIONS, frequencies, histogram, observed
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.operator import Batch, BatchResult
from skewless.spark.streaming.pane_states import PaneAggregation
from skewless.spark.streaming.panes import PANE, START, Panes, PaneStore, Span, forget, pane
from skewless.spark.streaming.rows import EventTime, StreamKey
from skewless.spark.streaming.times import EARLIEST, in_milliseconds
from skewless.spark.verbs.fold import Fold

MOST_PANES = 16  # directories of panes that are read one by one; then they are merged into one
_NEW, _CHANGED = "new in batch", "changed by batch"


class LastWindow(NamedTuple):
    """The last complete window, which the next ones are computed from."""

    batch: int  # the batch that wrote it
    start: int


@dataclass(frozen=True, kw_only=True)
class WindowsState:
    """What windows carry from batch to batch."""

    watermark: int = EARLIEST
    panes: tuple[Panes, ...] = ()
    running: LastWindow | None = None

    def to_json(self) -> dict[str, Any]:
        return {"watermark": self.watermark, "panes": list(self.panes), "running": self.running}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> WindowsState:
        panes, running = content["panes"], content["running"]
        return cls(
            watermark=content["watermark"],
            panes=tuple(Panes(*entry) for entry in panes),
            running=None if running is None else LastWindow(*running),
        )


class Watermarks(NamedTuple):
    """The watermark before and after a batch."""

    before: int
    after: int


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Aggregates by key and window of event time. All times are microseconds."""

    key: StreamKey
    time: EventTime
    span: Span
    fold: Fold
    mode: Literal["append", "update"]
    incremental: bool = False  # is a window computed from the one before it, or from all of its panes?

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key.columns

    def is_routed(self, asked: bool) -> bool:
        """Returns True if asked, or if states grow with rows: Spark combines others before the shuffle."""
        return asked or self.fold.grows

    def identity(self, df: DataFrame) -> dict[str, str]:
        window = f"{self.span.size:,} microseconds every {self.span.slide:,}"
        key = self.key.schema(df).simpleString()
        return {
            # States are stored under the names of columns in the rows; those of added columns are not shown.
            "key": f"{key} in {self.key.stored(df).simpleString()}" if self.key.added else key,
            "time": self.time.column,
            "window": window,
            "aggregate": self.fold.describe(),
            "mode": self.mode,
        }

    def restored(self, state: dict[str, Any]) -> WindowsState:
        return WindowsState.from_json(state)

    def run(self, batch: Batch[WindowsState]) -> BatchResult[WindowsState]:
        """Writes the batch's states to disk, then computes the windows that are to be emitted after it."""
        df, state = batch.df, batch.state or WindowsState()
        panes, running = state.panes, state.running
        store = PaneStore(df.sparkSession, fields_of(df, self.keys), self.fold.schema(df), batch.files)
        seen, counted = Observation(f"seen {batch.number}"), Observation(f"keys {batch.number}")
        rows = self._on_time(df, state.watermark, seen)
        if batch.portion:
            rows = self._counted(rows, batch.portion, counted)
        added = PaneAggregation(self.key, self.fold, store.states).states(rows, batch.router, batch.number)
        store.write(added.states, "panes", batch.number)
        facts, bounds = observed(seen), added.facts()
        watermark = max(state.watermark, facts["latest"] - self.time.delay) if facts.get("rows") else state.watermark
        watermarks = Watermarks(state.watermark, watermark)
        if len(panes) >= MOST_PANES:
            panes, running = (self._merged(panes, batch.number, state.watermark, store),), None
        has_rows, output = bounds.get("first") is not None, None
        if has_rows:
            panes = (*panes, Panes("panes", batch.number, bounds["first"], bounds["last"]))
        if self.mode == "update":
            output = self._changed(panes, state.watermark, store) if has_rows else None
        elif panes:
            output, running = self._complete(panes, batch.number, watermarks, running, store)
        record = {
            "rows": facts.get("rows", 0),
            "late": facts.get("late", 0),
            "keys": bounds.get("keys", 0),
            "watermark": in_milliseconds(watermark),
            **added.record(),
        }
        if batch.router is None:
            record["decision"] = "left to Spark, which combines rows before it shuffles them"
        needed = tuple(entry for entry in panes if self._is_needed(entry, watermark, running))
        return BatchResult(
            state=WindowsState(watermark=watermark, panes=needed, running=running),
            output=output,
            record=record,
            histogram=_histogram(counted, batch.portion) if batch.portion else None,
            sources=added.sources(),
            exact=EXACT_OBSERVATIONS,
        )

    def forget(self, state: WindowsState, files: Checkpoint, background: Background[Any]) -> None:
        needed = [(entry.kind, entry.batch) for entry in state.panes]
        forget([*needed, ("running", state.running.batch)] if state.running else needed, files)

    def _on_time(self, df: DataFrame, watermark: int, seen: Observation) -> DataFrame:
        """Returns the rows that are not late, with their pane; `seen` observes all rows."""
        (at,) = unused(df, "time")
        rows = df.select("*", self.time.micros.alias(at)).where(column(at).isNotNull())
        rows = rows.select("*", self.span.pane_of(column(at)).alias(PANE))
        on_time = self.span.windows_of(pane())[1] + self.span.size > watermark
        facts = F.count(F.lit(1)).alias("rows"), F.count_if(~on_time).alias("late"), F.max(column(at)).alias("latest")
        return rows.observe(seen, *facts).where(on_time).drop(at)

    def _counted(self, rows: DataFrame, portion: float, counted: Observation) -> DataFrame:
        """Counts the keys of a share of the rows."""
        (name,) = unused(rows, "counted hash")
        hashes = hashed(rows, self.keys)
        sampled = hashes if portion == 1 else F.when(F.rand(1) < portion, hashes)
        return rows.select("*", sampled.alias(name)).observe(counted, *frequencies(name)).drop(name)

    def _is_needed(self, entry: Panes, watermark: int, running: LastWindow | None) -> bool:
        """Returns whether a later window contains one of these panes, or must subtract one."""
        is_open = self.span.last(entry.last) >= self.span.first_open(watermark)
        return is_open or (running is not None and entry.last >= running.start)

    def _merged(self, panes: tuple[Panes, ...], batch: int, watermark: int, store: PaneStore) -> Panes:
        """Merges all panes that incomplete windows contain into one directory."""
        live = store.panes(panes).where(self.span.windows_of(pane())[1] >= self.span.first_open(watermark))
        store.write(self.fold.merged(live, [PANE, *self.keys], store.states), "merged", batch)
        return Panes("merged", batch, min(entry.first for entry in panes), max(entry.last for entry in panes))

    def _changed(self, panes: tuple[Panes, ...], watermark: int, store: PaneStore) -> DataFrame:
        """Returns the incomplete windows that the newest panes have changed."""
        states = store.panes(panes[-1:]).select("*", F.lit(True).alias(_NEW))
        if panes[:-1]:
            states = states.unionByName(store.panes(panes[:-1]).select("*", F.lit(False).alias(_NEW)))
        first, last = self.span.windows_of(pane())
        rows = self.span.spread(states, F.greatest(first, F.lit(self.span.first_open(watermark))), last)
        group = Window.partitionBy(*map(column, [START, *self.keys]))
        rows = rows.select("*", F.max(column(_NEW)).over(group).alias(_CHANGED)).where(column(_CHANGED))
        return self._results(rows.drop(_NEW, _CHANGED), store)

    def _complete(
        self,
        panes: tuple[Panes, ...],
        batch: int,
        watermarks: Watermarks,
        running: LastWindow | None,
        store: PaneStore,
    ) -> tuple[DataFrame | None, LastWindow | None]:
        """Returns the windows that the watermark has just completed, and the last of them.

        running: the last window that was complete before.
        """
        begin, end = (self.span.first_open(watermark) for watermark in watermarks)
        soonest = max(begin, min(self.span.first(entry.first) for entry in panes))
        if soonest >= end:
            return None, running
        first, last = F.lit(begin), F.lit(end - self.span.slide)
        since, until = self.span.windows_of(pane())
        windows = F.greatest(since, first), F.least(until, last)
        # Starting from the last window pays only for few new windows: at most half as many as a window has panes.
        few = 2 * (end - soonest) * self.span.pane_size <= self.span.size * self.span.slide
        if not self.incremental:
            return self._results(self.span.spread(store.panes(panes), *windows), store), None
        if running is None or not few:
            rows = self.span.spread(store.panes(panes), *windows)
        else:
            written, base = running
            # Each window is the last one, minus the panes that it no longer contains, plus what came since.
            parts = [self.span.spread(store.windows(written).where(column(START) == base).drop(START), first, last)]
            old, new = ([entry for entry in panes if (entry.batch > written) == is_new] for is_new in (False, True))
            if old:
                states = store.panes(old)
                within = (pane() >= base) & (pane() < base + self.span.size)
                parts.append(self.span.spread(states.where(pane() >= base + self.span.size), *windows))
                gone = self.span.spread(states.where(within), F.greatest(until + self.span.slide, first), last)
                parts.append(self.fold.inverse(gone))
            if new:
                parts.append(self.span.spread(store.panes(new), *windows))
            rows = reduce(DataFrame.unionByName, parts)
        merged = self.fold.merged(rows, [START, *self.keys], store.states)
        store.write(self.fold.present(merged), "running", batch)
        return self._results(store.windows(batch), store), LastWindow(batch, end - self.span.slide)

    def _results(self, states: DataFrame, store: PaneStore) -> DataFrame:
        """Returns the results of windows as users see them, with the window as Spark has it."""
        results = self.fold.concluded(states, [START, *self.keys], store.states)
        begin, end = F.timestamp_micros(column(START)), F.timestamp_micros(column(START) + self.span.size)
        bounds = F.struct(begin.alias("start"), end.alias("end")).alias("window")
        return self.key.renamed(results.select(bounds, *(column(name) for name in results.columns if name != START)))


def _histogram(counted: Observation, portion: float) -> Histogram | None:
    """Returns the histogram of a batch: an estimate, since before Spark 4.3 rows of failed attempts count too."""
    result = histogram(observed(counted), portion)
    return result if result.total else None
