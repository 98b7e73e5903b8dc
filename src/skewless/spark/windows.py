"""Windows over a stream: each batch adds states to panes; windows are merged from panes when they are complete."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Literal

import numpy as np
from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from skewless.partitioners.prompt import allocate
from skewless.spark.batch import WORKER, routed
from skewless.spark.checkpoint import Checkpoint
from skewless.spark.engine import Batch, Found
from skewless.spark.exact import Pass, Sourced, Sources, passed
from skewless.spark.fold import Fold
from skewless.spark.keys import column, fields_of, hashed, hashing, unused
from skewless.spark.panes import PANE, START, Panes, Span, Store, forget, pane
from skewless.spark.profile import distinct, frequencies, histogram, observed
from skewless.spark.route import worker
from skewless.table import RoutingTable

MOST_PANES = 16  # directories that are read one by one; then they are merged into one
EARLIEST = -(2**62)  # microseconds: before everything


@dataclass(frozen=True)
class Windows:
    """Aggregates by key and window of event time. All times are microseconds."""

    keys: tuple[str, ...]
    time: str
    span: Span
    delay: int  # of the watermark behind the latest time seen
    fold: Fold
    mode: Literal["append", "update"]
    incremental: bool = False  # is a window made from the one before it, or from all of its panes?

    @property
    def left_to_spark(self) -> bool:
        """Spark combines rows before it sends them anywhere, so that hot keys do no harm."""
        return not self.fold.grows

    def identity(self, df: DataFrame) -> dict[str, str]:
        """What must not change while there is a checkpoint."""
        keys = StructType(fields_of(df, self.keys)).simpleString()
        window = f"{self.span.size:,} microseconds every {self.span.slide:,}"
        return {"key": keys, "time": self.time, "window": window, "aggregate": self.fold.describe(), "mode": self.mode}

    def run(self, given: Batch) -> Found:
        """One batch: route, partial states, final states to disk, and the windows to tell of after it."""
        df, batch, state, by, files, portion = given
        last = state or {"watermark": EARLIEST, "panes": [], "running": None}
        watermark, panes, running = last["watermark"], [Panes(*entry) for entry in last["panes"]], last["running"]
        store = Store(df.sparkSession, fields_of(df, self.keys), self.fold.schema(df), files)
        at, some = unused(df, "time", "counted hash")
        seen = Observation(f"seen {batch}")
        rows = df.select("*", F.unix_micros(column(self.time)).alias(at)).where(column(at).isNotNull())
        rows = rows.select("*", self.span.pane_of(column(at)).alias(PANE))
        on_time = self.span.windows_of(pane())[1] + self.span.size > watermark
        rows = rows.observe(seen, *self._measures(column(at), on_time)).where(on_time).drop(at)
        keyed = Observation(f"keys {batch}") if portion else None
        if keyed is not None:
            hashes = hashed(df, self.keys)
            counted = hashes if portion == 1 else F.when(F.rand(1) < portion, hashes)
            rows = rows.select("*", counted.alias(some)).observe(keyed, *frequencies(some)).drop(some)
        states, watched = self._states(rows, store.states, by, batch)
        store.write(states, "panes", batch)
        facts, added = observed(seen), watched.states()
        moved_on = max(watermark, facts["latest"] - self.delay) if facts.get("rows") else watermark
        if len(panes) >= MOST_PANES:
            panes, running = [self._merged(panes, batch, watermark, store)], None
        output = None
        if added.get("first") is not None:
            panes = [*panes, Panes("panes", batch, added["first"], added["last"])]
        if self.mode == "update":
            output = self._changed(panes, watermark, store) if added.get("first") is not None else None
        elif panes:
            output, running = self._complete(panes, batch, (watermark, moved_on), running, store)
        kept = [entry for entry in panes if self._matters(entry, moved_on, running)]
        known = None if keyed is None else histogram(observed(keyed), portion)
        record = {
            "rows": facts.get("rows", 0),
            "late": facts.get("late", 0),
            "keys": added.get("keys", 0),
            "watermark": None if moved_on == EARLIEST else moved_on // 1000,
            **watched.record(),
        }
        told = {"watermark": moved_on, "panes": kept, "running": running}
        return Found(told, output, known if known is not None and known.total else None, record, watched.left())

    def forget(self, state: dict[str, Any], files: Checkpoint) -> None:
        """Delete what nothing needs after a commit."""
        needed = [(entry[0], entry[1]) for entry in state["panes"]]
        forget([*needed, ("running", state["running"][0])] if state["running"] else needed, files)

    def _matters(self, entry: Panes, watermark: int, running: list[int] | None) -> bool:
        """Whether a window to come has one of these panes, or must take one away again."""
        is_open = self.span.last(entry.last) >= self.span.first_open(watermark)
        return is_open or (running is not None and entry.last >= running[1])

    def _measures(self, at: Column, on_time: Column) -> list[Column]:
        return [
            F.count(F.lit(1)).alias("rows"),
            F.count_if(~on_time).alias("late"),
            F.max(at).alias("latest"),
        ]

    def _states(
        self, rows: DataFrame, schema: StructType, routing: RoutingTable | Sourced | None, batch: int
    ) -> tuple[DataFrame, _Watched]:
        """One state for each key and pane of the batch; and what tells of the work of workers once it is done."""
        by = [PANE, *self.keys]
        if routing is None:
            watched = _Watched(0, Observation(f"states {batch}"))
            return self._seen(self.fold.partial(rows, by, [PANE]), rows, watched), watched
        n = routing.n_workers
        (number,) = unused(rows, WORKER)
        watched = _Watched(n, Observation(f"states {batch}"), Observation(f"loads {batch}"))
        if isinstance(routing, Sourced):
            watched.sources = passed(rows, self.keys, routing, number)
            sent = watched.sources.rows
        else:
            sent = routed(rows, self.keys, routing, number)
        # A sketch that may track twice as many items as there are counts exactly.
        top = F.call_function("approx_top_k", column(number), F.lit(n), F.lit(1 << (2 * n).bit_length()))
        states = self.fold.partial(sent.observe(watched.loads, top.alias("loads")), [*by, number], [PANE, number])
        states = self._seen(states, rows, watched)
        if isinstance(routing, Sourced):
            if routing.splits_keys:
                return self.fold.merged(states.drop(number), by, schema), watched
        elif routing.splits_keys:
            reducer = worker(reducing(routing), hashing(rows, self.keys))
            states = states.drop(number).select("*", reducer.alias(number)).repartitionById(n, column(number))
            states = self.fold.merged(states, [*by, number], schema)
        return states.drop(number), watched

    def _seen(self, states: DataFrame, rows: DataFrame, watched: _Watched) -> DataFrame:
        """The same states, of which `watched` tells once they are written. They are fewer than the rows."""
        bounds = F.min(pane()).alias("first"), F.max(pane()).alias("last")
        told = F.count(F.lit(1)).alias("fragments"), distinct(_HASH).alias("keys"), *bounds
        return states.select("*", hashed(rows, self.keys).alias(_HASH)).observe(watched.seen, *told).drop(_HASH)

    def _merged(self, panes: list[Panes], batch: int, watermark: int, store: Store) -> Panes:
        """All panes that still matter, in one place."""
        live = store.panes(panes).where(self.span.windows_of(pane())[1] >= self.span.first_open(watermark))
        store.write(self.fold.merged(live, [PANE, *self.keys], store.states), "merged", batch)
        return Panes("merged", batch, min(entry.first for entry in panes), max(entry.last for entry in panes))

    def _changed(self, panes: list[Panes], watermark: int, store: Store) -> DataFrame:
        """The windows to which the last of the panes have added something, that are not complete yet."""
        states = store.panes(panes[-1:]).select("*", F.lit(True).alias(_NEW))
        if panes[:-1]:
            states = states.unionByName(store.panes(panes[:-1]).select("*", F.lit(False).alias(_NEW)))
        first, last = self.span.windows_of(pane())
        rows = self.span.spread(states, F.greatest(first, F.lit(self.span.first_open(watermark))), last)
        each = Window.partitionBy(*map(column, [START, *self.keys]))
        rows = rows.select("*", F.max(column(_NEW)).over(each).alias(_CHANGED)).where(column(_CHANGED))
        return self._told(rows.drop(_NEW, _CHANGED), store)

    def _complete(
        self, panes: list[Panes], batch: int, watermarks: tuple[int, int], running: list[int] | None, store: Store
    ) -> tuple[DataFrame | None, list[int] | None]:
        """The windows that the watermark has just completed; and what the next ones are made from.

        running: the batch that wrote the last window that was complete before, and its start.
        """
        begin, end = (self.span.first_open(watermark) for watermark in watermarks)
        soonest = max(begin, min(self.span.first(entry.first) for entry in panes))
        if soonest >= end:
            return None, running
        first, last = F.lit(begin), F.lit(end - self.span.slide)
        since, until = self.span.windows_of(pane())
        having = F.greatest(since, first), F.least(until, last)
        few = 2 * (end - soonest) * self.span.pane <= self.span.size * self.span.slide
        if not self.incremental:
            return self._told(self.span.spread(store.panes(panes), *having), store), None
        if running is None or not few:
            rows = self.span.spread(store.panes(panes), *having)
        else:
            written, base = running
            # All have what the last window had, but for the panes that they leave behind, and what came since.
            parts = [self.span.spread(store.windows(written).where(column(START) == base).drop(START), first, last)]
            old, new = ([entry for entry in panes if (entry.batch > written) == is_new] for is_new in (False, True))
            if old:
                states = store.panes(old)
                within = (pane() >= base) & (pane() < base + self.span.size)
                parts.append(self.span.spread(states.where(pane() >= base + self.span.size), *having))
                gone = self.span.spread(states.where(within), F.greatest(until + self.span.slide, first), last)
                parts.append(self.fold.inverse(gone))
            if new:
                parts.append(self.span.spread(store.panes(new), *having))
            rows = reduce(DataFrame.unionByName, parts)
        found = self.fold.merged(rows, [START, *self.keys], store.states)
        store.write(self.fold.present(found), "running", batch)
        return self._told(store.windows(batch), store), [batch, end - self.span.slide]

    def _told(self, states: DataFrame, store: Store) -> DataFrame:
        """Results of windows as users see them: with the window as Spark has it."""
        found = self.fold.concluded(states, [START, *self.keys], store.states)
        begin, end = F.timestamp_micros(column(START)), F.timestamp_micros(column(START) + self.span.size)
        bounds = F.struct(begin.alias("start"), end.alias("end")).alias("window")
        return found.select(bounds, *(column(name) for name in found.columns if name != START))


@dataclass
class _Watched:
    """What is observed of the workers of a batch; there to be asked when the batch is done."""

    n_workers: int
    seen: Observation
    loads: Observation = field(default_factory=Observation)
    sources: Pass | None = None

    def states(self) -> dict[str, Any]:
        return observed(self.seen)

    def record(self) -> dict[str, Any]:
        if self.n_workers == 0:
            return {}
        load = np.zeros(self.n_workers, np.int64)
        for item, count in observed(self.loads).get("loads") or ():
            load[item] = count
        return {"loads": load.tolist(), "fragments": self.states().get("fragments", 0)}

    def left(self) -> Sources | None:
        return None if self.sources is None else self.sources.left()


_NEW, _CHANGED, _HASH = "new in batch", "changed by batch", "hash of key"


def reducing(table: RoutingTable) -> RoutingTable:
    """Where the parts of split keys are merged: Prompt's allocation of buckets; all other keys stay where they are."""
    lengths = np.diff(table.starts)
    split = lengths > 1
    workers = table.places_of(table.keys)
    none = np.zeros(int(split.sum()), np.bool_)
    workers[split] = allocate(table.keys[split], lengths[split].astype(np.float64), none, table.n_workers)
    starts = np.arange(table.keys.size + 1, dtype=np.int64)
    return table.placing(table.keys, starts, workers, np.ones(table.keys.size))
