"""Streams on a disk that is full, in a namespace of mounts of their own: `unshare -rm python full_disk.py directory`.

The checkpoint and the output of a query are on a small disk with too little room. It fails, and is told why; then there
is a little more room, and it goes on, until it is done. Prints what each attempt said, as JSON.
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

STEP = 24  # kilobytes of room that there are more each time


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


def mounted(place: Path, kilobytes: int) -> None:
    """A disk of this size; one that is there is made larger, or smaller."""
    place.mkdir(exist_ok=True)
    options = f"{'remount,' if place.is_mount() else ''}size={kilobytes}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)


def attempts(spark: SparkSession, directory: Path, job: str) -> list[str]:
    """What a query said each time, until it was done."""
    place, said = directory / job, []
    for kilobytes in count(STEP, STEP):
        mounted(place, kilobytes)
        source = spark.readStream.schema("k string, v long, ts timestamp").option("maxFilesPerTrigger", 1)
        try:
            stream = JOBS[job](source.parquet(str(directory / "in")))
            query = stream.start(str(place / "out"), str(place / "checkpoint"), available_now=True)
            query.awaitTermination()
        except Exception as error:
            said.append("\n".join([str(error), *getattr(error, "__notes__", [])]))
        else:
            break
    # Out of the namespace, where the tests can see it.
    subprocess.run(["cp", "-r", str(place / "out"), str(directory / f"{job} out")], check=True)
    return said


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
