"""One short test for each kind of verb and stream, which CI also runs on the oldest Spark that is supported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from tests.spark.changing import setting

pytestmark = [
    pytest.mark.smoke,
    pytest.mark.compiled,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("batch"),
]
SCHEMA = "k long, v long, ts timestamp"


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Returns rows of which half have key 0."""
    key = F.when(F.col("id") % 2 == 0, 0).otherwise(F.col("id") % 50)
    return spark.range(2000).select(key.alias("k"), F.col("id").alias("v"), F.timestamp_seconds("id").alias("ts"))


def equal(ours: DataFrame, plain: DataFrame) -> bool:
    return sorted(map(tuple, ours.collect())) == sorted(map(tuple, plain.collect()))


def test_grouped_functions_on_whole_keys(rows: DataFrame) -> None:
    def count(key: tuple[Any, ...], group: pa.Table) -> pa.Table:
        return pa.table({"k": [key[0].as_py()], "n": [group.num_rows]})

    ours = sl.group_by(rows, "k", n_workers=4).applyInArrow(count, "k long, n long")
    assert equal(ours, rows.groupBy("k").count())


def test_hot_keys_are_split_and_merged(rows: DataFrame) -> None:
    def total(part: pa.Table) -> pa.Table:
        return pa.table({"total": [pc.sum(part[part.column_names[-1]]).as_py()]})

    aggregate = sl.ArrowAggregate(total, total, total, "total long", "total long")
    assert sl.explain(rows, "k", operator="ArrowAggregate", n_workers=4).split >= 1
    ours = sl.group_by(rows.select("k", "v"), "k", n_workers=4).agg(aggregate)
    assert equal(ours, rows.groupBy("k").agg(F.sum("v")))


def test_joins_and_windows(rows: DataFrame) -> None:
    right = rows.where("v < 40").select("k", F.col("v").alias("w"))
    ours = sl.join(rows, right, "k", how="left", n_workers=4)
    assert equal(ours.groupBy("k").count(), rows.join(right, "k", "left").groupBy("k").count())
    numbered = sl.over(rows, "k", order_by="v", n_workers=4, n=F.row_number())
    assert equal(numbered.groupBy("k").agg(F.max("n")), rows.groupBy("k").agg(F.count("v").cast("int")))


def test_streams_of_windows_and_state(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    rows.write.parquet(str(tmp_path / "in"))
    events = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))

    def count(key: tuple[Any, ...], group: pa.Table, state: Any) -> pa.Table:
        n = group.num_rows + (state.get[0] if state.exists else 0)
        state.update((n,))
        return pa.table({"k": [key[0]], "n": [n]})

    jobs = {
        "windows": sl.stream(events, "k", time="ts", partitioner="level", n_workers=4)
        .window("100 seconds")
        .agg(n=sl.count(), mode="update"),
        "state": sl.stream(events, "k", n_workers=4).applyInArrowWithState(count, "k long, n long", "n long"),
    }
    for name, job in jobs.items():
        query = job.start(str(tmp_path / name), str(tmp_path / f"{name}-checkpoint"), available_now=True)
        query.awaitTermination()
        result = spark.read.parquet(str(tmp_path / name))
        assert equal(result.groupBy("k").agg(F.sum("n")), rows.groupBy("k").count())


def test_without_checksums_keys_are_not_split(spark: SparkSession, rows: DataFrame) -> None:
    with setting(spark, "spark.sql.shuffle.orderIndependentChecksum.enabled", "false"):
        with pytest.raises(ValueError, match="orderIndependentChecksum"):
            sl.group_by(rows, "k", partitioner="level", n_workers=4).agg(all=sl.collect_list("v"))
        whole = sl.group_by(rows, "k", n_workers=4).agg(all=sl.collect_list("v"))
        assert equal(whole.select("k", F.size("all")), rows.groupBy("k").count())
    assert sl.explain(rows, "k", operator="collect_list", n_workers=4).split >= 1
