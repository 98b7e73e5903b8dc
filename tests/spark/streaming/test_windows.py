"""Windows over skewed keys equal what plain Spark finds in all rows at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from tests.spark.batches import (
    BATCHES,
    batch_of,
    counted_and_most,
    expected,
    output_of,
    read,
    run_to_end,
    write,
)

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_windows_and_late_rows_are_those_of_structured_streaming(spark: SparkSession, tmp_path: Path) -> None:
    """Structured Streaming ends the windows of a batch at once only if no other rows wait; ours always does."""
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
    ours = run_to_end(job.window("20 seconds", "5 seconds").agg(n=sl.count("v")), str(tmp_path / "out"), tmp_path / "c")
    assert sum(record["late"] for record in ours.recent()) > 0
    assert output_of(spark, tmp_path / "out") == output_of(spark, tmp_path / "their output")


@pytest.mark.parametrize(
    ("spark", "size", "slide", "partitioner"),
    [
        ("classic", 10, 10, "auto"),
        ("connect", 10, 10, "auto"),
        ("classic", 20, 5, "level"),
        ("connect", 15, 10, "dalton"),
        ("classic", 40, 4, "pkg"),
    ],
    indirect=["spark"],
)
def test_windows_equal_those_of_plain_spark(
    spark: SparkSession, tmp_path: Path, size: int, slide: int, partitioner: str
) -> None:
    events, workers = read(spark, write(tmp_path / "in", BATCHES)), None if partitioner == "auto" else 5
    job = (
        sl.stream(events, "k", time="ts", watermark="5 seconds", partitioner=partitioner, n_workers=workers)
        .window(f"{size} seconds", f"{slide} seconds")
        .agg(n=sl.count(), s=sl.sum("v"))
    )
    query = run_to_end(job, str(tmp_path / "out"), tmp_path / "checkpoint")
    wanted = expected(spark, BATCHES, size, slide, 5, n=F.count(F.lit(1)), s=F.sum("v"))
    assert output_of(spark, tmp_path / "out") == wanted
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


def test_all_aggregates_in_windows(spark: SparkSession, tmp_path: Path) -> None:
    batches = BATCHES[:3]
    job = sl.stream(read(spark, write(tmp_path / "in", batches)), "k", time="ts", partitioner="level", n_workers=3)
    query = run_to_end(
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
    ours = {row[:2]: row[2:] for row in output_of(spark, tmp_path / "out")}
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
    query = run_to_end(job.window("10 seconds").agg(counted_and_most()), str(tmp_path / "out"), tmp_path / "checkpoint")
    wanted = expected(spark, batches, 10, 10, n=F.count(F.lit(1)), most=F.max("v"))
    assert output_of(spark, tmp_path / "out") == wanted
    assert query.recent()[-1]["imbalance_ratio"] < 1.5


def test_update_mode_emits_the_windows_that_a_batch_changed(spark: SparkSession, tmp_path: Path) -> None:
    batches = BATCHES[:4]
    job = sl.stream(read(spark, write(tmp_path / "in", batches)), "k", time="ts", watermark="1 hour")
    run_to_end(
        job.window("20 seconds", "10 seconds").agg(n=sl.count(), mode="update"), str(tmp_path / "out"), tmp_path / "c"
    )
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


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_many_small_batches_leave_few_files(spark: SparkSession, tmp_path: Path) -> None:
    batches = [batch_of(20, number) for number in range(24)]
    checkpoint = tmp_path / "checkpoint"
    job = sl.stream(read(spark, write(tmp_path / "in", batches)), "k", time="ts", watermark="200 seconds")
    run_to_end(job.window("50 seconds", "10 seconds").agg(m=sl.max("v")), str(tmp_path / "out"), checkpoint)
    assert output_of(spark, tmp_path / "out") == expected(spark, batches, 50, 10, 200, m=F.max("v"))
    panes = [*(checkpoint / "skewless/panes").iterdir(), *(checkpoint / "skewless/merged").iterdir()]
    assert len(panes) <= 17
    assert len(list((checkpoint / "skewless/commits").iterdir())) <= 10
