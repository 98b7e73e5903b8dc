"""Keyed state in a stream: in each batch, a function sees the rows and the state of a key on one worker."""

from __future__ import annotations

from dataclasses import dataclass
from time import time as seconds_now
from typing import Any

from pyspark.sql import DataFrame

from skewless.spark.state.committed import KeyedState, manifests, store_of
from skewless.spark.state.function import KeyFunction, TaskInput
from skewless.spark.state.initial import initial_manifest
from skewless.spark.state.merging import merge_later, with_merged
from skewless.spark.state.reports import REPORTED, Reports
from skewless.spark.state.routing import LateRows, RoutedRows, task_count
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint, read_rows
from skewless.spark.streaming.operator import Batch, BatchResult
from skewless.spark.streaming.rows import EventTime, StreamKey
from skewless.spark.streaming.times import EARLIEST, in_milliseconds
from skewless.store import StateStore, discard, sweep

SWEEP = 8  # batches between two searches for files that are not needed


@dataclass(frozen=True, kw_only=True)
class Stateful:
    """A function with keyed state, as an operator of the engine. Times are microseconds, but users see milliseconds."""

    key: StreamKey
    function: KeyFunction
    time: EventTime | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key.columns

    def is_routed(self, asked: bool) -> bool:
        """Returns True: state is kept where a routing table says, so that Spark cannot distribute the rows."""
        return True

    def identity(self, df: DataFrame) -> dict[str, str]:
        return {
            "key": self.key.schema(df).simpleString(),
            "state": self.function.state.simpleString(),
            "timeout": self.function.timeout,
            "time": str(self.time and self.time.column),
        }

    def restored(self, state: dict[str, Any]) -> KeyedState:
        return KeyedState.from_json(state)

    def run(self, batch: Batch[KeyedState]) -> BatchResult[KeyedState]:
        """Runs the function in tasks, each of which reports the files that it wrote."""
        df, files, table, state = batch.df, batch.files, batch.table, batch.state
        spark, key = df.sparkSession, self.key.stored(df)
        store = store_of(files, key, self.function.state)
        manifest = initial_manifest(files, store) if state is None else state.manifest
        watermark = EARLIEST if state is None else state.watermark
        late = EARLIEST if state is None or self.function.timeout != "EventTimeTimeout" else state.late
        tasks, now = task_count(spark, table.n_workers), self._begun(batch, store)
        routed = RoutedRows.of(df, table, tasks, self.key, LateRows(self.time, late))
        given = TaskInput(
            df=df,
            key=self.key,
            position=routed.position,
            tasks=tasks,
            store=store,
            manifest=manifest,
            table=table,
            version=batch.number,
            files=files,
        )
        task = self.function.task(given, now, max(watermark // 1000, 0))
        reports = Reports(routed.rows.mapInArrow(task, REPORTED), table.n_workers)
        manifest = manifest.committed(store, batch.number, reports.receipts)
        manifest = with_merged(batch.background, store, manifest)
        merge_later(batch.background, spark, store, manifest, table)
        facts = routed.facts()
        after = KeyedState(
            batch=batch.number,
            watermark=self._watermark(watermark, facts.get("latest")),
            late=watermark,
            manifest=manifest,
            key=key,
            state=self.function.state,
            n_workers=table.n_workers,
            names=tuple(self.key.names),
        )
        dropped = facts.get("late", 0)
        record = {
            "rows": sum(reports.loads) + dropped,
            "late": dropped,
            **reports.record(),
            "watermark": in_milliseconds(after.watermark),
        }
        outputs = reports.outputs
        return BatchResult(
            state=after,
            output=read_rows(spark, self.function.output, *outputs, datetimeRebaseMode="CORRECTED")
            if outputs
            else None,
            record=record,
            histogram=reports.histogram() if batch.portion and any(reports.loads) else None,
        )

    def forget(self, state: KeyedState, files: Checkpoint, background: Background[Any]) -> None:
        for kind, ending in (("output", ""), ("times", ".json")):
            files.forget(kind, [number for number in files.numbered(kind) if number < state.batch], ending)
        if state.batch % SWEEP == 0 and not background.is_busy:  # files that are being merged are in no manifest yet
            sweep(state.store(files), manifests(files))

    def _watermark(self, before: int, latest: int | None) -> int:
        if latest is None or self.time is None:
            return before
        return max(before, (latest - self.time.delay) // 1000 * 1000)  # Spark's watermark has milliseconds

    def _begun(self, batch: Batch[KeyedState], store: StateStore) -> int:
        """Returns the time of a batch. For a replay it is the same, and what the earlier attempt wrote is deleted."""
        name = f"times/{batch.number}.json"
        saved = batch.files.read(name)
        if saved is None:
            saved = int(seconds_now() * 1000)
            batch.files.write(name, saved)
        else:
            discard(store, batch.number)
            batch.files.forget("output", [batch.number])
        return int(saved)
