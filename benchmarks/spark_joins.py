"""Joins on 16 task slots where each output row is a fixed wait, so that balance shows as time.

The peers are plain Spark with AQE, set to split partitions above 100 KB (the default is 256 MB), and manual salting
with the best number of salts. Salting cannot do joins that preserve the replicated side.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from benchmarks.spark import Claim, judged, race, ratio, running, session

SLOTS, ROUNDS, MEAN = 16, 5, 2.5  # MEAN: seconds that a slot waits in a round if perfectly balanced
SALTS = (4, 8, 16)
ROWS, BYTES = 10_000, 400
AS_GOOD, TWICE = 1.1, 2.0
SETTINGS = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "100KB",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "100KB",
}


class Case(NamedTuple):
    """A join and its hot keys."""

    name: str
    how: str
    left: dict[int, int]  # hot key -> rows; other keys have one row on each side
    right: dict[int, int]
    maps: int = 16
    aqe_helps: bool = False
    salted: bool = True  # whether salting the left side gives correct results


HOT = ROWS // 3
CASES = (
    Case("no hot key, inner", "inner", {}, {}, aqe_helps=True),
    Case("left hot, inner", "inner", {0: HOT}, {0: 1}, aqe_helps=True),
    Case("left hot, left outer", "left", {0: HOT}, {}, aqe_helps=True),
    Case("left hot, inner, 2 map tasks", "inner", {0: HOT}, {0: 1}, maps=2),
    Case("both hot, inner", "inner", {0: 100, 1: 40}, {0: 40, 1: 100}),
    Case("left hot, full outer", "full", {0: HOT}, {}, salted=False),
    Case("both hot, full outer", "full", {0: HOT, 1: 1}, {0: 1, 1: HOT}, salted=False),
    Case("right hot, left outer", "left", {0: 1}, {0: HOT}, salted=False),
)


def side(spark: SparkSession, hot: dict[int, int], name: str, maps: int) -> DataFrame:
    """Returns one side of a join, cached in `maps` partitions: hot keys, and keys with one row each.

    hot: the rows of each hot key.
    name: of the column besides the key.
    """
    cold = range(10, 10 + ROWS - sum(hot.values()))
    keys = np.random.default_rng(1).permutation([*cold, *(key for key, rows in hot.items() for _ in range(rows))])
    df = spark.createDataFrame(pd.DataFrame({"k": [f"key {key}" for key in keys]})).repartition(maps)
    df = df.withColumn(name, F.randstr(F.lit(BYTES), F.lit(1))).cache()
    df.count()
    return df


def waiting(cost: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a function that waits `cost` seconds per row and counts the rows."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            time.sleep(cost * batch.num_rows)
            yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})

    return work


def salted(left: DataFrame, right: DataFrame, how: str, salts: int) -> DataFrame:
    """Joins with manual salting."""
    salted_left = left.withColumn("salt", F.floor(F.rand(3) * salts).cast("int"))
    copied_right = right.withColumn("salt", F.explode(F.sequence(F.lit(0), F.lit(salts - 1))))
    return salted_left.join(copied_right, ["k", "salt"], how).drop("salt")


def raced(spark: SparkSession, case: Case) -> list[Claim]:
    """Compares a join of ours with plain Spark and, where it gives correct results, with the best manual salting."""
    left, right = side(spark, case.left, "a", case.maps), side(spark, case.right, "b", case.maps)
    work = waiting(SLOTS * MEAN / left.join(right, "k", case.how).count())

    def timed(join: Callable[[], DataFrame]) -> Callable[[int], None]:
        return running(lambda: join().mapInArrow(work, "n long"))

    ways = {
        "plain": timed(lambda: left.join(right, "k", case.how)),
        "ours": timed(lambda: sl.join(left, right, "k", case.how, n_workers=SLOTS)),
    }
    if case.salted:
        by_hand = {f"{n} salts": timed(partial(salted, left, right, case.how, n)) for n in SALTS}
        tried = race(by_hand, 1)
        best = min(tried, key=lambda name: tried[name])
        ways[best] = by_hand[best]
    times = race(ways, ROUNDS)
    seconds = ", ".join(f"{name} {median(spent):.1f} s" for name, spent in times.items())
    peer = min((name for name in times if name != "ours"), key=lambda name: median(times[name]))
    claims = [
        Claim(f"{case.name}: ours / {peer}", ratio(times["ours"], times[peer]), at_most=AS_GOOD, besides=seconds),
    ]
    if not case.aqe_helps:
        claims.append(Claim("    plain / ours", ratio(times["plain"], times["ours"]), at_least=TWICE))
    for df in (left, right):
        df.unpersist()
    return claims


def main() -> None:
    spark = session(SLOTS, SETTINGS)
    claims = [claim for case in CASES for claim in raced(spark, case)]
    kept = judged(f"Joins, each output row waits; {SLOTS} slots, median of {ROUNDS} rounds", claims)
    spark.stop()
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
