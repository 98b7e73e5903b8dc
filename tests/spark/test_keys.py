"""Every verb takes a key as PySpark's groupBy does: names, lists, Columns, nested fields, names in another case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless.spark.keys import hashed, keyed
from skewless.spark.plans import explained
from tests.spark.frames import KEYS, middle, rows, skewed

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]

GIVEN: dict[str, Callable[[], list[Any]]] = {
    "name": lambda: ["k"],
    "list": lambda: [["k", "j"]],
    "other case": lambda: ["K"],
    "nested": lambda: ["s.a"],
    "column": lambda: [F.col("k")],
    "all in a list": lambda: [["S.a", "J", F.col("k")]],
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
def test_functions_in_pandas_and_cogroups_take_what_group_by_takes(df: DataFrame, given: str) -> None:
    keys = GIVEN[given]()
    plain = keys[0] if isinstance(keys[0], list) else keys
    columns = df.columns
    other = df.where("v % 4 = 0")

    def counted(key: tuple[Any, ...], frame: Any) -> Any:
        import pandas as pd

        assert list(frame.columns) == columns, list(frame.columns)
        return pd.DataFrame({"key": [str(tuple(map(int, key)))], "n": [len(frame)], "v": [frame["v"].sum()]})

    def both(key: tuple[pa.Scalar, ...], left: pa.Table, right: pa.Table) -> pa.Table:
        assert left.column_names == right.column_names == columns
        return pa.table(
            {"key": [str([part.as_py() for part in key])], "left": [left.num_rows], "right": [right.num_rows]}
        )

    groups, others = sl.group_by(df, *keys, n_workers=3), sl.group_by(other, *keys)
    plain_groups, plain_others = df.groupBy(*plain), other.groupBy(*plain)
    schema = "key string, n long, v long"
    in_pandas = groups.applyInPandas(counted, schema)
    assert "shufflepartitionidpassthrough" in explained(in_pandas)
    assert rows(in_pandas) == rows(plain_groups.applyInPandas(counted, schema))
    schema = "key string, left long, right long"
    pairs = groups.cogroup(others).applyInArrow(both, schema)
    assert "shufflepartitionidpassthrough" in explained(pairs)
    assert rows(pairs) == rows(plain_groups.cogroup(plain_others).applyInArrow(both, schema))
    means = groups.agg(middle())
    squares = plain_groups.agg(F.avg(F.col("v") * F.col("v")).alias("mean"))
    assert means.columns == [*squares.columns, "merged"]
    assert rows(means.drop("merged")) == rows(squares)
    sizes = Counter({tuple(row)[:-1]: row["count"] for row in plain_groups.count().collect()})
    for operator, more in (("repartition", None), ("ArrowAggregate", None), ("cogroup", other)):
        said = sl.explain(df, *keys, operator=operator, other=more, n_workers=3)  # type: ignore[arg-type]
        if more is None:
            assert dict(said.hot).items() <= sizes.items()
        assert {key for key, _ in said.hot} <= sizes.keys()
        assert len(said.hot) == min(5, len(sizes))


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
@pytest.mark.parametrize("given", list(GIVEN))
def test_streams_take_what_group_by_takes(df: DataFrame, given: str, tmp_path: Path) -> None:
    df.coalesce(1).write.parquet(str(tmp_path / "in"))
    events = df.sparkSession.readStream.schema(df.schema).parquet(str(tmp_path / "in"))
    keys, columns, found = GIVEN[given](), df.columns, list[Any]()
    plain = df.groupBy(*(keys[0] if isinstance(keys[0], list) else keys)).count()

    def counted(key: tuple[Any, ...], table: pa.Table, _: Any) -> pa.Table:
        assert table.column_names == columns, table.column_names
        return pa.table({"key": [list(key)], "n": [table.num_rows]})

    stream = sl.stream(events, *keys, n_workers=2)
    assert [*stream.rows.key.shown, "count"] == plain.columns
    job = stream.applyInArrowWithState(counted, "key array<long>, n long", "n long")
    query = job.start(lambda batch, _: found.extend(batch.collect()), str(tmp_path / "checkpoint"), available_now=True)
    assert query.awaitTermination(300)
    assert {(*row["key"], row["n"]) for row in found} == {tuple(row) for row in plain.collect()}
    assert len(found) == plain.count()


@pytest.mark.parametrize("on", ["k", "K", ["K"], ["K", "j"], ["J", "k"]], ids=str)
def test_joins_take_names_in_lists_and_in_another_case(df: DataFrame, on: Any) -> None:
    other = df.select(F.col("k").alias("K"), "j", F.col("v").alias("w")).where("w % 3 = 0")
    names = on if isinstance(on, list) else [on]
    plain = df.join(other, on)
    ours = sl.join(df, other, on, n_workers=3, partitioner="level")
    assert "shufflepartitionidpassthrough" in explained(ours)
    assert [name.lower() for name in ours.columns] == [name.lower() for name in plain.columns]
    columns = ["k", "j", "s", "v", "w"] if "j" in [name.lower() for name in names] else ["k", "s", "v", "w"]
    assert rows(ours.select(*columns)) == rows(plain.select(*columns))
    said = sl.explain(df, *names, operator="join", other=other, n_workers=3, partitioner="level")
    assert said.decision.partitioner == "level"
    pairs = df.join(other, names).groupBy(*names).count()
    assert {key for key, _ in said.hot} >= {tuple(row)[:-1] for row in pairs.orderBy(F.desc("count")).head(1)}


def test_what_cannot_be_a_key_is_refused(df: DataFrame) -> None:
    with pytest.raises(ValueError, match=r"there is no column 'z', 'y.z'; there are k, j, s"):
        keyed(df, ["z", "y.z"])
    with pytest.raises(ValueError, match=r"Spark cannot group by s.z"):
        keyed(df, ["s.z"])
    with pytest.raises(TypeError, match="the name of a column, a Column, or a list of these, not 3"):
        keyed(df, [3])  # type: ignore[list-item]
    for nested in ("s.a", F.col("k")):
        with pytest.raises(ValueError, match="a join takes names of columns"):
            sl.join(df, df, nested)  # type: ignore[arg-type]


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


def test_names_in_backticks_and_with_aliases_are_those_of_spark(spark: SparkSession) -> None:
    df = skewed(spark).withColumnRenamed("k", "a.b").withColumn("c`d", F.col("v") % 3).alias("t")
    for key in ("`a.b`", "t.v", "`c``d`", "t.`c``d`"):
        plain = df.groupBy(key).count()
        ours = sl.group_by(df, key, n_workers=3).agg(count=sl.count())
        assert ours.columns == plain.columns
        assert rows(ours) == rows(plain)
        assert rows(sl.repartition(df, key, n_workers=3)) == rows(df)
