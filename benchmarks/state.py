"""Keyed state in a stream on Spark: `python -m benchmarks.state [uniform] [zipf] [uniform-8] [zipf-8] ...`.

uniform   a running count per key: rows per second, compared with Spark's own operators on RocksDB and with doing
          nothing; with default settings: 200 shuffle partitions of Spark, one worker of ours per task slot
zipf      the same with skewed keys
uniform-8, zipf-8   the same with 8 shuffle partitions and 8 workers, so that both have the same number of tasks
sizes     the time of a batch with 5M keys of state over that with 50k, where the same number of keys is touched
rescale   8 workers, then 32, then 8 again while the query runs: no batch is lost, and the next one is not slow
moves     the bytes read when keys move to other workers, compared with the share of the state that moves

Queries run side by side on files with the same rows. In every round each of them gets two files, one after the other,
while the others are idle. Only the second one counts, with the time that Spark reports: Spark stops Python workers that
have been idle for a minute, and the first file starts them again. The exit code is 1 if a bound is broken.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

import skewless.spark as sl
from benchmarks.spark import STREAMING, Claim, judged, ratio, session
from skewless import RoutingTable, streams
from skewless.spark.schema import schema_of
from skewless.spark.state.committed import KeyedState
from skewless.spark.state.function import KeyFunction
from skewless.spark.state.operator import Stateful
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.operator import Batch
from skewless.spark.streaming.rows import StreamKey
from skewless.spark.task_startup import quick_start

ROWS, KEYS, WORKERS, SLOTS, ROUNDS = 100_000, 10_000, 8, 2, 3
BOUND = 10.0
FEW, MANY, SIZES_ROUNDS = 50_000, 5_000_000, 5  # keys with a state
OUTPUT, STATE = "k string, n long", "n long"
NOTHING = "rows to Python, then discarded"
DEFAULT = 200  # Spark's shuffle partitions


def in_arrow(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
    n = rows.num_rows + (state.get[0] if state.exists else 0)
    state.update((n,))
    return pa.table({"k": [key[0]], "n": [n]})


def in_pandas(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    n = sum(len(frame) for frame in frames) + (state.get[0] if state.exists else 0)
    state.update((n,))
    yield pd.DataFrame({"k": [key[0]], "n": [n]})


class Count(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        n = sum(len(frame) for frame in rows) + ((self._n.get() or (0,))[0] if self._n.exists() else 0)
        self._n.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


def discard(df: DataFrame, batch: int) -> None:
    df.write.format("noop").mode("overwrite").save()


def swallow(df: DataFrame, batch: int, n_workers: int) -> None:
    """Sends the rows to Python by key and discards them."""

    def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        quick_start()
        for _ in batches:
            pass
        return iter(())

    discard(df.repartition(n_workers, "k").mapInArrow(nothing, df.schema), batch)


class Feed:
    """A query and the directory that it reads."""

    def __init__(self, folder: Path, name: str) -> None:
        self.source, self.checkpoint = folder / name, str(folder / f"{name} checkpoint")
        self.source.mkdir()
        self.query: Any = None

    def events(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("k string, v long").parquet(str(self.source))

    def count(self, spark: SparkSession, initial: DataFrame | None = None, n_workers: int | None = WORKERS) -> sl.Query:
        """Starts the count with Skewless and returns its query."""
        stream = sl.stream(self.events(spark), "k", n_workers=n_workers, partitioner="kip")
        job = stream.applyInArrowWithState(in_arrow, OUTPUT, STATE, initialState=initial)
        query = job.start(discard, self.checkpoint)
        self.query = query._query
        return query

    def give(self, keys: NDArray[Any]) -> float:
        """Writes a file of rows with these keys and returns the seconds that the query took for it."""
        rows = pa.table({"k": [f"key {key}" for key in keys.tolist()], "v": np.arange(keys.size)})
        pq.write_table(rows, self.source / "_new")  # Spark ignores names that begin with _
        (self.source / "_new").rename(self.source / f"{len(list(self.source.iterdir()))}.parquet")
        self.query.processAllAvailable()
        spent = [p.durationMs["triggerExecution"] for p in self.query.recentProgress if p.numInputRows]
        print(f"{self.source.name}: {spent[-1]} ms", file=sys.stderr, flush=True)
        return float(spent[-1] / 1000)


def updates(counts: DataFrame) -> DataStreamWriter:
    return counts.writeStream.format("noop").outputMode("update")


# Spark's own operators
WAYS: dict[str, Callable[[DataFrame], DataStreamWriter]] = {
    "applyInPandasWithState": lambda events: updates(
        events.groupBy("k").applyInPandasWithState(in_pandas, OUTPUT, STATE, "update", "NoTimeout")
    ),
    "transformWithStateInPandas": lambda events: updates(
        events.groupBy("k").transformWithStateInPandas(Count(), OUTPUT, "update", "None")
    ),
}


def started(spark: SparkSession, folder: Path, n_workers: int | None) -> dict[str, Feed]:
    """Starts the queries that count, and one that only sends rows to Python by key, the least that all must do."""
    feeds = {name: Feed(folder, name) for name in ("skewless", *WAYS, NOTHING)}
    feeds["skewless"].count(spark, n_workers=n_workers)
    swallowing = partial(swallow, n_workers=n_workers or SLOTS)
    for name, way in (WAYS | {NOTHING: lambda events: events.writeStream.foreachBatch(swallowing)}).items():
        feed = feeds[name]
        feed.query = way(feed.events(spark)).option("checkpointLocation", feed.checkpoint).start()
    return feeds


def speed(spark: SparkSession, folder: Path, exponent: float, n_workers: int | None) -> list[Claim]:
    """Compares rows per second.

    n_workers: of all queries; the defaults of each if None.
    """
    spark.conf.set("spark.sql.shuffle.partitions", str(n_workers or DEFAULT))
    feeds = started(spark, folder, n_workers)
    speeds: dict[str, list[float]] = {name: [] for name in feeds}
    for number in range(ROUNDS):
        for name, feed in feeds.items():
            spent = [feed.give(streams.zipf(ROWS, KEYS, exponent, seed=2 * number + part)) for part in range(2)]
            speeds[name].append(ROWS / spent[1])
    for feed in feeds.values():
        feed.query.stop()
    mine, most = speeds.pop("skewless"), speeds.pop(NOTHING)
    return [
        Claim(
            f"{ROWS:,} rows, {KEYS:,} keys, rows per second: skewless / {name}",
            ratio(mine, theirs),
            at_least=BOUND,
            besides=f"{median(mine):,.0f} against {median(theirs):,.0f}; discarding is {ratio(most, theirs):.1f} x",
        )
        for name, theirs in speeds.items()
    ]


def zeros(spark: SparkSession, n_keys: int) -> DataFrame:
    """Returns an initial state for this many keys."""
    return spark.range(n_keys).select(F.format_string("key %d", "id").alias("k"), F.lit(0).cast("long").alias("n"))


def sizes(spark: SparkSession, folder: Path) -> list[Claim]:
    """Compares the time of a batch with many and with few keys of state; checks that no state is lost."""
    feeds = {n_keys: Feed(folder, f"{n_keys:,} keys") for n_keys in (FEW, MANY)}
    for n_keys, feed in feeds.items():
        feed.count(spark, zeros(spark, n_keys))
    times: dict[int, list[float]] = {n_keys: [] for n_keys in feeds}
    rng = np.random.default_rng(0)
    for number in range(-1, SIZES_ROUNDS):  # the first round loads all states into hot copies
        for n_keys, feed in feeds.items():
            spent = [feed.give(rng.choice(n_keys, KEYS, replace=False)) for _ in range(2)]
            if number >= 0:
                times[n_keys].append(spent[1])
    missing = 0
    for n_keys, feed in feeds.items():
        feed.query.stop()
        missing += abs(n_keys - sl.read_state(spark, feed.checkpoint).count())
    besides = f"{median(times[MANY]):.2f} s against {median(times[FEW]):.2f} s, median of {SIZES_ROUNDS} batches"
    what = f"{KEYS:,} keys touched: {MANY:,} with a state / {FEW:,}"
    return [
        Claim(what, ratio(times[MANY], times[FEW]), at_most=2, besides=besides),
        Claim("keys without a state, or with more than one", missing, at_most=0),
    ]


def rescale(spark: SparkSession, folder: Path) -> list[Claim]:
    """Changes the number of workers while a query runs; compares the next batch with ordinary ones."""
    feed = Feed(folder, "rescaled")
    query = feed.count(spark, zeros(spark, 20 * KEYS))
    seeds = count()

    def batches(number: int) -> list[float]:
        return [feed.give(streams.zipf(ROWS, KEYS, 1.2, seed=next(seeds))) for _ in range(number)]

    ordinary = {WORKERS: median(batches(6)[2:])}
    query.rescale(4 * WORKERS)
    up, *at_more = batches(5)
    ordinary[4 * WORKERS] = median(at_more)
    query.rescale(WORKERS)
    down, *_ = batches(3)
    query.stop()
    sent, records = next(seeds), query.recent()
    n_workers = [record["workers"] for record in records]
    assert n_workers == [WORKERS] * 6 + [4 * WORKERS] * 5 + [WORKERS] * 3, n_workers
    rows = sl.read_state(spark, feed.checkpoint).agg(F.sum("n")).collect()[0][0]
    few, many = sorted(ordinary)
    alone = task_seconds(spark, folder, few, many)
    besides = (
        f"{up:.2f} s; ordinary ones {ordinary[few]:.2f} s with {few} workers, {ordinary[many]:.2f} s with {many}; "
        f"Spark's own tasks alone take {alone[1] / alone[0]:.1f} x as long with {many} as with {few}"
    )
    least = min(ordinary.values())
    return [
        Claim(f"the batch after {few} -> {many} / an ordinary one", up / least, at_most=2, besides=besides),
        Claim(f"the batch after {many} -> {few} / an ordinary one", down / least, at_most=2, besides=f"{down:.2f} s"),
        Claim("batches lost", sent - len(records), at_most=0, besides=f"of {sent}"),
        Claim("rows that no state has", sent * ROWS - rows, at_most=0, besides=f"of {sent * ROWS:,}"),
    ]


def task_seconds(spark: SparkSession, folder: Path, *numbers: int) -> list[float]:
    """Returns the seconds that Spark takes for these numbers of Python tasks that do almost nothing."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    seconds: dict[int, list[float]] = {number: [] for number in numbers}
    for turn in range(4):
        for number in numbers:
            began = perf_counter()
            rows = spark.range(0, number, 1, number).mapInArrow(same, "id long")
            rows.write.mode("overwrite").parquet(f"{folder}/tasks")
            if turn:
                seconds[number].append(perf_counter() - began)
    return [median(spent) for spent in seconds.values()]


