"""The overhead where there is nothing to gain: uniform keys, tiny data, and aggregates that Spark pre-combines.

Compares each verb with plain Spark, on two task slots with default settings, from the call of the verb to the last row.
With `n_workers` a verb always balances and must count the keys first, so a second line lets plain Spark count them too.
`python -m benchmarks.spark_regret [words]` runs only the cases whose name contains one of the words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import skewless.spark as sl
from benchmarks.spark import Claim, judged, race, ratio, running, session

SLOTS, BOUND = 2, 1.1
# A query of 0.05 s varies by 20 % between runs; with medians of 75 rounds (5 % noise), one of a dozen lines of tiny
# data still broke its bound now and then. With 9 rounds of 0.33 s, queries left to plain Spark measured up to 1.13 x.
ROUNDS = {"uniform keys": 21, "tiny data": 151}
LARGE, TINY, BYTES, WORKERS = 2_000_000, 1000, 60, 16


def first(rows: Any) -> Any:
    """Returns the first row of a group, as a typical grouped function."""
    return rows.head(1)


def counted(df: DataFrame) -> DataFrame:
    """Returns the same rows after plain Spark has counted those of each key."""
    df.groupBy("k").count().collect()
    return df


def raced(df: DataFrame, other: DataFrame) -> dict[str, tuple[Callable[[], DataFrame], Callable[[], DataFrame]]]:
    """Returns plain Spark's and our way of each verb."""
    return {
        "repartition": (lambda: df.repartition("k"), lambda: sl.repartition(df, "k")),
        f"repartition, {WORKERS} workers": (
            lambda: df.repartition(WORKERS, "k"),
            lambda: sl.repartition(df, "k", n_workers=WORKERS),
        ),
        f"repartition, {WORKERS} workers, plain counts keys": (
            lambda: counted(df).repartition(WORKERS, "k"),
            lambda: sl.repartition(df, "k", n_workers=WORKERS),
        ),
        "a window function": (
            lambda: df.withColumn("n", F.row_number().over(Window.partitionBy("k").orderBy("v"))),
            lambda: sl.over(df, "k", order_by="v", n=F.row_number()),
        ),
        "a grouped function": (
            lambda: df.groupBy("k").applyInPandas(first, df.schema),
            lambda: sl.group_by(df, "k").applyInPandas(first, df.schema),
        ),
        "a collecting aggregate": (
            lambda: df.groupBy("k").agg(F.collect_list("v").alias("all")),
            lambda: sl.group_by(df, "k").agg(all=sl.collect_list("v")),
        ),
        "a combined aggregate": (
            lambda: df.groupBy("k").agg(F.sum("v").alias("s")),
            lambda: sl.group_by(df, "k").agg(s=sl.sum("v")),
        ),
        "a join": (lambda: df.join(other, "k"), lambda: sl.join(df, other, "k")),
    }


def cached(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    """Returns keys and numbers in memory, the cheapest input."""
    key = F.concat(F.lit("key "), F.floor(F.rand(rows) * keys).cast("string"))
    df = spark.range(0, rows, 1, 4).select(key.alias("k"), F.col("id").alias("v")).cache()
    df.count()
    return df


def written(df: DataFrame, directory: str) -> DataFrame:
    """Returns the same rows in files, with a wide column besides the key."""
    df.withColumn("text", F.randstr(F.lit(BYTES), F.lit(1))).write.parquet(directory)
    return df.sparkSession.read.parquet(directory)


def claims(spark: SparkSession, directory: str) -> list[Claim]:
    results = []
    for size, rows, keys in (("uniform keys", LARGE, LARGE // 500), ("tiny data", TINY, TINY // 20)):
        df, other = cached(spark, rows, keys), cached(spark, keys * 2, keys).withColumnRenamed("v", "u")
        files = written(df, f"{directory}/{size}"), written(other, f"{directory}/{size}, keys").drop("text")
        for kind, sides in (("cached", (df, other)), ("files", files)):
            for verb, (plain, ours) in raced(*sides).items():
                name = f"{size}, {kind}: {verb}"
                if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
                    continue
                times = race({"plain": running(plain), "ours": running(ours)}, ROUNDS[size])
                seconds = ", ".join(f"{way} {median(spent):.2f} s" for way, spent in times.items())
                results.append(Claim(name, ratio(times["ours"], times["plain"]), BOUND, besides=seconds))
                print(f"{name}: {results[-1].figure:.2f}", file=sys.stderr)
        df.unpersist()
    return results


def main() -> None:
    spark = session(SLOTS, {"spark.sql.shuffle.partitions": "16"})
    with TemporaryDirectory() as directory:
        results = claims(spark, directory)
    rounds = " and ".join(f"{number} rounds ({size})" for size, number in ROUNDS.items())
    kept = judged(f"Nothing to gain: ours / plain Spark, {SLOTS} slots, median of {rounds}", results)
    spark.stop()
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
