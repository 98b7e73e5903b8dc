"""Keyed state in a stream: the function of a key sees its rows and its state, on one worker, batch by batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import time
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from skewless.arrays import require
from skewless.histogram import Histogram
from skewless.kernels.place import keys_at
from skewless.spark.batch import WORKER
from skewless.spark.checkpoint import Checkpoint
from skewless.spark.engine import Batch, Found
from skewless.spark.groupstate import Clock, Timeout
from skewless.spark.haste import hastening
from skewless.spark.keys import column, fields_of, hashing, quoted, unused
from skewless.spark.parallelism import parallelism
from skewless.spark.processor import Processing
from skewless.spark.profile import observed
from skewless.spark.route import placing, worker
from skewless.spark.schema import arrow_schema, nullable, rows_schema
from skewless.spark.task import PLACE, REPORT, Function, Lasting, Loading, Task
from skewless.spark.windows import EARLIEST
from skewless.store import Manifest, Receipt, Segment, Share, Store, discard, entries, merge, sweep
from skewless.table import RoutingTable

INITIAL = "initial.json"  # the manifest that a query begins with
FIRST = -1  # the version of that
REPORTED = StructType([StructField(field.name, from_arrow_type(field.type)) for field in REPORT])
SWEEP = 8  # batches after which files that nothing needs are looked for
IN_TURN = 4  # tasks that are done in one slot, one after the other: each costs Spark about 25 milliseconds
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stateful:
    """A function of keys with state, as an operator of the engine. Times are microseconds, but for the user's."""

    keys: tuple[str, ...]
    function: Function | Lasting
    output: StructType
    state: StructType
    timeout: Timeout
    time: str | None
    delay: int  # of the watermark behind the latest time seen
    in_pandas: bool

    @property
    def left_to_spark(self) -> bool:
        return False

    def identity(self, df: DataFrame) -> dict[str, str]:
        """What must not change while there is a checkpoint."""
        key = StructType(fields_of(df, self.keys)).simpleString()
        return {"key": key, "state": self.state.simpleString(), "timeout": self.timeout, "time": str(self.time)}

    def run(self, given: Batch) -> Found:
        """One batch. Each task reports the files that it wrote in a row; of several attempts Spark takes one row."""
        df, batch, state, by, files, portion = given
        if not isinstance(by, RoutingTable):
            raise ValueError("keyed state needs a routing table: it is kept where the table says")
        table = by
        key = StructType(fields_of(df, self.keys))
        store = Store(files.place("state"), arrow_schema(key), arrow_schema(self.state))
        manifest = _merged(files, store, _manifest(state, store, files))
        watermark = state["watermark"] if state else EARLIEST
        late = state.get("late", watermark) if state else EARLIEST
        seen = Observation(f"seen {batch}")
        n, clock = table.n_workers, self.clock(self._begun(batch, store, files), max(watermark // 1000, 0))
        tasks = _tasks(df.sparkSession, n)
        routed, place = self._routed(df, table, tasks, late, seen)
        task = self.task(store, manifest, table, batch, clock, place, df, files, tasks)
        reports = _reports(routed.mapInArrow(task, REPORTED), n)
        facts = observed(seen)
        manifest = manifest.committed(store, batch, [Receipt.from_bytes(report["receipt"]) for report in reports])
        if some := manifest.due():
            _merge_later(df.sparkSession, files, store, some, table)
        moved_on = watermark
        if facts.get("latest") is not None:
            moved_on = max(watermark, (facts["latest"] - self.delay) // 1000 * 1000)  # Spark's has milliseconds
        told = [report["output"] for report in reports if report["output"]]
        reader = df.sparkSession.read.schema(self.output).option("datetimeRebaseMode", "CORRECTED")
        record = {
            "rows": facts.get("rows", 0),
            "late": facts.get("late", 0),
            "keys": sum(report["keys"] for report in reports),
            "expired": sum(report["expired"] for report in reports),
            "loads": [report["rows"] for report in reports],
            "state_read": sum(report["read"] for report in reports),
            "watermark": None if moved_on == EARLIEST else moved_on // 1000,
        }
        kept = {"watermark": moved_on, "late": watermark, "manifest": manifest.to_json(), "batch": batch}
        schemas = {"key": key.jsonValue(), "state": self.state.jsonValue(), "n_workers": n}
        histogram = _histogram(reports) if portion and any(record["loads"]) else None
        return Found(kept | schemas, reader.parquet(*told) if told else None, histogram, record)

    def clock(self, now: int, watermark: int) -> Clock:
        timers = isinstance(self.function, Processing)
        return Clock(now, watermark, self.timeout, self.time is not None, len(self.state), timers)

    def task(
        self,
        store: Store,
        manifest: Manifest,
        table: RoutingTable,
        version: int,
        clock: Clock,
        place: str,
        df: DataFrame,
        files: Checkpoint,
        tasks: int,
    ) -> Task:
        """The work on rows of `df`."""
        return Task(
            self.function,
            self.in_pandas,
            store,
            manifest,
            table,
            version,
            clock,
            self.keys,
            place,
            rows_schema(df),
            arrow_schema(self.output),
            files.place(f"output/{version}"),
            f"skewless-{manifest.name}",
            tasks,
        )

    def forget(self, state: dict[str, Any], files: Checkpoint) -> None:
        """Delete what nothing needs after a commit."""
        batch = state["batch"]
        for kind, ending in (("output", ""), ("times", ".json")):
            files.forget(kind, [number for number in files.numbered(kind) if number < batch], ending)
        if batch % SWEEP == 0 and files.directory not in _MERGING:
            commits = [files.read(f"commits/{number}.json") for number in files.numbered("commits")]
            kept = [Manifest.from_json(commit["state"]["manifest"]) for commit in commits]
            sweep(_store(state, files), kept)

    def _begun(self, batch: int, store: Store, files: Checkpoint) -> int:
        """The time of a batch, which is the same when it is run again; then what it wrote before is deleted."""
        known = files.read(f"times/{batch}.json")
        if known is None:
            known = int(time() * 1000)
            files.write(f"times/{batch}.json", known)
        else:
            discard(store, batch)
            files.forget("output", [batch])
        return int(known)

    def _routed(
        self, df: DataFrame, table: RoutingTable, tasks: int, late: int, seen: Observation
    ) -> tuple[DataFrame, str]:
        """The rows in so many tasks, sorted by the places of their keys; and the name of the column of those."""
        Share.of(table, 0)  # refuses split keys
        (place, number), key = unused(df, PLACE, WORKER), hashing(df, self.keys)
        places, numbers = F.expr(placing(key)).alias(place), worker(table, key).alias(number)
        rows = self._on_time(df, late, seen).select("*", places, numbers)
        # One row without a key for each task: keys may time out where no rows come.
        blank = [F.lit(None).cast(field.dataType) for field in rows.schema.fields[:-1]]
        each = df.sparkSession.range(0, tasks, 1, 1).select(*blank, F.col("id").cast("int"))
        routed = rows.union(each).repartitionById(tasks, F.expr(f"{quoted(number)} % {tasks}"))
        return routed.sortWithinPartitions(column(place)).drop(number), place

    def _on_time(self, df: DataFrame, until: int, seen: Observation) -> DataFrame:
        """The rows that are not too late; `seen` tells of all of them once they have been read.

        As in Structured Streaming, a row is late that is not after the watermark which the batch before had.
        """
        at = F.lit(None).cast("bigint") if self.time is None else F.unix_micros(column(self.time))
        drops = self.timeout == "EventTimeTimeout" and until != EARLIEST
        late = F.coalesce(at <= until, F.lit(False)) if drops else F.lit(False)
        told = [F.count(F.lit(1)).alias("rows"), F.count_if(late).alias("late"), F.max(at).alias("latest")]
        rows = df.observe(seen, *told)
        return rows.where(~late) if drops else rows


def load(initial: DataFrame, operator: Stateful, files: Checkpoint) -> None:
    """Let a query begin with these states: one row a key, with the columns of the key and the fields of the state.

    A processor makes the states itself, from rows that have the columns of the key.
    """
    if files.read(INITIAL) is not None or files.numbered("commits"):
        return  # it has begun with them already
    function = operator.function
    wanted = [*operator.keys, *([] if isinstance(function, Processing) else operator.state.names)]
    lacking = [name for name in wanted if name not in initial.columns]
    require(not lacking, f"the initial state lacks {', '.join(lacking)}; it has {', '.join(initial.columns)}")
    key = StructType(fields_of(initial, operator.keys))
    store = Store(files.place("state"), arrow_schema(key), arrow_schema(operator.state))
    table, manifest = RoutingTable.hashed(parallelism(initial.sparkSession)), Manifest.empty(store)
    place, number = unused(initial, PLACE, WORKER)
    key_hash = hashing(initial, operator.keys)
    rows = initial if isinstance(function, Processing) else initial.select(*(column(name) for name in wanted))
    rows = rows.select("*", F.expr(placing(key_hash)).alias(place), worker(table, key_hash).alias(number))
    rows = rows.repartitionById(table.n_workers, column(number)).drop(number)
    if isinstance(function, Processing):
        begins = replace(operator, function=replace(function, is_initial=True))
        clock, tasks = begins.clock(int(time() * 1000), 0), table.n_workers
        task = begins.task(store, manifest, table, FIRST, clock, place, initial, files, tasks)
        rows = rows.sortWithinPartitions(column(place)).mapInArrow(task, REPORTED).select("receipt")
    else:
        rows = rows.mapInArrow(Loading(store, table, operator.keys, place, FIRST), "receipt binary")
    receipts = [Receipt.from_bytes(bytes(row[0])) for row in rows.collect()]
    files.write(INITIAL, manifest.committed(store, FIRST, receipts).to_json())


def _manifest(state: dict[str, Any] | None, store: Store, files: Checkpoint) -> Manifest:
    """What the batch before left; before the first, what the query begins with."""
    known = files.read(INITIAL) if state is None else state["manifest"]
    return Manifest.empty(store) if known is None else Manifest.from_json(known)


def read_state(spark: SparkSession, checkpoint: str, batch: int | None = None) -> DataFrame:
    """The states of all keys after a batch, of which the last few are kept; left out, after the last one.

    The columns of the key come first, then those of the state, then `timeout` in milliseconds.
    """
    files = Checkpoint(checkpoint)
    known = files.numbered("commits")
    require(bool(known), f"{checkpoint} has no batch that is complete")
    number = known[-1] if batch is None else batch
    require(number in known, f"{checkpoint} has the states of batches {known[0]} to {known[-1]}, not of {number}")
    state = files.read(f"commits/{number}.json")["state"]
    require("manifest" in state, f"{checkpoint} is of a query without keyed state")
    store, manifest, n = _store(state, files), Manifest.from_json(state["manifest"]), state["n_workers"]
    key, value = (nullable(StructType.fromJson(state[name])) for name in ("key", "state"))
    table = RoutingTable.hashed(n)
    fields = [StructField("key", key), StructField("state", value), StructField("timeout", T.LongType())]

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch["id"].to_pylist():
                rows = entries(store, manifest, Share.of(table, part))
                yield from rows.drop_columns(["place"]).combine_chunks().to_batches()

    found = spark.range(0, n, 1, n).mapInArrow(read, StructType(fields))
    return found.select("key.*", "state.*", "timeout")


def _store(state: dict[str, Any], files: Checkpoint) -> Store:
    key, value = (StructType.fromJson(state[name]) for name in ("key", "state"))
    return Store(files.place("state"), arrow_schema(key), arrow_schema(value))


def _tasks(spark: SparkSession, n_workers: int) -> int:
    """How many tasks work for so many workers: not more than the slots there are take in turn."""
    return min(n_workers, IN_TURN * parallelism(spark))


def _reports(tasks: DataFrame, n_workers: int) -> list[dict[str, Any]]:
    """What the tasks of a batch report, by worker; each reports once."""
    found = tasks.toArrow().to_pylist()
    reports = {report["worker"]: report for report in found}
    once = len(found) == n_workers and sorted(reports) == list(range(n_workers))
    require(once, f"each of {n_workers} workers reports once, but there are {len(found)} reports")
    return [reports[number] for number in range(n_workers)]


def _histogram(reports: list[dict[str, Any]]) -> Histogram:
    """What the tasks of a batch counted: a key is on one worker, so that counts of hot keys are exact."""
    places, counts = ([entry for report in reports for entry in report[name]] for name in ("places", "counts"))
    keys, rows = keys_at(np.array(places, np.int64).view(np.uint64)), np.array(counts, np.float64)
    order = np.lexsort((keys, -rows))
    return Histogram(keys[order], rows[order], float(sum(report["rows"] for report in reports) - rows.sum()))


# Merging goes on while batches run. By directory: what is being merged, and what will tell of it.
_MERGING: dict[str, tuple[Sequence[Segment], Future[list[Receipt]]]] = {}
_BACKGROUND = ThreadPoolExecutor(1, "skewless-merge")


def _merge_later(
    spark: SparkSession, files: Checkpoint, store: Store, segments: Sequence[Segment], table: RoutingTable
) -> None:
    if files.directory not in _MERGING:
        job = partial(_merge, spark, store, segments, table)
        _MERGING[files.directory] = segments, _BACKGROUND.submit(job)


def _merge(spark: SparkSession, store: Store, segments: Sequence[Segment], table: RoutingTable) -> list[Receipt]:
    hasten = hastening()

    def part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        hasten()
        for batch in batches:
            for number in batch["id"].to_pylist():
                receipt = merge(store, segments, Share.of(table, number), number)
                yield pa.record_batch([pa.array([receipt.to_bytes()], pa.binary())], names=["receipt"])

    n = table.n_workers
    parts = spark.range(0, n, 1, _tasks(spark, n)).mapInArrow(part, "receipt binary")
    return [Receipt.from_bytes(bytes(row[0])) for row in parts.collect()]


def _merged(files: Checkpoint, store: Store, manifest: Manifest) -> Manifest:
    """The manifest with what has been merged meanwhile."""
    segments, job = _MERGING.get(files.directory, ((), None))
    if job is None or not job.done():
        return manifest
    del _MERGING[files.directory]
    try:
        return manifest.merged(store, segments, job.result())
    except Exception as error:
        # Nothing is lost: the segments are all there, and will be due again.
        log.warning("segments of %s could not be merged: %s", files.directory, error)
        return manifest
