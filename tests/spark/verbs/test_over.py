"""Window functions on balanced keys equal Spark's."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

import skewless.spark as sl
from tests.spark.frames import rows, skewed

# One group, so that all of these tests share a session: Spark takes long to start.
pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]


def test_window_functions(spark: SparkSession) -> None:
    df = skewed(spark)
    plain = df.withColumn("rn", F.row_number().over(Window.partitionBy("k").orderBy("v")))
    assert rows(sl.over(df, "k", order_by="v", rn=F.row_number())) == rows(plain)
    every = Window.partitionBy("k")
    assert rows(sl.over(df, "k", total=F.sum("v"))) == rows(df.withColumn("total", F.sum("v").over(every)))
    own = df.withColumn("v", F.sum("v").over(every)).withColumn("Worker", F.count("k").over(every))
    for n_workers in (None, 4):  # two names of the rows, one of them the name that our own column would have
        found = sl.over(df, "k", v=F.sum("v"), Worker=F.count("k"), n_workers=n_workers)
        assert (found.columns, rows(found)) == (own.columns, rows(own))
