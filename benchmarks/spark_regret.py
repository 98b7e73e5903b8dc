"""Where there is nothing to gain: uniform keys, tiny data, and aggregates that Spark combines before it sends rows.

Each verb against plain Spark, on two task slots and as Spark comes, from the call of the verb to the last row. Whoever
says how many workers he wants is given balanced ones, for which the keys must be known: besides plain Spark as it is,
there is a line in which it counts the keys first.
`python -m benchmarks.spark_regret [words]`: with words, only cases that have one of them in their name.
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
# What takes a twentieth of a second differs by a fifth from time to time: of the median of 75 rounds, that is a
# twentieth, and of a dozen lines of tiny data one was above its bound now and then, each time another. In 9 rounds of a
# third of a second each, what is left to Spark was 1.13.
ROUNDS = {"uniform keys": 21, "tiny data": 151}
LARGE, TINY, BYTES, WORKERS = 2_000_000, 1000, 60, 16


def first(rows: Any) -> Any:
    """A grouped function of the usual kind."""
    return rows.head(1)


def counted(df: DataFrame) -> DataFrame:
    """The same rows, after plain Spark has told how many each key has."""
    df.groupBy("k").count().collect()
    return df


def raced(df: DataFrame, other: DataFrame) -> dict[str, tuple[Callable[[], DataFrame], Callable[[], DataFrame]]]:
    """Verbs: plain, and ours."""
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
    """Keys and numbers in memory: nothing is cheaper to read."""
    key = F.concat(F.lit("key "), F.floor(F.rand(rows) * keys).cast("string"))
    df = spark.range(0, rows, 1, 4).select(key.alias("k"), F.col("id").alias("v")).cache()
    df.count()
    return df


def written(df: DataFrame, directory: str) -> DataFrame:
    """The same rows in files, with something to carry besides the key."""
    df.withColumn("text", F.randstr(F.lit(BYTES), F.lit(1))).write.parquet(directory)
    return df.sparkSession.read.parquet(directory)


def claims(spark: SparkSession, directory: str) -> list[Claim]:
    found = []
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
                found.append(Claim(name, ratio(times["ours"], times["plain"]), BOUND, besides=seconds))
                print(f"{name}: {found[-1].figure:.2f}", file=sys.stderr)
        df.unpersist()
    return found


def main() -> None:
    spark = session(SLOTS, {"spark.sql.shuffle.partitions": "16"})
    with TemporaryDirectory() as directory:
        found = claims(spark, directory)
    rounds = " and ".join(f"{number} rounds ({size})" for size, number in ROUNDS.items())
    kept = judged(f"Nothing to gain: ours / plain Spark, {SLOTS} slots, median of {rounds}", found)
    spark.stop()
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
