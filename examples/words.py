"""A grouped Python function on skewed keys, by plain Spark and by Skewless, with the time of every task.

The words of the Python standard library are grouped, and a function works on each word's rows: here it only waits, for
the same time for every row, so that two cores do for sixteen tasks. `make demo` runs it.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

import skewless.spark as sl
from skewless import streams

WORDS, WORKERS, WAIT = 200_000, 16, 500e-6  # seconds a row
SCHEMA = "word string, n long, task int, seconds double"


def work(rows: pa.Table) -> pa.Table:
    """What a user would do with all rows of a word."""
    began = time.perf_counter()
    time.sleep(WAIT * rows.num_rows)
    task = TaskContext.get()
    number = pa.array([task.partitionId() if task else -1], pa.int32())
    seconds = pa.array([time.perf_counter() - began])
    return pa.table({"word": rows["word"][:1], "n": [rows.num_rows], "task": number, "seconds": seconds})


def timed(df: DataFrame) -> tuple[float, Any]:
    """Seconds from beginning to end, and the result."""
    began = time.perf_counter()
    result = df.toPandas()
    return time.perf_counter() - began, result


def bars(console: Console, title: str, seconds: float, result: Any, scale: float) -> None:
    """The work of every task as a bar."""
    load = np.zeros(WORKERS)
    for task, spent in result.groupby("task")["seconds"].sum().items():
        load[task] = spent
    longest = f"the longest task worked for {load.max():.1f} s, the mean for {load.mean():.1f} s"
    console.print(f"[bold]{title}[/]: {seconds:.1f} s; {longest}")
    for task, spent in enumerate(load):
        style = "red" if spent > 1.5 * load.mean() else "green"
        console.print(f"  task {task:2}  [{style}]{'█' * round(40 * spent / scale)}[/] {spent:.1f}")


def main() -> None:
    console = Console(highlight=False, soft_wrap=True)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    console.print(f"Starting Spark with {WORKERS} task slots ...")
    spark = (
        SparkSession.builder.master(f"local[{WORKERS}]")
        .config("spark.sql.shuffle.partitions", WORKERS)
        # Spark would put small data into one task, however long a row takes: that is not what is compared here.
        .config("spark.sql.adaptive.coalescePartitions.enabled", "false")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    words = [word.decode() for word in streams.texts(WORDS)]
    df = spark.createDataFrame(pd.DataFrame({"word": words})).repartition(WORKERS).cache()
    console.print(
        f"{df.count():,} words of the standard library; every row of a word takes {1e6 * WAIT:.0f} µs of work.\n"
    )
    # Python workers start once; that should not count for either.
    df.limit(2000).repartition(WORKERS).groupBy("word").applyInArrow(work, SCHEMA).count()
    console.print(str(sl.explain(df, "word", operator="applyInArrow", n_workers=WORKERS)) + "\n")
    plain_seconds, plain = timed(df.groupBy("word").applyInArrow(work, SCHEMA))
    our_seconds, ours = timed(sl.group_by(df, "word", n_workers=WORKERS).applyInArrow(work, SCHEMA))
    scale = max(frame.groupby("task")["seconds"].sum().max() for frame in (plain, ours))
    bars(console, "plain Spark", plain_seconds, plain, scale)
    bars(console, "Skewless", our_seconds, ours, scale)
    same = [frame[["word", "n"]].sort_values("word").reset_index(drop=True) for frame in (plain, ours)]
    assert same[0].equals(same[1]), "the results differ: please report this"
    console.print(f"\nThe same result, {plain_seconds / our_seconds:.1f} times as fast.")
    spark.stop()


if __name__ == "__main__":
    main()
