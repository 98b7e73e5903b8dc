"""Batches of a stream in files, and the results of plain Spark for them."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k string, v long, ts timestamp"


def batch_of(rows: int, number: int, seed: int = 0, late: float = 0.0) -> pa.Table:
    """Returns rows of 10 seconds, more than a third of them with one key; a share of them is a minute late."""
    random = np.random.default_rng([seed, number])
    keys = [f"k{min(int(k), 50)}" for k in random.zipf(1.5, rows)]
    seconds = 10 * number + 10 * random.random(rows)
    seconds[random.random(rows) < late] -= 60
    times = [BEGIN + timedelta(seconds=float(second)) for second in seconds]
    values = random.integers(-100, 100, rows).tolist()
    some = [None if random.random() < 0.02 else key for key in keys]
    numbers = [None if random.random() < 0.02 else value for value in values]
    return pa.table({"k": some, "v": numbers, "ts": pa.array(times, pa.timestamp("us", "UTC"))})


def write(directory: Path, batches: list[pa.Table]) -> str:
    """Writes one file per batch; Spark reads them in the order of their times.

    A file gets its name when it is complete and has its time: a query that runs might read a part of it, or see its
    time as now, and then ignore all later files as too old.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for table in batches:
        number = len(list(directory.iterdir()))
        path, unfinished = directory / f"{number:05d}.parquet", directory / f"_{number:05d}.parquet"
        pq.write_table(table, unfinished)
        os.utime(unfinished, (number, number))
        unfinished.rename(path)
    return str(directory)


def read(spark: SparkSession, directory: str) -> DataFrame:
    return (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .option("latestFirst", "false")
        .parquet(directory)
    )


def run_to_end(job: Any, sink: Any, checkpoint: Path | str) -> sl.Query:
    """Starts a query on what its source has now, and waits until all of it is processed."""
    query: sl.Query = job.start(sink, str(checkpoint), available_now=True)
    assert query.awaitTermination(300)
    return query


def output_of(spark: SparkSession, directory: Path | str) -> Counter[tuple[Any, ...]]:
    """Returns the rows that a query wrote to a directory."""
    rows = spark.read.parquet(str(directory)).drop("batch_id")
    return Counter(hashable(row) for row in rows.collect())


def hashable(row: Any) -> Any:
    return tuple(map(hashable, row)) if isinstance(row, (tuple, list)) else row


def expected(
    spark: SparkSession, batches: list[pa.Table], size: int, slide: int, delay: int = 0, **aggregates: Any
) -> Counter[tuple[Any, ...]]:
    """Returns plain Spark's windows of all rows that are not late, if they end before the last watermark."""
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
    results = df.groupBy("window", "k").agg(*(value.alias(name) for name, value in aggregates.items()))
    return Counter(hashable(row) for row in results.collect())


def counted_and_most() -> sl.ArrowAggregate:
    """Returns an aggregate of the number of rows and the largest value.

    Its steps are nested functions, so that Spark sends them by value.
    """

    def partial(rows: pa.Table) -> pa.Table:
        return pa.table({"n_rows": [rows.num_rows], "best": pa.array([pc.max(rows["v"]).as_py()], pa.int64())})

    def merge(states: pa.Table) -> pa.Table:
        best = pa.array([pc.max(states["best"]).as_py()], pa.int64())
        return pa.table({"n_rows": [pc.sum(states["n_rows"]).as_py()], "best": best})

    def finish(state: pa.Table) -> pa.Table:
        return state.rename_columns(["n", "most"])

    return sl.ArrowAggregate(partial, merge, finish, "n_rows long, best long", "n long, most long")


BATCHES = [batch_of(400, number, late=0.1) for number in range(6)]
