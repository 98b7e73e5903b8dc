"""Streams: windows over skewed keys equal what plain Spark finds in all rows at once."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl

pytestmark = pytest.mark.xdist_group("spark")
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
    keys = [None if random.random() < 0.02 else key for key in keys]
    values = [None if random.random() < 0.02 else value for value in values]
    return pa.table({"k": keys, "v": values, "ts": pa.array(times, pa.timestamp("us", "UTC"))})


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
    query = job.start(sink, str(checkpoint), available_now=True)
    assert query.awaitTermination(300)
    return query


def told(spark: SparkSession, directory: Path | str) -> Counter[tuple[Any, ...]]:
    found = spark.read.parquet(str(directory)).drop("batch_id")
    return Counter(tuple(row) for row in found.collect())


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
    return Counter(tuple(row) for row in found.collect())


BATCHES = [batch_of(400, number, late=0.1) for number in range(6)]


@pytest.mark.parametrize(("size", "slide"), [(10, 10), (20, 5), (15, 10), (40, 4)])
@pytest.mark.parametrize("partitioner", ["auto", "level"])
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
    if partitioner == "level":
        assert "split key #1" in records[-1]["decision"]
        assert sum(records[-1]["loads"]) + records[-1]["late"] == records[-1]["rows"]
