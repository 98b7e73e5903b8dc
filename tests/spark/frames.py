"""Frames with skewed keys, and rows in a form that can be compared."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import streams

NAN = float("nan")
KEYS: dict[str, tuple[str, list[Any]]] = {
    "strings": ("string", ["", "a", "b", None, "ä", "a", "a"]),
    "longs": ("bigint", [0, 1, -1, 2**63 - 1, None, 1, 1]),
    "ints": ("int", [0, 1, -1, 2**31 - 1, None, 1, 1]),
    "doubles": ("double", [0.0, -0.0, NAN, NAN, 1.5, None, -0.0]),
    "decimals": ("decimal(20,2)", [Decimal("1.10"), Decimal("1.1"), None, Decimal("-5"), Decimal("1.10"), Decimal(0)]),
    "dates": ("date", [dt.date(2020, 1, 1), None, dt.date(1969, 12, 31), dt.date(2020, 1, 1)]),
    "times": ("timestamp", [dt.datetime(2020, 1, 1, 5), None, dt.datetime(2020, 1, 1, 5)]),
    "booleans": ("boolean", [True, False, None, True]),
    "binaries": ("binary", [b"", b"x", None, b"x"]),
    "structs": ("struct<a:int,b:string>", [(1, "x"), (1, None), None, (None, None), (1, "x")]),
    "arrays": ("array<double>", [[0.0], [-0.0], [], None, [1.0, NAN], [NAN, 1.0], [1.0, NAN]]),
    "maps": ("map<string,int>", [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {}, None, {"a": 2}]),
}


def canonical(value: Any) -> Any:
    """Returns a value in a form in which equal values compare equal, NaN too."""
    if isinstance(value, float):
        return "nan" if np.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return sorted((canonical(k), canonical(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return [canonical(each) for each in value]
    return value


def frame(df: DataFrame) -> Any:
    return df.toPandas()


def rows(df: DataFrame) -> list[str]:
    return sorted(repr([canonical(value) for value in row]) for row in df.collect())


def skewed(spark: SparkSession, n: int = 3000, keys: int = 50, exponent: float = 1.5) -> DataFrame:
    """Returns rows of which some keys are hot and one is NULL; the column `worker` is the user's own."""
    ranks = streams.zipf(n, keys, exponent).astype(np.int64)
    data = pd.DataFrame({"k": [None if rank == 3 else f"key {rank}" for rank in ranks], "v": np.arange(n)})
    return spark.createDataFrame(data, "k string, v long").withColumn("worker", F.col("v") % 3).repartition(4)


def middle() -> sl.ArrowAggregate:
    """Returns an aggregate of the mean of squares, whose state is their sum and count and whether it was merged."""

    def partial(table: pa.Table) -> pa.Table:
        return pa.table({"s": [pc.sum(pc.multiply(table["v"], table["v"])).as_py()], "n": [table.num_rows], "m": [0]})

    def merge(states: pa.Table) -> pa.Table:
        return pa.table({"s": [pc.sum(states["s"]).as_py()], "n": [pc.sum(states["n"]).as_py()], "m": [1]})

    def finish(state: pa.Table) -> pa.Table:
        return pa.table({"mean": pc.divide(pc.cast(state["s"], pa.float64()), state["n"]), "merged": state["m"]})

    return sl.ArrowAggregate(partial, merge, finish, "s long, n long, m long", "mean double, merged long")