def gathered(key: tuple[Any, ...], rows: pa.Table, state: Any) -> None:
    """Collects all values of a key."""
    state.update(([*(state.get[0] if state.exists else []), *rows["v"].to_pylist()],))


class States:
    """States in a checkpoint, and empty batches with changing tables, which read only what moves."""

    def __init__(self, rows: DataFrame, folder: Path, table: RoutingTable) -> None:
        output, state = schema_of("k string"), schema_of("values array<long>")
        self.operator = Stateful(
            key=StreamKey.plain("k"), function=KeyFunction(call=gathered, output=output, state=state)
        )
        self.files, self.empty, self.number = Checkpoint(str(folder)), rows.limit(0), 0
        self.state: KeyedState | None = None
        self.background: Background[Any] = Background("merge")
        self._run(rows, table)
        self._run(self.empty, table)  # now the hot copies are complete
        assert self.read(table) == 0, "a batch without moves must read nothing"

    def _run(self, rows: DataFrame, table: RoutingTable) -> dict[str, Any]:
        found = self.operator.run(
            Batch(
                df=rows,
                number=self.number,
                state=self.state,
                router=table,
                files=self.files,
                background=self.background,
            )
        )
        self.number, self.state = self.number + 1, found.state
        return found.record

    def read(self, table: RoutingTable) -> int:
        """Returns the bytes that an empty batch with this table reads."""
        return int(self._run(self.empty, table)["state_read"])

    @property
    def bytes(self) -> int:
        assert self.state is not None
        return sum(segment.bytes for segment in self.state.manifest.segments)


