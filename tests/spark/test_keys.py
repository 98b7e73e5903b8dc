"""Every verb takes a key as PySpark's groupBy does: names, lists, Columns, nested fields, names in another case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless.spark.keys import hashed, keyed
from tests.spark.frames import KEYS, rows, skewed

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("spark")]

GIVEN: dict[str, Callable[[], list[Any]]] = {
    "name": lambda: ["k"],
    "list": lambda: [["k", "j"]],
    "other case": lambda: ["K"],
    "nested": lambda: ["s.a"],
    "column": lambda: [F.col("k")],
    "expression": lambda: [F.col("k") % 3, "j"],
}
WORKERS: list[dict[str, Any]] = [{}, {"n_workers": 3}]


@pytest.fixture
def df(spark: SparkSession) -> DataFrame:
    ids = spark.range(60)
    key, other = F.when(F.col("id") < 30, F.lit(0)).otherwise(F.col("id") % 7), F.col("id") % 2
    nested = F.struct((F.col("id") % 5).alias("a"), F.lit(1).alias("b"))
    return ids.select(key.alias("k"), other.alias("j"), nested.alias("s"), F.col("id").alias("v"))


@pytest.mark.parametrize("asked", WORKERS, ids=["default", "asked"])
@pytest.mark.parametrize("given", list(GIVEN))
def test_verbs_take_what_group_by_takes(df: DataFrame, given: str, asked: dict[str, Any]) -> None:
    keys = GIVEN[given]()
    plain = keys[0] if isinstance(keys[0], list) else keys
    columns = df.columns

    def counted(key: tuple[pa.Scalar, ...], table: pa.Table) -> pa.Table:
        assert table.column_names == columns, table.column_names
        return pa.table({"key": [str([part.as_py() for part in key])], "n": [table.num_rows]})

    schema = "key string, n long"
    again = sl.repartition(df, *keys, **asked)
    assert again.columns == columns
    assert rows(again) == rows(df)
    ranked = sl.over(df, *keys, order_by="v", rank=F.row_number(), **asked)
    expected = df.withColumn("rank", F.row_number().over(Window.partitionBy(*plain).orderBy("v")))
    assert ranked.columns == expected.columns
    assert rows(ranked) == rows(expected)
    groups, plain_groups = sl.group_by(df, *keys, **asked), df.groupBy(*plain)
    assert rows(groups.applyInArrow(counted, schema)) == rows(plain_groups.applyInArrow(counted, schema))
    totals = groups.agg(n=sl.count(), all=sl.collect_list("v"))
    sums = plain_groups.agg(F.count(F.lit(1)).alias("n"), F.collect_list("v").alias("all"))
    assert totals.columns == sums.columns
    in_order = F.sort_array("all")
    assert rows(totals.withColumn("all", in_order)) == rows(sums.withColumn("all", in_order))
    assert sl.profile(df, *keys).rows == 60
    watched = sl.watch(df, *keys)
    assert watched.rows.columns == columns
    assert rows(watched.rows) == rows(df)
    assert watched.profile().distinct == plain_groups.count().count()
    assert sl.explain(df, *keys, **asked).hot


@pytest.mark.parametrize("given", list(GIVEN))
def test_streams_take_what_group_by_takes(df: DataFrame, given: str, tmp_path: Path) -> None:
    df.limit(0).write.parquet(str(tmp_path / "in"))
    events = df.sparkSession.readStream.schema(df.schema).parquet(str(tmp_path / "in"))
    keys = GIVEN[given]()
    plain = df.groupBy(*(keys[0] if isinstance(keys[0], list) else keys)).count()
    assert [*sl.stream(events, *keys).rows.key.shown, "count"] == plain.columns


def test_joins_take_names_in_lists_and_in_another_case(df: DataFrame) -> None:
    other = df.select(F.col("k").alias("K"), F.col("v").alias("w"))
    for on in ("k", ["K"]):
        plain = df.join(other, on)
        ours = sl.join(df, other, on, n_workers=3)
        assert [name.lower() for name in ours.columns] == [name.lower() for name in plain.columns]
        assert rows(ours.select("v", "w")) == rows(plain.select("v", "w"))


def test_what_cannot_be_a_key_is_refused(df: DataFrame) -> None:
    with pytest.raises(ValueError, match=r"there is no column 'z', 'y.z'; there are k, j, s"):
        keyed(df, ["z", "y.z"])
    with pytest.raises(ValueError, match=r"Spark cannot group by s.z"):
        keyed(df, ["s.z"])
    with pytest.raises(TypeError, match="the name of a column, a Column, or a list of these, not 3"):
        keyed(df, [3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="a join takes names of columns"):
        sl.join(df, df, "s.a")


@pytest.mark.parametrize("kind", KEYS)
def test_keys_that_spark_groups_together_have_one_hash(spark: SparkSession, kind: str) -> None:
    ddl, values = KEYS[kind]
    df = spark.createDataFrame([(value,) for value in values], f"k {ddl}")
    hashes = df.groupBy("k").agg(F.collect_set(hashed(df, ["k"])).alias("h")).collect()
    assert all(len(row["h"]) == 1 for row in hashes)


def test_several_key_columns_with_odd_names(spark: SparkSession) -> None:
    df = skewed(spark).withColumn("a b-c", F.col("v") % 2).withColumnRenamed("k", "Key")

    def counted(table: pa.Table) -> pa.Table:
        return pa.table({"n": [table.num_rows]})

    plain = df.groupBy("Key", F.col("`a b-c`")).applyInArrow(counted, "n long")
    assert rows(sl.group_by(df, "Key", "a b-c").applyInArrow(counted, "n long")) == rows(plain)


def test_names_with_dots_are_columns_not_fields(spark: SparkSession) -> None:
    df = skewed(spark).withColumnRenamed("k", "a.b")
    assert rows(sl.repartition(df, "a.b")) == rows(df)
    assert rows(sl.group_by(df, "a.b").agg(n=sl.count())) == rows(df.groupBy("`a.b`").count())
