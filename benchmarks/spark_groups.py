"""Grouped Python functions on 16 task slots where each row is a fixed wait, so that balance shows as time everywhere.

First the waits of the longest task against the least possible; then the total time against plain Spark with AQE.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from benchmarks.spark import Claim, judged, race, ratio, session
from skewless import streams

SLOTS, ROUNDS = 16, 5
EXPONENTS = (0.8, 1.0, 1.2, 1.5, 2.0)
ROWS, N_KEYS = 10_000, 100_000
MANY_ROWS, FEW_KEYS = 50_000, 1000
MERGING = "spark.sql.adaptive.coalescePartitions.enabled"
SCHEMA = "task int, waited double"


def waiting(cost: float) -> Callable[[pa.Table], pa.Table]:
    """Returns a function that waits `cost` seconds per row and reports its task."""

    def work(rows: pa.Table) -> pa.Table:
        time.sleep(cost * rows.num_rows)
        task = TaskContext.get()
        number = pa.array([task.partitionId() if task else -1], pa.int32())
        return pa.table({"task": number, "waited": [cost * rows.num_rows]})

    return work


def aggregate(cost: float) -> sl.ArrowAggregate:
    """Returns the same work as an aggregate, whose parts can run on any worker."""

    def same(states: pa.Table) -> pa.Table:
        return states

    return sl.ArrowAggregate(waiting(cost), same, same, SCHEMA, SCHEMA)


def keyed(spark: SparkSession, keys: Any, width: int = 2000) -> DataFrame:
    """Returns rows with these keys, wide enough that AQE does not merge them into one task."""
    df = spark.createDataFrame(pd.DataFrame({"k": [f"key {key}" for key in keys]}))
    df = df.repartition(SLOTS).withColumn("v", F.randstr(F.lit(width), F.lit(1))).cache()
    df.count()
    return df


def longest(df: DataFrame) -> tuple[float, float]:
    """Returns the waits of the longest task, and the mean over all slots."""
    rows: Any = df.toPandas()
    waits = rows.groupby("task")["waited"].sum()
    return float(waits.max()), float(waits.sum()) / SLOTS


def balance(spark: SparkSession) -> list[Claim]:
    """Compares the longest task with the least possible: the mean or, with whole keys, the largest key if longer."""
    claims, cost = [], 0.5 * SLOTS / MANY_ROWS
    for exponent in EXPONENTS:
        keys = streams.zipf(MANY_ROWS, FEW_KEYS, exponent)
        df = keyed(spark, keys, width=10)
        groups = sl.group_by(df, "k", n_workers=SLOTS)
        hashed, mean = longest(df.groupBy("k").applyInArrow(waiting(cost), SCHEMA))
        whole, _ = longest(groups.applyInArrow(waiting(cost), SCHEMA))
        split, _ = longest(groups.agg(aggregate(cost)))
        bound = max(mean, cost * float(np.unique(keys, return_counts=True)[1].max()))
        claims += [
            Claim(f"Zipf {exponent:g}, whole keys", whole / bound, 1.1, besides=f"hashed {hashed / bound:.2f}"),
            Claim(f"Zipf {exponent:g}, split keys", split / mean, 1.1, besides=f"hashed {hashed / mean:.2f}"),
        ]
        df.unpersist()
    return claims


def total_time(frames: list[DataFrame], cost: float, split: bool) -> tuple[float, str]:
    """Returns the time of plain Spark over ours, and both in seconds. Each round has other keys."""
    work = waiting(cost)

    def ours(number: int) -> None:
        groups = sl.group_by(frames[number], "k", n_workers=SLOTS)
        (groups.agg(aggregate(cost)) if split else groups.applyInArrow(work, SCHEMA)).toPandas()

    times = race(
        {"plain": lambda number: frames[number].groupBy("k").applyInArrow(work, SCHEMA).toPandas(), "ours": ours},
        len(frames),
    )
    for df in frames:
        df.unpersist()
    seconds = ", ".join(f"{name} {median(spent):.1f} s" for name, spent in times.items())
    return ratio(times["plain"], times["ours"]), seconds


def total_times(spark: SparkSession) -> Iterator[Claim]:
    """Compares the total time of whole and of split keys with plain Spark."""
    for groups, wait in ((16, 5.0), (64, 2.5)):
        rows = ROWS // groups
        frames = [keyed(spark, [f"{n} of set {draw}" for n in range(groups)] * rows) for draw in range(ROUNDS)]
        times, seconds = total_time(frames, wait / rows, split=False)
        yield Claim(f"{groups} equal groups of {wait:g} s each", times, at_least=2, besides=seconds)
    frames = [keyed(spark, streams.zipf(ROWS, N_KEYS, 1.5, seed=draw)) for draw in range(ROUNDS)]
    times, seconds = total_time(frames, 5 * SLOTS / ROWS, split=True)
    yield Claim(f"an aggregate, Zipf 1.5 of {N_KEYS:,} keys, split", times, at_least=4, besides=seconds)


def main() -> None:
    spark = session(SLOTS)
    spark.conf.set(MERGING, "false")
    title = f"{SLOTS} task slots, {MANY_ROWS:,} rows, {FEW_KEYS:,} keys: the longest task over the least possible"
    kept = judged(title, balance(spark))
    spark.conf.unset(MERGING)
    title = f"Total time: plain Spark with AQE / ours, median of {ROUNDS} rounds"
    kept &= judged(title, list(total_times(spark)))
    spark.stop()
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
