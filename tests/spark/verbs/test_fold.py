"""Aggregates in steps give what Spark gives at once: partial states, merged in any groups, then results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless.spark.verbs.fold import Fold, InArrow, InColumns, fold_of
from tests.spark.frames import rows

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]


def in_columns() -> Fold:
    return fold_of(("k",), (), {"n": sl.count("v"), "s": sl.sum("v"), "m": sl.mean("v"), "top": sl.max("v")})


def in_arrow() -> Fold:
    """Returns an aggregate of the rows and the sum of values; its steps are nested functions, sent by value."""

    def partial(some: pa.Table) -> pa.Table:
        return pa.table({"n": [some.num_rows], "s": pa.array([pc.sum(some["v"]).as_py()], pa.int64())})

    def merge(states: pa.Table) -> pa.Table:
        return pa.table({name: pa.array([pc.sum(states[name]).as_py()], pa.int64()) for name in states.column_names})

    return fold_of(("k",), (sl.ArrowAggregate(partial, merge, lambda state: state, *["n long, s long"] * 2),), {})


def plain(df: DataFrame, fold: Fold) -> DataFrame:
    if isinstance(fold, InArrow):
        return df.groupBy("k").agg(F.count("*"), F.sum("v"))
    return df.groupBy("k").agg(F.count("v"), F.sum("v"), F.avg("v"), F.max("v"))


def numbers(spark: SparkSession) -> DataFrame:
    value = F.when(F.col("id") % 7 > 0, F.col("id"))
    return spark.range(200).select((F.col("id") % 5).alias("k"), value.alias("v"), (F.col("id") % 3).alias("part"))


@pytest.mark.parametrize("made", [in_columns, in_arrow])
def test_steps_give_what_spark_gives_at_once(spark: SparkSession, made: Callable[[], Fold]) -> None:
    df, fold = numbers(spark), made()
    schema = fold.schema(df)
    states = fold.partial(df, ["part", "k"], ["part"])
    assert states.columns == ["part", "k", *schema.names]
    once = fold.merged(states.drop("part"), ["k"], schema)
    assert once.count() == 5
    expected = rows(plain(df, fold))
    for result in (
        fold.concluded(states.drop("part"), ["k"], schema),
        fold.concluded(once, ["k"], schema),
        fold.direct(df, ["k"], ["part"]),
    ):
        assert result.columns == ["k", *fold.output(df).names]
        assert rows(result) == expected


def test_states_are_subtracted_and_groups_without_rows_are_gone(spark: SparkSession) -> None:
    df = numbers(spark)
    fold = fold_of(("k",), (), {"n": sl.count("v"), "s": sl.sum("v")})
    assert fold.invertible(fold.schema(df))
    counted = fold.counted()
    schema = counted.schema(df)
    gone = (F.col("k") == 2) | (F.col("part") == 1)
    everything, taken = counted.partial(df, ["k"]), counted.inverse(counted.partial(df.where(gone), ["k"]))
    left = counted.present(counted.merged(everything.union(taken), ["k"], schema))
    expected = df.where(~gone).groupBy("k").agg(F.count("v"), F.sum("v"))
    assert rows(counted.concluded(left, ["k"], schema)) == rows(expected)


def test_folds_that_cannot_be_subtracted_say_so(spark: SparkSession) -> None:
    df = numbers(spark)
    largest, halves = InColumns({"top": sl.max("v")}), InColumns({"s": sl.sum("half")})
    assert not largest.invertible(largest.schema(df))
    assert not halves.invertible(halves.schema(df.withColumn("half", F.col("v") / 2)))
    arrow = in_arrow()
    assert not arrow.invertible(arrow.schema(df))
    assert arrow.counted() is arrow
    with pytest.raises(TypeError, match="has no inverse"):
        arrow.inverse(df)


def test_bad_aggregates_are_refused(spark: SparkSession) -> None:
    arrow = in_arrow()
    assert isinstance(arrow, InArrow)
    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((arrow.aggregate, arrow.aggregate), {}, "one ArrowAggregate and nothing else"),
        ((arrow.aggregate,), {"n": None}, "one ArrowAggregate and nothing else"),
        (("count",), {}, "agg takes an sl.ArrowAggregate or names"),
    ]
    for in_python, named, sentence in refused:
        with pytest.raises(ValueError, match=sentence):
            fold_of(("k",), in_python, named)
    with pytest.raises(ValueError, match="n is a column of the key already"):
        fold_of(("n",), (arrow.aggregate,), {})


def test_folds_are_told_apart_by_their_steps(spark: SparkSession) -> None:
    assert "in_arrow.<locals>.partial and in_arrow.<locals>.merge to struct<n:bigint,s:bigint>" in in_arrow().describe()
