"""Counts rows in windows over a stream whose hot keys change: `make stream`. The loads even out after each change."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import skewless.spark as sl
from skewless import streams

BATCHES, ROWS, KEYS, CHANGE = 12, 50_000, 5_000, 4  # every CHANGE batches, other keys are hot
BEGIN = np.datetime64("2026-01-01", "us").astype(np.int64)


def write(directory: Path) -> None:
    """Writes one file per batch, of ten seconds each; a fifth of the rows have the hottest key."""
    directory.mkdir()
    for number in range(BATCHES):
        keys = streams.zipf(ROWS, KEYS, exponent=1.2, seed=number).astype(np.int64) + KEYS * (number // CHANGE)
        times = BEGIN + (number + np.arange(ROWS) / ROWS) * 10_000_000
        stamps = pa.array(times.astype(np.int64), pa.timestamp("us", "UTC"))
        path = directory / f"{number:03d}.parquet"
        pq.write_table(pa.table({"user": keys, "ts": stamps}), path)
        os.utime(path, (number, number))  # Spark reads older files first


def main() -> None:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    print(f"Starting Spark for {BATCHES} batches of {ROWS:,} rows; the hot keys change every {CHANGE} batches.")
    print("Watch the largest load: it is far above the mean in the batch of a change, and near it in the next one.\n")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    directory = Path(tempfile.mkdtemp(prefix="skewless-"))
    try:
        write(directory / "in")
        source = spark.readStream.schema("user long, ts timestamp").option("maxFilesPerTrigger", 1)
        events = source.parquet(str(directory / "in"))
        query = (
            sl.stream(events, "user", time="ts", partitioner="level", n_workers=16)
            .window("20 seconds", "10 seconds")
            .agg(n=sl.count())
            .start(str(directory / "out"), str(directory / "checkpoint"), available_now=True)
        )
        query.follow()
        query.awaitTermination()
        windows = spark.read.parquet(str(directory / "out"))
        print(f"\n{windows.select('window').distinct().count()} windows, {windows.count():,} rows; the hottest:")
        windows.orderBy("n", ascending=False).select("window", "user", "n").limit(3).show(truncate=False)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        spark.stop()


if __name__ == "__main__":
    main()
