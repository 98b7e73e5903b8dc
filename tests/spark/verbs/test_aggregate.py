"""Aggregates equal Spark's; hot keys are split where that pays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless.spark.plans import explained
from tests.spark.frames import frame, middle, rows, skewed

# One group, so that all of these tests share a session: Spark takes long to start.
pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]


def test_aggregates_are_those_of_spark(spark: SparkSession) -> None:
    df = skewed(spark).withColumn("v", F.when(F.col("v") % 5 > 0, F.col("v")))
    ours = sl.group_by(df, "k").agg(
        n=sl.count(), m=sl.count("v"), s=sl.sum("v"), low=sl.min("v"), high=sl.max("v"), mean=sl.mean("v")
    )
    plain = df.groupBy("k").agg(F.count("*"), F.count("v"), F.sum("v"), F.min("v"), F.max("v"), F.avg("v"))
    assert rows(ours) == rows(plain)


def test_growing_aggregates_split_hot_keys_and_merge_them(spark: SparkSession) -> None:
    df = skewed(spark, exponent=2.0)
    ours = sl.group_by(df, "k", n_workers=6).agg(all=sl.collect_list("v"), n=sl.count())
    plain = df.groupBy("k").agg(F.collect_list("v").alias("all"), F.count("*").alias("n"))
    assert sl.explain(df, "k", operator="collect_list", n_workers=6).split >= 1
    assert "shufflepartitionidpassthrough" in explained(ours)
    in_order = [result.select("k", F.sort_array("all"), "n") for result in (ours, plain)]
    assert rows(in_order[0]) == rows(in_order[1])


def test_python_aggregates_split_hot_keys_only(spark: SparkSession) -> None:
    df = skewed(spark, exponent=1.5)
    ours = frame(sl.group_by(df, "k", n_workers=8).agg(middle())).set_index("k")
    plain = frame(df.groupBy("k").agg(F.avg(F.col("v") * F.col("v")).alias("mean"))).set_index("k")
    assert ours["mean"].to_dict() == pytest.approx(plain["mean"].to_dict())
    assert ours["merged"].sum() >= 1
    assert ours.loc["key 0", "merged"] == 1
    assert (ours["merged"] == 0).sum() > 30


def test_python_aggregates_fit_their_schemas_or_say_why_not(spark: SparkSession) -> None:
    df = spark.range(10).select((F.col("id") % 2).alias("k"), "id")

    def of(partial: Any) -> DataFrame:
        merged = sl.ArrowAggregate(partial, lambda states: states.slice(0, 1), lambda state: state, "n long", "n long")
        return sl.group_by(df, "k", n_workers=2).agg(merged)

    def small(some: pa.Table) -> pa.Table:
        of_key = some["k"][0].as_py()
        return pa.table({"n": pa.array([some.num_rows], pa.int8() if of_key else pa.int32())})

    assert rows(of(small)) == rows(df.groupBy("k").count())
    for partial, said in (
        (lambda _: None, "must return a pyarrow Table, not NoneType"),
        (lambda _: pa.table({"m": [1]}), "must have columns \\['n'\\], not \\['m'\\]"),
        (lambda _: pa.table({"n": ["many"]}), "many"),
    ):
        with pytest.raises(Exception, match=said):
            of(partial).collect()


def test_aggregates_may_have_the_name_of_a_column_that_routes(spark: SparkSession) -> None:
    df = skewed(spark, exponent=2.0)

    def count(some: pa.Table) -> pa.Table:
        return pa.table({"worker": [some.num_rows]})

    def add(states: pa.Table) -> pa.Table:
        return pa.table({"worker": [pc.sum(states["worker"]).as_py()]})

    in_arrow = sl.ArrowAggregate(count, add, lambda state: state, "worker long", "worker long")
    for partitioner in ("level", "kip"):  # splits keys, and does not
        grouped = sl.group_by(df, "k", n_workers=6, partitioner=partitioner)
        assert rows(grouped.agg(in_arrow)) == rows(df.groupBy("k").count())
        collected = grouped.agg(worker=sl.collect_list("v")).select("k", F.size("worker"))
        assert rows(collected) == rows(df.groupBy("k").count())
