"""Grouped functions see each key whole and once, as in Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from tests.spark.frames import KEYS, middle, rows, skewed

# One group, so that all of these tests share a session: Spark takes long to start.
pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]


@pytest.mark.parametrize("kind", KEYS)
def test_grouped_functions_see_each_key_of_any_type_whole_and_once(spark: SparkSession, kind: str) -> None:
    ddl, values = KEYS[kind]
    df = spark.createDataFrame([(value, n) for n, value in enumerate(values * 3)], f"k {ddl}, v int").repartition(3)

    def counted(table: pa.Table) -> pa.Table:
        return pa.table({"n": [table.num_rows], "s": [pc.sum(table["v"]).as_py()]})

    plain = df.groupBy("k").applyInArrow(counted, "n long, s long")
    assert rows(sl.group_by(df, "k").applyInArrow(counted, "n long, s long")) == rows(plain)


@pytest.mark.parametrize("takes_key", [False, True])
def test_apply_in_pandas_is_as_in_spark(spark: SparkSession, takes_key: bool) -> None:
    df = skewed(spark)

    def of_rows(some: Any) -> Any:
        return pd.DataFrame({"k": [some["k"].iloc[0]], "s": [some["v"].sum()], "c": [",".join(some.columns)]})

    def of_key(key: tuple[Any, ...], some: Any) -> Any:
        return of_rows(some).assign(k=key[0], c=str(len(key)))

    func, schema = of_key if takes_key else of_rows, "k string, s long, c string"
    assert rows(sl.group_by(df, "k").applyInPandas(func, schema)) == rows(df.groupBy("k").applyInPandas(func, schema))


def hinted() -> dict[str, Callable[..., Any]]:
    """Returns nested functions by name; Spark sends them by value."""

    def frames(groups: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in groups:
            yield frame.head(1)

    def keyed_frames(key: tuple[Any, ...], groups: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in groups:
            yield frame.assign(k=f"{key[0]} again")

    def batches(groups: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in groups:
            yield batch.slice(0, 1)

    def keyed_batches(key: tuple[Any, ...], groups: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in groups:
            yield batch.set_column(0, "k", pa.array([f"{key[0].as_py()} again"] * batch.num_rows))

    def frame(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(k=f"{key[0]} again")

    return {function.__name__: function for function in (frames, keyed_frames, batches, keyed_batches, frame)}


@pytest.mark.parametrize("name", hinted())
def test_grouped_functions_get_what_their_type_hints_say(spark: SparkSession, name: str) -> None:
    df, verb = skewed(spark).select("k", "v"), "applyInArrow" if "batches" in name else "applyInPandas"
    ours, plain = (
        getattr(groups, verb)(hinted()[name], df.schema).groupBy("k").count()
        for groups in (sl.group_by(df, "k", n_workers=3), df.groupBy("k"))
    )
    assert rows(ours) == rows(plain)


def test_tasks_of_grouped_functions_use_the_quick_start(spark: SparkSession) -> None:
    def started(rows: pd.DataFrame) -> pd.DataFrame:
        import gc

        return pd.DataFrame({"tasks": [getattr(gc, "tasks started by skewless", 0)]})

    found = sl.group_by(skewed(spark), "k", n_workers=3).applyInPandas(started, "tasks int").collect()
    assert all(row.tasks > 0 for row in found)


def test_cogroup_meets_equal_keys(spark: SparkSession) -> None:
    left, right = skewed(spark, 1500), skewed(spark, 800, 80, 0.5).select("k", F.col("v").alias("u"))

    def joined(key: tuple[Any, ...], one: Any, other: Any) -> Any:
        return pd.DataFrame({"k": [key[0]], "n": [len(one)], "m": [len(other)], "s": [other["u"].sum()]})

    schema = "k string, n long, m long, s long"
    plain = left.groupBy("k").cogroup(right.groupBy("k")).applyInPandas(joined, schema)
    assert rows(sl.group_by(left, "k").cogroup(sl.group_by(right, "k")).applyInPandas(joined, schema)) == rows(plain)


def test_empty_and_tiny_frames(spark: SparkSession) -> None:
    for n in (0, 1):
        df = skewed(spark).limit(n)
        assert rows(sl.repartition(df, "k")) == rows(df)
        assert len(rows(sl.group_by(df, "k").agg(n=sl.count()))) == n
        assert len(rows(sl.group_by(df, "k").agg(middle()))) == n
        assert sl.profile(df, "k").rows == n
        assert sl.explain(df, "k").chosen == "hash"
