"""What routing by a table costs on Spark, as ratios to Spark's own repartition in the same run.

Every round times each way once, on the same cached rows. Compilation and memory layout differ between JVMs, which can
favour either side by 10 % in all rounds of one JVM. So a ratio is the median over the rounds of several JVMs.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from statistics import median
from subprocess import PIPE, run

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import skewless.spark as sl
from benchmarks.spark import Claim, judged, race, ratio, running, session
from skewless import RoutingTable

ROWS, WORKERS = 4_000_000, 16
JVMS, ROUNDS = 7, 7
HOT = (0, 20, 200, 2000)
MANY_WORKERS, FEW_ROWS = 1000, 100_000  # shows the cost of the table itself
BOUND = 1.05
PLAIN = "spark's repartition"


def raced(df: DataFrame, n_workers: int, hot: tuple[int, ...]) -> dict[str, list[float]]:
    """Returns the seconds of Spark's own repartition, and of tables with these numbers of hot keys, in each round."""
    heaviest = sl.profile(df, "k").histogram.keys
    ways = {PLAIN: df.repartition(n_workers, "k")}
    for n in hot:
        workers = (np.arange(n) % n_workers).astype(np.int32)
        table = RoutingTable.hashed(n_workers).with_hot_keys(
            np.sort(heaviest[:n]), np.arange(n + 1), workers, np.ones(n)
        )
        ways[f"a table, {n:,} hot keys"] = sl.repartition(df, "k", partitioner=table)
    return race({name: running(partial(_same, way)) for name, way in ways.items()}, ROUNDS, warm=2)


def in_this_jvm() -> list[dict[str, list[float]]]:
    """Returns the results of both races."""
    spark = session(2)
    key = F.floor(F.pow(F.rand(1), 3) * 100_000).cast("string")
    df = spark.range(0, ROWS, 1, 4).select(key.alias("k"), F.col("id").alias("v")).cache()
    results = [raced(df, WORKERS, HOT)]
    few = df.limit(FEW_ROWS).repartition(4).cache()
    results.append(raced(few, MANY_WORKERS, (0, HOT[-1])))
    spark.stop()
    return results


def main() -> None:
    if sys.argv[1:] == ["once"]:
        print(json.dumps(in_this_jvm()))
        return
    command = [sys.executable, "-m", "benchmarks.spark_routing", "once"]
    runs = [json.loads(run(command, stdout=PIPE, check=True).stdout) for _ in range(JVMS)]
    kept = True
    for number, (rows, n_workers) in enumerate(((ROWS, WORKERS), (FEW_ROWS, MANY_WORKERS))):
        claims = []
        for name in runs[0][number]:
            times = [second for jvm in runs for second in jvm[number][name]]
            plain = [second for jvm in runs for second in jvm[number][PLAIN]]
            by_jvm = ", ".join(f"{ratio(jvm[number][name], jvm[number][PLAIN]):.2f}" for jvm in runs)
            if name != PLAIN:
                claims.append(
                    Claim(name, ratio(times, plain), BOUND, besides=f"{median(times):.2f} s; by JVM: {by_jvm}")
                )
        title = f"{rows:,} rows to {n_workers:,} partitions, x Spark's own, median of {ROUNDS} rounds in {JVMS} JVMs"
        kept &= judged(title, claims)
    sys.exit(0 if kept else 1)


def _same(df: DataFrame) -> DataFrame:
    return df


if __name__ == "__main__":
    main()
