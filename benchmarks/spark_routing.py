"""What routing by a table costs on Spark, as ratios to Spark's own repartition in the same run.

Every round times each way once, on the same cached rows; a ratio is the median over the rounds.
"""

from __future__ import annotations

import sys
from functools import partial
from statistics import median

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import skewless.spark as sl
from benchmarks.spark import Claim, judged, race, ratio, running, session
from skewless import RoutingTable

ROWS, WORKERS, ROUNDS = 4_000_000, 16, 21  # of nine rounds, even 0 hot keys took 0.94 and 1.06
HOT = (0, 20, 200, 2000)
MANY_WORKERS, FEW_ROWS = 1000, 100_000  # what a table itself costs: a row is sent to one of many workers
BOUND = 1.05


def routed(df: DataFrame, n_workers: int, hot: tuple[int, ...]) -> bool:
    """Whether tables with so many hot keys keep the bound."""
    heaviest = sl.profile(df, "k").histogram.keys
    ways = {"spark's repartition": df.repartition(n_workers, "k")}
    for n in hot:
        places = (np.arange(n) % n_workers).astype(np.int32)
        table = RoutingTable.hashed(n_workers).placing(np.sort(heaviest[:n]), np.arange(n + 1), places, np.ones(n))
        ways[f"a table, {n:,} hot keys"] = sl.repartition(df, "k", partitioner=table)
    found = race({name: running(partial(_same, way)) for name, way in ways.items()}, ROUNDS, warm=2)
    plain = found["spark's repartition"]
    claims = [
        Claim(name, ratio(times, plain), BOUND, besides=f"{median(times):.2f} s")
        for name, times in found.items()
        if times is not plain
    ]
    return judged(f"{df.count():,} rows to {n_workers:,} partitions, x Spark's own, median of {ROUNDS} rounds", claims)


def main() -> None:
    spark = session(2)
    key = F.floor(F.pow(F.rand(1), 3) * 100_000).cast("string")
    df = spark.range(0, ROWS, 1, 4).select(key.alias("k"), F.col("id").alias("v")).cache()
    kept = routed(df, WORKERS, HOT)
    few = df.limit(FEW_ROWS).repartition(4).cache()
    kept &= routed(few, MANY_WORKERS, (0, HOT[-1]))
    spark.stop()
    sys.exit(0 if kept else 1)


def _same(df: DataFrame) -> DataFrame:
    return df


if __name__ == "__main__":
    main()
