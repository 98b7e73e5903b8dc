"""Repartitioning keeps rows and keys whole, and balances them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import RoutingTable
from tests.spark.frames import frame, rows, skewed

# One group, so that all of these tests share a session: Spark takes long to start.
pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]


def test_repartition_keeps_rows_and_keys_and_balances(spark: SparkSession) -> None:
    df = skewed(spark, 20_000, 500, 0.9)
    balanced = sl.repartition(df, "k", n_workers=8)
    assert balanced.columns == df.columns
    assert rows(balanced) == rows(df)
    where = balanced.select("k", F.spark_partition_id().alias("p")).distinct().collect()
    assert len(where) == df.select("k").distinct().count()
    sizes = frame(balanced.groupBy(F.spark_partition_id()).count())["count"]
    assert len(sizes) == 8
    largest = df.groupBy("k").count().agg(F.max("count")).first()
    assert largest is not None
    assert sizes.max() <= 1.05 * max(sizes.mean(), largest[0])


def test_a_given_table_and_a_new_column(spark: SparkSession) -> None:
    df = skewed(spark)
    table = RoutingTable.hashed(3)
    data = sl.repartition(df, "k", partitioner=table, into="w").select("w", F.spark_partition_id()).distinct().collect()
    assert {tuple(row) for row in data} == {(0, 0), (1, 1), (2, 2)}
