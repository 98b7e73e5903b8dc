"""Runs streams on a disk that is full, in mount namespaces of their own: `unshare -rm python full_disk.py directory`.

The checkpoint and the output of a query are on a small disk with too little room. It fails with an error; then the disk
gets a little larger, and the query is started again, until it is done. Writes the errors of each job to a JSON file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import skewless.spark as sl

STEP = 24  # kilobytes by which the disk grows after each attempt


def counting(events: DataFrame) -> Any:
    stream = sl.stream(events, "k", time="ts", partitioner="level", n_workers=3)
    return stream.window("20 seconds", "10 seconds").agg(n=sl.count(), s=sl.sum("v"))


def remembering(events: DataFrame) -> Any:
    def add(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
        n = rows.num_rows + (state.get[0] if state.exists else 0)
        state.update((n,))
        return pa.table({"k": [key[0]], "n": [n]})

    return sl.stream(events, "k", n_workers=3).applyInArrowWithState(add, "k string, n long", "n long")


JOBS: dict[str, Callable[[DataFrame], Any]] = {"windows": counting, "state": remembering}


def mount(disk: Path, kilobytes: int) -> None:
    """Mounts a disk of this size, or changes the size of the one that is mounted."""
    disk.mkdir(exist_ok=True)
    options = f"{'remount,' if disk.is_mount() else ''}size={kilobytes}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)


def attempts(spark: SparkSession, directory: Path, job: str) -> list[str]:
    """Runs a query on ever larger disks until it is done; returns the errors of the failed attempts."""
    disk, errors = directory / job, []
    for kilobytes in count(STEP, STEP):
        mount(disk, kilobytes)
        source = spark.readStream.schema("k string, v long, ts timestamp").option("maxFilesPerTrigger", 1)
        try:
            stream = JOBS[job](source.parquet(str(directory / "in")))
            query = stream.start(str(disk / "out"), str(disk / "checkpoint"), available_now=True)
            query.awaitTermination()
        except Exception as error:
            errors.append("\n".join([str(error), *getattr(error, "__notes__", [])]))
        else:
            break
    # Copied out of the namespace, where the tests can see it.
    subprocess.run(["cp", "-r", str(disk / "out"), str(directory / f"{job} out")], check=True)
    return errors


def main(directory: Path) -> None:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "3")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for job in JOBS:
        (directory / f"{job}.json").write_text(json.dumps(attempts(spark, directory, job)))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
