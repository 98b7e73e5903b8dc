"""Runs one skewed job three ways on a local Spark and shows the work of every task: `make demo`.

A function scores the readings of each sensor, and a third of all readings come from one sensor. Scoring a reading is a
wait of 2.5 milliseconds, as if a model or a service answered, so that sixteen task slots fit on any machine.
"""

from __future__ import annotations

import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

import skewless.spark as sl
from examples.demo_page import Run, page, picture
from skewless import streams

READINGS, SENSORS, EXPONENT, SLOTS = 20_000, 100, 1.3, 16
SECONDS_PER_READING = 0.0025
NOTES = "skewless.demo.notes"  # local property of a job: the directory where its tasks note their work
PAGE = Path("out/demo.html")
TOTALS = "readings long, alarms long"


def score(rows: pa.Table) -> pa.Table:
    """Counts readings and alarms of one sensor, or of a part of them; notes the task and the seconds that it took."""
    began = time.perf_counter()
    time.sleep(SECONDS_PER_READING * rows.num_rows)
    alarms = pc.sum(pc.greater(rows["value"], 90.0)).as_py()
    task = TaskContext.get()
    assert task is not None
    with open(f"{task.getLocalProperty(NOTES)}/{task.partitionId()}", "a") as notes:  # noqa: PTH123
        notes.write(f"{rows['sensor'][0]}\t{time.perf_counter() - began}\n")
    return pa.table({"readings": [rows.num_rows], "alarms": [alarms]})


def add(totals: pa.Table) -> pa.Table:
    return pa.table({name: [pc.sum(totals[name]).as_py()] for name in totals.column_names})


def score_sensor(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
    return score(rows).add_column(0, "sensor", [[key[0].as_py()]])


def plain(df: DataFrame) -> DataFrame:
    return df.groupBy("sensor").applyInArrow(score_sensor, f"sensor string, {TOTALS}")


def whole(df: DataFrame) -> DataFrame:
    # The hot key is longer than all else: moving other keys away from it gains too little for "auto" to do it.
    return sl.group_by(df, "sensor", n_workers=SLOTS, partitioner="level").applyInArrow(
        score_sensor, f"sensor string, {TOTALS}"
    )


def split(df: DataFrame) -> DataFrame:
    totals = sl.ArrowAggregate(partial=score, merge=add, finish=add, state=TOTALS, output=TOTALS)
    return sl.group_by(df, "sensor", n_workers=SLOTS).agg(totals)


WAYS = {"Plain Spark": plain, "Whole keys, balanced": whole, "Hot keys, split and merged": split}


def session() -> SparkSession:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master(f"local[{SLOTS}]").config("spark.sql.shuffle.partitions", SLOTS)
    # Adaptive execution merges partitions of few bytes into one task, however long a row takes. Plain Spark would
    # then be sixteen times slower for a reason that has nothing to do with skew.
    builder = builder.config("spark.sql.adaptive.coalescePartitions.enabled", "false")
    # Splitting keys needs these two; they are on by default since Spark 4.2.
    builder = builder.config("spark.sql.shuffle.orderIndependentChecksum.enabled", "true")
    builder = builder.config("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", "true")
    return builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false").getOrCreate()


def readings(spark: SparkSession) -> tuple[DataFrame, str, float]:
    """Returns the readings, the sensor with most of them, and its share."""
    numbers = streams.zipf(READINGS, SENSORS, EXPONENT).astype(np.int64) + 1
    hottest = int(np.bincount(numbers).argmax())
    values = np.random.default_rng(0).uniform(0.0, 100.0, READINGS)
    frame = pd.DataFrame({"sensor": [f"sensor-{number:03}" for number in numbers], "value": values})
    df = spark.createDataFrame(frame).repartition(SLOTS).cache()
    df.count()
    return df, f"sensor-{hottest:03}", float((numbers == hottest).mean())


def run(df: DataFrame, hot_key: str, title: str, way: Callable[[DataFrame], DataFrame]) -> tuple[Run, Any]:
    """Runs the job one way; returns its times and its result."""
    context = df.sparkSession.sparkContext
    hot, other = np.zeros(SLOTS), np.zeros(SLOTS)
    with tempfile.TemporaryDirectory(prefix="skewless-demo-") as notes:
        context.setLocalProperty(NOTES, notes)
        began = time.perf_counter()
        result: Any = way(df).toPandas()
        seconds = time.perf_counter() - began
        for path in Path(notes).iterdir():
            for line in path.read_text().splitlines():
                key, spent = line.split("\t")
                (hot if key == hot_key else other)[int(path.name)] += float(spent)
    return Run(title, seconds, hot.tolist(), other.tolist()), result.sort_values("sensor").reset_index(drop=True)


def show(console: Console, done: Run, first: Run) -> None:
    """Prints the work of every task as a bar."""
    gain = "" if done is first else f", [bold green]{first.seconds / done.seconds:.1f} x as fast[/]"
    console.print(f"[bold]{done.title}[/]: {done.seconds:.1f} s{gain}")
    scale = 60 / max(first.tasks)
    for number, (hot, total) in enumerate(zip(done.hot, done.tasks, strict=True)):
        reds = round(hot * scale)
        blues = round(total * scale) - reds
        console.print(f"  task {number:2} [red]{'█' * reds}[/][blue]{'█' * blues}[/] {total:.1f} s")
    console.print()


def main() -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Starting Spark with {SLOTS} task slots on this machine ...")
    spark = session()
    df, hot_key, share = readings(spark)
    # Python workers and JIT compilers start here, so that they count for none of the three.
    run(df.limit(200).repartition(SLOTS), hot_key, "warm-up", plain)
    run(df.limit(200).repartition(SLOTS), hot_key, "warm-up", split)
    work = 1000 * SECONDS_PER_READING
    console.print(f"{READINGS:,} readings of {SENSORS} sensors; scoring a reading takes {work:g} ms.")
    console.print(
        f"The hot key is [red]{hot_key}[/] with {share:.0%} of all readings, [red]red[/] in the bars below.\n"
    )
    runs, results = [], []
    for title, way in WAYS.items():
        done, result = run(df, hot_key, title, way)
        runs.append(done)
        results.append(result)
        show(console, done, runs[0])
    spark.stop()
    if not all(result.equals(results[0]) for result in results):
        sys.exit("The three results differ. This is a bug: please report it.")
    code = "\n".join(inspect.getsource(way) for way in WAYS.values())
    story = f"{READINGS:,} readings of {SENSORS} sensors, {work:g} ms of work each; {share:.0%} are of {hot_key}"
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(runs, hot_key, story, code))
    for path in sys.argv[1:]:
        Path(path).write_text(picture(runs, hot_key, story))
    console.print(f"The three results are equal. The same as a page with pictures: {PAGE}")
    console.print("The code of the three:\n")
    console.print(code.strip(), markup=False)


if __name__ == "__main__":
    main()
