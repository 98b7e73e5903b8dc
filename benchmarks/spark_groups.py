"""Grouped Python work on 16 task slots where each row costs a fixed wait, so that balance shows as time on any machine.

First how long the waits of the longest task are, against the least that is possible; then the time from beginning to
end, against plain Spark with AQE as it comes.
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
ROWS, N_KEYS, FEW_KEYS = 10_000, 100_000, 1000
MERGING = "spark.sql.adaptive.coalescePartitions.enabled"
SCHEMA = "task int, waited double"


def waiting(cost: float) -> Callable[[pa.Table], pa.Table]:
    """Work on some rows of a key that takes so many seconds a row; it says which task did it."""

    def work(rows: pa.Table) -> pa.Table:
        time.sleep(cost * rows.num_rows)
        task = TaskContext.get()
        number = pa.array([task.partitionId() if task else -1], pa.int32())
        return pa.table({"task": number, "waited": [cost * rows.num_rows]})

    return work


def aggregate(cost: float) -> sl.ArrowAggregate:
    """The same as an aggregate whose parts can be done anywhere."""

    def same(states: pa.Table) -> pa.Table:
        return states

    return sl.ArrowAggregate(waiting(cost), same, same, SCHEMA, SCHEMA)


def keyed(spark: SparkSession, keys: Any) -> DataFrame:
    """Rows with these keys and something to carry: 2 KB, so that AQE does not take so few rows for one task's."""
    df = spark.createDataFrame(pd.DataFrame({"k": [f"key {key}" for key in keys]}))
    df = df.repartition(SLOTS).withColumn("v", F.randstr(F.lit(2000), F.lit(1))).cache()
    df.count()
    return df


def longest(df: DataFrame) -> tuple[float, float]:
    """The waits of the longest task, and the mean over all slots."""
    found: Any = df.toPandas()
    waits = found.groupby("task")["waited"].sum()
    return float(waits.max()), float(waits.sum()) / SLOTS


def balance(spark: SparkSession) -> list[Claim]:
    """The longest task against what is possible: the mean, or, of whole keys, the largest key if that is more."""
    claims, cost = [], SLOTS / ROWS
    for exponent in EXPONENTS:
        keys = streams.zipf(ROWS, FEW_KEYS, exponent)
        df = keyed(spark, keys)
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


def ending(frames: list[DataFrame], cost: float, split: bool) -> tuple[float, str]:
    """How many times as long plain Spark takes as we do; and the seconds. Each round has other keys."""
    work = waiting(cost)

    def ours(number: int) -> None:
        groups = sl.group_by(frames[number], "k", n_workers=SLOTS)
        (groups.agg(aggregate(cost)) if split else groups.applyInArrow(work, SCHEMA)).toPandas()

    found = race(
        {"plain": lambda number: frames[number].groupBy("k").applyInArrow(work, SCHEMA).toPandas(), "ours": ours},
        len(frames),
    )
    for df in frames:
        df.unpersist()
    seconds = ", ".join(f"{name} {median(times):.1f} s" for name, times in found.items())
    return ratio(found["plain"], found["ours"]), seconds


def endings(spark: SparkSession) -> Iterator[Claim]:
    for groups, wait in ((16, 3.0), (64, 2.0)):
        rows = ROWS // groups
        frames = [keyed(spark, [f"{n} of set {draw}" for n in range(groups)] * rows) for draw in range(ROUNDS)]
        times, seconds = ending(frames, wait / rows, split=False)
        yield Claim(f"{groups} equal groups of {wait:g} s each", times, at_least=2, besides=seconds)
    frames = [keyed(spark, streams.zipf(ROWS, N_KEYS, 1.5, seed=draw)) for draw in range(ROUNDS)]
    times, seconds = ending(frames, 4 * SLOTS / ROWS, split=True)
    yield Claim(f"an aggregate, Zipf 1.5 of {N_KEYS:,} keys, split", times, at_least=4, besides=seconds)


def main() -> None:
    spark = session(SLOTS)
    spark.conf.set(MERGING, "false")
    title = f"{SLOTS} task slots, {ROWS:,} rows, {FEW_KEYS:,} keys: the longest task over the least possible"
    kept = judged(title, balance(spark))
    spark.conf.unset(MERGING)
    title = f"From beginning to end: plain Spark with AQE / ours, median of {ROUNDS} rounds"
    kept &= judged(title, list(endings(spark)))
    spark.stop()
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
