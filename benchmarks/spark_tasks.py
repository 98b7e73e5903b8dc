"""The time of many small Python tasks on Spark, without and with our quick start.

Each job begins with a shuffle, and its tasks have almost nothing to do. The two ways of a pair are interleaved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.spark import Claim, judged, race, ratio, running, session
from skewless.spark.task_startup import with_quick_start

ROWS, KEYS, TASKS, ROUNDS = 100_000, 100, 32, 9
BOUND = 1.2


def same() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns a new function each time, since `with_quick_start` changes its argument."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return rows


def first() -> Callable[[Any], Any]:
    """Returns a new grouped function, which returns the first row of a group."""

    def row(rows: Any) -> Any:
        return rows.head(1)

    return row


def main() -> None:
    spark = session(2, {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": str(TASKS)})
    df = spark.range(0, ROWS, 1, 2).select((F.col("id") % KEYS).alias("k"), "id").cache()
    df.count()

    def mapped(function: Any) -> DataFrame:
        return df.repartition(TASKS, "k").mapInArrow(function, df.schema)

    def grouped(function: Any) -> DataFrame:
        return df.groupBy("k").applyInPandas(function, df.schema)

    claims = []
    for name, made, function in (("mapInArrow", mapped, same), ("a grouped function", grouped, first)):
        ways = {
            "plain": running(partial(made, function())),
            "quick start": running(partial(made, with_quick_start(function()))),
        }
        times = race(ways, ROUNDS, warm=3)
        seconds = ", ".join(f"{way} {median(spent):.2f} s" for way, spent in times.items())
        claims.append(Claim(name, ratio(times["plain"], times["quick start"]), at_least=BOUND, besides=seconds))
    kept = judged(f"{TASKS} Python tasks, 2 slots: plain / with quick start, median of {ROUNDS} rounds", claims)
    spark.stop()
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