def moves(spark: SparkSession, folder: Path) -> list[Claim]:
    """Compares the bytes that are read after a change of tables with the share of the state that moved."""
    claims = []
    plain = RoutingTable.hashed(WORKERS)
    rows = spark.range(20 * KEYS).select(F.format_string("key %d", "id").alias("k"), F.col("id").alias("v"))
    states = States(rows, folder / "hosts", plain)
    for share in (0.05, 0.2):
        hosts = plain.hosts.copy()
        hosts[: round(share * hosts.size)] = (hosts[: round(share * hosts.size)] + 1) % WORKERS
        found = states.read(replace(plain, hosts=hosts)) / states.bytes
        states.read(plain)
        what = f"{share:.0%} of the hosts move: % of the state that is read / % of the hosts"
        moved = float((hosts != plain.hosts).mean())
        claims.append(Claim(what, found / moved, at_most=1.1, besides=f"{found:.2%} of {states.bytes:,} bytes"))
    small, large = 10_000, 100_000
    rows = spark.range(small + large).select(F.expr(f"if(id < {small}, 'small', 'large')").alias("k"), "id")
    keys = streams.as_keys(["small", "large"])

    def with_workers(*workers: int) -> RoutingTable:
        return plain.with_hot_keys(keys, np.arange(3), np.array(workers, np.int32), np.ones(2))

    states = States(rows.withColumnRenamed("id", "v"), folder / "hot", with_workers(0, 1))
    read = {small: states.read(with_workers(2, 1)), large: states.read(with_workers(2, 3))}
    found = read[large] / read[small]
    besides = f"{read[small]:,} bytes for {small:,} values, {read[large]:,} for {large:,}"
    claims.append(Claim(f"a hot key with {large // small} x the state moves: bytes read", found, 11, 9, besides))
    return claims


# name -> measurement
MEASUREMENTS: dict[str, Callable[[SparkSession, Path], list[Claim]]] = {
    "uniform": partial(speed, exponent=0.0, n_workers=None),
    "zipf": partial(speed, exponent=1.2, n_workers=None),
    "uniform-8": partial(speed, exponent=0.0, n_workers=WORKERS),
    "zipf-8": partial(speed, exponent=1.2, n_workers=WORKERS),
    "sizes": sizes,
    "rescale": rescale,
    "moves": moves,
}


def main() -> None:
    kept = True
    spark = session(SLOTS, STREAMING)
    for name in sys.argv[1:] or MEASUREMENTS:
        with TemporaryDirectory(prefix=f"skewless-{name}-", ignore_cleanup_errors=True) as folder:
            spark.conf.set("spark.sql.shuffle.partitions", str(WORKERS))
            claims = MEASUREMENTS[name](spark, Path(folder))
        kept &= judged(f"{name}, {SLOTS} task slots", claims)
    spark.stop()
    sys.exit(not kept)


if __name__ == "__main__":
    main()
