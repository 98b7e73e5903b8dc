"""Streams: windows over skewed keys equal what plain Spark finds in all rows at once."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import streams
from skewless.spark import checkpoint
from skewless.spark.checkpoint import Checkpoint

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("spark")]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k string, v long, ts timestamp"


def batch_of(rows: int, number: int, seed: int = 0, late: float = 0.0) -> pa.Table:
    """Rows of 10 seconds, a third of them of one key; some are of long ago."""
    random = np.random.default_rng([seed, number])
    keys = [f"k{min(int(k), 50)}" for k in random.zipf(1.5, rows)]
    seconds = 10 * number + 10 * random.random(rows)
    seconds[random.random(rows) < late] -= 60
    times = [BEGIN + timedelta(seconds=float(second)) for second in seconds]
    values = random.integers(-100, 100, rows).tolist()
    some = [None if random.random() < 0.02 else key for key in keys]
    known = [None if random.random() < 0.02 else value for value in values]
    return pa.table({"k": some, "v": known, "ts": pa.array(times, pa.timestamp("us", "UTC"))})


def write(directory: Path, batches: list[pa.Table]) -> str:
    """One file a batch: Spark reads them in the order of their times."""
    directory.mkdir(parents=True, exist_ok=True)
    for table in batches:
        number = len(list(directory.iterdir()))
        pq.write_table(table, directory / f"{number:05d}.parquet")
        os.utime(directory / f"{number:05d}.parquet", (number, number))
    return str(directory)


def read(spark: SparkSession, directory: str) -> DataFrame:
    return (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .option("latestFirst", "false")
        .parquet(directory)
    )


def ran(job: Any, sink: Any, checkpoint: Path | str) -> sl.Query:
    query: sl.Query = job.start(sink, str(checkpoint), available_now=True)
    assert query.awaitTermination(300)
    return query


def told(spark: SparkSession, directory: Path | str) -> Counter[tuple[Any, ...]]:
    found = spark.read.parquet(str(directory)).drop("batch_id")
    return Counter(hashable(row) for row in found.collect())


def hashable(row: Any) -> Any:
    return tuple(map(hashable, row)) if isinstance(row, (tuple, list)) else row


def expected(
    spark: SparkSession, batches: list[pa.Table], size: int, slide: int, delay: int = 0, **aggregates: Any
) -> Counter[tuple[Any, ...]]:
    """By plain Spark: all rows that are not late, and windows that end before the last watermark."""
    watermark, kept = None, []
    for table in batches:
        micros = table["ts"].cast(pa.int64()).to_numpy()
        last = micros // (slide * 10**6) * slide * 10**6 + size * 10**6
        on_time = np.full(micros.size, True) if watermark is None else last > watermark
        # A row that is late for some of its windows counts in the others.
        for row, ok in zip(table.to_pylist(), on_time, strict=True):
            if ok:
                kept.append((*row.values(), watermark))
        latest = int(micros.max()) - delay * 10**6
        watermark = latest if watermark is None else max(watermark, latest)
    df = spark.createDataFrame(kept, SCHEMA + ", seen long")
    df = df.select("*", F.window("ts", f"{size} seconds", f"{slide} seconds").alias("window"))
    end = F.unix_micros("window.end")
    df = df.where(F.col("seen").isNull() | (end > F.col("seen"))).where(end <= F.lit(watermark))
    found = df.groupBy("window", "k").agg(*(value.alias(name) for name, value in aggregates.items()))
    return Counter(hashable(row) for row in found.collect())


def counted_and_most() -> sl.ArrowAggregate:
    """Rows, and the largest value. Made by a function, so that Spark sends its steps by value."""

    def partial(rows: pa.Table) -> pa.Table:
        return pa.table({"n_rows": [rows.num_rows], "best": pa.array([pc.max(rows["v"]).as_py()], pa.int64())})

    def merge(states: pa.Table) -> pa.Table:
        best = pa.array([pc.max(states["best"]).as_py()], pa.int64())
        return pa.table({"n_rows": [pc.sum(states["n_rows"]).as_py()], "best": best})

    def finish(state: pa.Table) -> pa.Table:
        return state.rename_columns(["n", "most"])

    return sl.ArrowAggregate(partial, merge, finish, "n_rows long, best long", "n long, most long")


BATCHES = [batch_of(400, number, late=0.1) for number in range(6)]


def test_windows_and_late_rows_are_those_of_structured_streaming(spark: SparkSession, tmp_path: Path) -> None:
    """It ends the windows of a batch at once if nothing else is there to read; ours always does."""
    batches = [batch_of(400, number, late=0.2) for number in range(5)]
    rows = read(spark, write(tmp_path / "theirs", [])).withWatermark("ts", "5 seconds")
    counts = rows.groupBy(F.window("ts", "20 seconds", "5 seconds"), "k").agg(F.count("v").alias("n"))
    theirs = counts.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "their checkpoint"))
    query = theirs.outputMode("append").start(str(tmp_path / "their output"))
    for table in batches:
        write(tmp_path / "theirs", [table])
        query.processAllAvailable()
    query.stop()
    job = sl.stream(read(spark, write(tmp_path / "in", batches)), "k", time="ts", watermark="5 seconds", n_workers=3)
    ours = ran(job.window("20 seconds", "5 seconds").agg(n=sl.count("v")), str(tmp_path / "out"), tmp_path / "c")
    assert sum(record["late"] for record in ours.recent()) > 0
    assert told(spark, tmp_path / "out") == told(spark, tmp_path / "their output")


@pytest.mark.parametrize(
    ("size", "slide", "partitioner"), [(10, 10, "auto"), (20, 5, "level"), (15, 10, "dalton"), (40, 4, "pkg")]
)
def test_windows_equal_those_of_plain_spark(
    spark: SparkSession, tmp_path: Path, size: int, slide: int, partitioner: str
) -> None:
    events = read(spark, write(tmp_path / "in", BATCHES))
    job = (
        sl.stream(events, "k", time="ts", watermark="5 seconds", partitioner=partitioner, n_workers=5)
        .window(f"{size} seconds", f"{slide} seconds")
        .agg(n=sl.count(), s=sl.sum("v"))
    )
    query = ran(job, str(tmp_path / "out"), tmp_path / "checkpoint")
    wanted = expected(spark, BATCHES, size, slide, 5, n=F.count(F.lit(1)), s=F.sum("v"))
    assert told(spark, tmp_path / "out") == wanted
    records = query.recent()
    assert [record["batch"] for record in records] == list(range(len(BATCHES)))
    assert sum(record["rows"] for record in records) == sum(table.num_rows for table in BATCHES)
    assert sum(record["late"] for record in records) > 0
    if partitioner == "auto":
        assert records[-1]["decision"].startswith("left to Spark")
    else:
        assert "split key #1" in records[-1]["decision"]
        assert sum(records[-1]["loads"]) + records[-1]["late"] == records[-1]["rows"]
        assert partitioner == "dalton" or records[-1]["imbalance_ratio"] < 2


@pytest.mark.parametrize("name", ["dalton", "kip"])
def test_sources_route_each_row_and_agree_between_batches(spark: SparkSession, tmp_path: Path, name: str) -> None:
    batches = BATCHES[:3]
    job = sl.stream(
        read(spark, write(tmp_path / "in", batches)), "k", time="ts", partitioner=sl.Exact(name), n_workers=4
    )
    query = ran(job.window("10 seconds").agg(s=sl.sum("v")), str(tmp_path / "out"), tmp_path / "checkpoint")
    assert told(spark, tmp_path / "out") == expected(spark, batches, 10, 10, s=F.sum("v"))
    assert query.recent()[-1]["decision"] == f"{name}: 1 sources route each row; they agreed 0 batches ago"
    assert len(list((tmp_path / "checkpoint/skewless/sources").iterdir())) <= 2


def test_all_aggregates_in_windows(spark: SparkSession, tmp_path: Path) -> None:
    batches = BATCHES[:3]
    job = sl.stream(read(spark, write(tmp_path / "in", batches)), "k", time="ts", partitioner="level", n_workers=3)
    query = ran(
        job.window("20 seconds", "10 seconds").agg(
            low=sl.min("v"),
            high=sl.max("v"),
            mean=sl.mean("v"),
            variance=sl.variance("v"),
            distinct=sl.approx_count_distinct("v"),
            median=sl.approx_quantile("v", 0.5),
            top=sl.approx_top_k("v", 1),
            all=sl.collect_list("v"),
        ),
        str(tmp_path / "out"),
        tmp_path / "checkpoint",
    )
    assert query.recent()[-1]["fragments"] > query.recent()[-1]["keys"]
    wanted = expected(
        spark,
        batches,
        20,
        10,
        low=F.min("v"),
        high=F.max("v"),
        mean=F.avg("v"),
        variance=F.variance("v"),
        distinct=F.count_distinct("v"),
        median=F.percentile_approx("v", 0.5),
        top=F.count("v"),
        all=F.collect_list("v"),
    )
    theirs = {row[:2]: row[2:] for row in wanted}
    ours = {row[:2]: row[2:] for row in told(spark, tmp_path / "out")}
    assert ours.keys() == theirs.keys()
    for key, (low, high, mean, variance, distinct, median, top, everything) in ours.items():
        other = theirs[key]
        assert (low, high) == other[:2]
        assert mean == pytest.approx(other[2])
        assert variance == pytest.approx(other[3], nan_ok=True)
        assert distinct == pytest.approx(other[4], rel=0.05)
        assert sorted(everything) == sorted(other[7])
        if everything:
            below, above = (sum(sign * value < sign * median for value in everything) for sign in (1, -1))
            assert max(below, above) <= len(everything) / 2 + 1
            count = Counter(everything)
            assert top[0][1] == max(count.values())


def test_arrow_aggregates_of_split_keys(spark: SparkSession, tmp_path: Path) -> None:
    batches = BATCHES[:3]
    events = read(spark, write(tmp_path / "in", batches))
    job = sl.stream(events, "k", time="ts", partitioner="level", n_workers=4)
    query = ran(job.window("10 seconds").agg(counted_and_most()), str(tmp_path / "out"), tmp_path / "checkpoint")
    wanted = expected(spark, batches, 10, 10, n=F.count(F.lit(1)), most=F.max("v"))
    assert told(spark, tmp_path / "out") == wanted
    assert query.recent()[-1]["imbalance_ratio"] < 1.5


def test_of_large_batches_a_part_is_counted_and_that_is_enough(spark: SparkSession, tmp_path: Path) -> None:
    batches, rows = [], 120_000
    for number in range(3):
        ranks = streams.zipf(rows, 500, 1.2, seed=number).astype(np.int64)
        begin = int(BEGIN.timestamp() * 1e6) + 10_000_000 * number
        times = pa.array(begin + np.arange(rows), pa.timestamp("us", "UTC"))
        batches.append(pa.table({"k": [f"k{rank}" for rank in ranks.tolist()], "v": np.arange(rows), "ts": times}))
    job = sl.stream(read(spark, write(tmp_path / "in", batches)), "k", time="ts", partitioner="level", n_workers=4)
    query = ran(job.window("10 seconds").agg(n=sl.count()), str(tmp_path / "out"), tmp_path / "checkpoint")
    assert told(spark, tmp_path / "out") == expected(spark, batches, 10, 10, n=F.count(F.lit(1)))
    last = query.recent()[-1]
    assert last["imbalance_ratio"] < 1.05
    assert last["keys"] == pytest.approx(len(set(batches[-1]["k"].to_pylist())), rel=0.1)


def test_changed_windows_are_told_in_update_mode(spark: SparkSession, tmp_path: Path) -> None:
    batches = BATCHES[:4]
    job = sl.stream(read(spark, write(tmp_path / "in", batches)), "k", time="ts", watermark="1 hour")
    ran(job.window("20 seconds", "10 seconds").agg(n=sl.count(), mode="update"), str(tmp_path / "out"), tmp_path / "c")
    found = spark.read.parquet(str(tmp_path / "out"))
    for number in range(len(batches)):
        so_far = spark.createDataFrame(pa.concat_tables(batches[: number + 1]))
        now = spark.createDataFrame(batches[number])
        window = F.window("ts", "20 seconds", "10 seconds")
        changed = {tuple(row) for row in now.select(window, "k").distinct().collect()}
        counts = so_far.groupBy(window.alias("window"), "k").count().collect()
        wanted = {tuple(row) for row in counts if tuple(row[:2]) in changed}
        rows = found.where(F.col("batch_id") == number).select("window", "k", "n").collect()
        assert Counter(map(tuple, rows)) == Counter(wanted)


def test_a_query_goes_on_where_it_was_with_another_partitioner(spark: SparkSession, tmp_path: Path) -> None:
    source, out, checkpoint = tmp_path / "in", str(tmp_path / "out"), tmp_path / "checkpoint"
    wanted: Counter[tuple[Any, ...]] = Counter()
    told_of: list[str] = []
    for number, (partitioner, workers) in enumerate([("level", 3), ("level", 5), ("kip", 5), ("auto", None)]):
        write(source, BATCHES[number : number + 1])
        stream = sl.stream(read(spark, str(source)), "k", time="ts", partitioner=partitioner, n_workers=workers)
        query = ran(stream.window("20 seconds", "5 seconds").agg(s=sl.sum("v")), out, checkpoint)
        told_of.append(query.recent()[-1]["decision"])
        wanted = expected(spark, BATCHES[: number + 1], 20, 5, s=F.sum("v"))
        assert told(spark, out) == wanted
    assert told_of[1].startswith("5 workers instead of 3")
    assert told_of[2].startswith("kip")
    assert told_of[3].startswith("left to Spark")


def test_many_small_batches_leave_few_files(spark: SparkSession, tmp_path: Path) -> None:
    batches = [batch_of(20, number) for number in range(24)]
    checkpoint = tmp_path / "checkpoint"
    job = sl.stream(read(spark, write(tmp_path / "in", batches)), "k", time="ts", watermark="200 seconds")
    ran(job.window("50 seconds", "10 seconds").agg(m=sl.max("v")), str(tmp_path / "out"), checkpoint)
    assert told(spark, tmp_path / "out") == expected(spark, batches, 50, 10, 200, m=F.max("v"))
    panes = [*(checkpoint / "skewless/panes").iterdir(), *(checkpoint / "skewless/merged").iterdir()]
    assert len(panes) <= 17
    assert len(list((checkpoint / "skewless/commits").iterdir())) <= 10


def test_elastic_and_given_numbers_of_workers(spark: SparkSession, tmp_path: Path) -> None:
    source = write(tmp_path / "in", [batch_of(50, number) for number in range(6)])
    job = sl.stream(read(spark, source), "k", time="ts", partitioner="level", n_workers=(2, 3)).window("10 seconds")
    query = job.agg(n=sl.count()).start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), interval="10 milliseconds")
    try:
        query.processAllAvailable()
        records = query.recent()
        assert records[0]["workers"] == 2
        assert records[-1]["workers"] == 3  # every batch takes longer than 10 ms
        assert any(record["scaling"].startswith("out: ") for record in records)
    finally:
        query.stop()


def test_what_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = write(tmp_path / "in", BATCHES[:1])
    events = read(spark, source)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    stream = sl.stream(events, "k", time="ts")
    job, other = stream.window("10 seconds").agg(n=sl.count()), sl.stream(events, "v", time="ts")
    ran(job, out, checkpoint)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("stream takes a streaming DataFrame", lambda: sl.stream(spark.range(1), "id")),
        ("there is no column 'x'", lambda: sl.stream(events, "x")),
        ("column 'v' is a timestamp, not bigint", lambda: sl.stream(events, "k", time="v")),
        ("windows need the time", lambda: sl.stream(events, "k").window("1 second")),
        ("a length of time such as", lambda: stream.window("soon")),
        ("at most the size 1 second, not 2 seconds", lambda: stream.window("1 second", "2 seconds")),
        ("agg needs at least 1 aggregate", lambda: stream.window("1 second").agg()),
        ("take an interval, or available_now", lambda: job.start(out, checkpoint, interval="1 s", available_now=True)),
        ("window was 10,000,000", lambda: stream.window("5 seconds").agg(n=sl.count()).start(out, checkpoint)),
        ("aggregate was", lambda: stream.window("10 seconds").agg(n=sl.count("v")).start(out, checkpoint)),
        (
            "key was",
            lambda: other.window("10 seconds").agg(n=sl.count()).start(out, checkpoint),
        ),
        ("the output of another query", lambda: job.start(out, str(tmp_path / "other"))),
        ("is not empty", lambda: job.start(source, str(tmp_path / "third"))),
    ]
    for sentence, call in refused:
        with pytest.raises((ValueError, TypeError), match=re.escape(sentence)):
            call()
    commit = next((tmp_path / "checkpoint/skewless/commits").iterdir())
    commit.write_text("damaged")
    write(tmp_path / "in", BATCHES[1:2])
    with pytest.raises(Exception, match=r"commits/0\.json is damaged"):
        ran(job, out, checkpoint)


def test_two_queries_on_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    job = (
        sl.stream(read(spark, write(tmp_path / "in", BATCHES[:1])), "k", time="ts")
        .window("10 seconds")
        .agg(n=sl.count())
    )
    query = job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()
        with pytest.raises(ValueError, match="another query is running on the checkpoint"):
            job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    finally:
        query.stop()
    job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), available_now=True).awaitTermination(100)


@pytest.mark.parametrize("spark", ["classic"], indirect=True)  # over Connect batches run in another process
def test_two_queries_where_there_are_no_locks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())
    monkeypatch.setattr(checkpoint, "resolved", lambda directory: (local, directory))
    source, out, files = tmp_path / "in", str(tmp_path / "out"), tmp_path / "checkpoint"
    events = read(spark, write(source, BATCHES[:1]))
    job = sl.stream(events, "k", time="ts").window("10 seconds").agg(n=sl.count())
    query = job.start(out, str(files))
    try:
        query.processAllAvailable()
        with pytest.raises(ValueError, match="another query is running on the checkpoint"):
            job.start(out, str(files))
        write(source, BATCHES[1:2])
        query.processAllAvailable()
        (files / "skewless/owner").write_text("another one")
        write(source, BATCHES[2:3])
        with pytest.raises(Exception, match="another query is running on the checkpoint"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert Checkpoint(str(files)).numbered("commits") == [0, 1]
    (files / "skewless/owner").unlink()
    with pytest.raises(ValueError, match="is the checkpoint of another query"):
        sl.stream(events, "k", time="ts").window("20 seconds").agg(n=sl.count()).start(out, str(files))
    assert not (files / "skewless/owner").exists()
    write(source, BATCHES[3:4])
    ran(job, out, files)
    assert told(spark, out) == expected(spark, BATCHES[:4], 10, 10, n=F.count("*"))


def test_what_cannot_be_read_or_written_is_named_and_nothing_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    job = (
        sl.stream(read(spark, write(source, BATCHES[:2])), "k", time="ts", partitioner="level", n_workers=3)
        .window("20 seconds", "10 seconds")
        .agg(n=sl.count(), all=sl.collect_list("v"))
    )
    ran(job, str(out), checkpoint)
    write(source, BATCHES[2:4])
    panes = checkpoint / "skewless/panes"
    part = next(place for place in sorted(panes.glob("*/*.parquet"))[::-1] if place.stat().st_size)
    whole = part.read_bytes()
    part.write_bytes(whole[: len(whole) // 2])
    checksum = part.with_name(f".{part.name}.crc")
    checksum.unlink(missing_ok=True)  # else it is Hadoop that finds out
    with pytest.raises(Exception, match=re.escape(part.name)):
        ran(job, str(out), checkpoint)
    part.write_bytes(whole)
    kept = out.rename(tmp_path / "kept")
    out.write_text("no directory")
    with pytest.raises(Exception, match=re.escape(str(out))):
        ran(job, str(out), checkpoint)
    out.unlink()
    kept.rename(out)
    ran(job, str(out), checkpoint)
    found = Counter((window, key, n, tuple(sorted(values))) for window, key, n, values in told(spark, out).elements())
    by_key = expected(spark, BATCHES[:4], 20, 10, n=F.count("*"), all=F.sort_array(F.collect_list("v")))
    assert found == by_key
