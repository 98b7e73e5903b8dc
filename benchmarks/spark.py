"""What routing by a table costs on Spark, as ratios to Spark's own repartition in the same run.

Every round times each way once, on the same cached rows; a ratio is the median over the rounds.
"""

from __future__ import annotations

import os
import sys
from statistics import median
from time import perf_counter

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.progress import track
from rich.table import Table

import skewless.spark as sl
from skewless import RoutingTable

ROWS, WORKERS, ROUNDS = 4_000_000, 16, 9
HOT = (0, 20, 200, 2000)
BOUND = 1.05


def session() -> SparkSession:
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "6g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return builder.config("spark.log.level", "ERROR").getOrCreate()


def seconds(df: DataFrame) -> float:
    began = perf_counter()
    df.write.format("noop").mode("overwrite").save()
    return perf_counter() - began


def main() -> None:
    spark = session()
    key = F.floor(F.pow(F.rand(1), 3) * 100_000).cast("string")
    df = spark.range(0, ROWS, 1, 4).select(key.alias("k"), F.col("id").alias("v")).cache()
    heaviest = sl.profile(df, "k").histogram.keys
    ways = {"spark's repartition": df.repartition(WORKERS, "k")}
    for hot in HOT:
        places = (np.arange(hot) % WORKERS).astype(np.int32)
        keys = np.sort(heaviest[:hot])
        table = RoutingTable.hashed(WORKERS).placing(keys, np.arange(hot + 1), places, np.ones(hot))
        ways[f"a table, {hot:,} hot keys"] = sl.repartition(df, "k", partitioner=table)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in track(range(ROUNDS + 2), "timing", console=Console(stderr=True), transient=True):
        for name, way in ways.items():
            spent = seconds(way)
            if number >= 2:  # the JVM is warm by then
                times[name].append(spent)
    shown = Table(title=f"{ROWS:,} rows to {WORKERS} partitions, median of {ROUNDS} rounds")
    for title in ("way", "seconds", "x Spark's own"):
        shown.add_column(title, justify="left" if title == "way" else "right")
    plain, worst = times["spark's repartition"], 0.0
    for name, mine in times.items():
        ratio = median(one / other for one, other in zip(mine, plain, strict=True))
        worst = max(worst, ratio)
        shown.add_row(name, f"{median(mine):.2f}", f"{ratio:.2f}")
    Console().print(shown)
    print(f"at most {worst:.2f} x Spark's own (bound {BOUND} x)")
    spark.stop()
    sys.exit(0 if worst <= BOUND else 1)


if __name__ == "__main__":
    main()
