"""Partitioners that users write are treated like ours, by every verb and both kinds of streams."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import Partitioner
from skewless.testing import check_partitioner
from tests.fixtures import jobs
from tests.spark.own import Emptiest, FirstSeen, HeaviestFirst

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("spark")]
WHOLE = [HeaviestFirst, FirstSeen]
ALL = [*WHOLE, Emptiest]
N = 4
Own = type[Partitioner[Any, Any]]


def rows_of(df: DataFrame) -> Counter[Any]:
    return Counter(tuple(tuple(sorted(v)) if isinstance(v, list) else v for v in row) for row in df.collect())


def events(spark: SparkSession) -> DataFrame:
    return jobs.all_rows(spark, jobs.EVENTS, 600)


def others(spark: SparkSession) -> DataFrame:
    return jobs.all_rows(spark, jobs.OTHERS, 60).drop("at")


@pytest.mark.parametrize("own", ALL)
def test_own_partitioners_keep_the_laws(own: Own) -> None:
    check_partitioner(own)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("own", WHOLE)
def test_verbs_on_whole_keys(spark: SparkSession, own: Own, exact: bool) -> None:
    df, plain = events(spark), events(spark)

    def by() -> Any:
        return sl.Exact(own(N)) if exact else own(N)

    def in_pandas(rows: Any) -> Any:
        return rows.groupby("k", as_index=False).agg(n=("v", "count"), s=("v", "sum"))

    def in_arrow(rows: pa.Table) -> pa.Table:
        return pa.table({"k": [rows["k"][0].as_py()], "n": [rows.num_rows], "s": [pc.sum(rows["v"]).as_py()]})

    sums = rows_of(plain.groupBy("k").agg(F.count("v"), F.sum("v")))
    schema = "k string, n long, s long"
    placed = sl.repartition(df, "k", partitioner=by())
    assert rows_of(placed) == rows_of(plain)
    workers = placed.select("k", F.spark_partition_id().alias("worker")).distinct()
    assert workers.count() == plain.select("k").distinct().count()
    assert rows_of(sl.group_by(df, "k", partitioner=by()).applyInPandas(in_pandas, schema)) == sums
    assert rows_of(sl.group_by(df, "k", partitioner=by()).applyInArrow(in_arrow, schema)) == sums
    numbered = sl.over(df, "k", order_by="v", partitioner=by(), so_far=F.sum("v"))
    assert rows_of(numbered.groupBy("k").agg(F.count("v"), F.max("so_far"))) == sums


def test_cogroups_by_a_planner(spark: SparkSession) -> None:
    def both(left: Any, right: Any) -> Any:
        import pandas as pd

        key = [*left["k"], *right["k"]][0]
        return pd.DataFrame({"k": [key], "left": [len(left)], "right": [len(right)]})

    df, other = events(spark), others(spark)
    by = HeaviestFirst(N)
    pairs = sl.group_by(df, "k", partitioner=by).cogroup(sl.group_by(other, "k", partitioner=by))
    ours = pairs.applyInPandas(both, "k string, left long, right long")
    plain = df.groupBy("k").cogroup(other.groupBy("k")).applyInPandas(both, "k string, left long, right long")
    assert rows_of(ours) == rows_of(plain)


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize("own", ALL)
def test_joins(spark: SparkSession, own: Own, how: str) -> None:
    df, other = events(spark), others(spark)
    assert rows_of(sl.join(df, other, "k", how=how, partitioner=own(N))) == rows_of(df.join(other, "k", how))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("own", ALL)
def test_aggregates(spark: SparkSession, own: Own, exact: bool) -> None:
    df = events(spark)
    by = sl.Exact(own(N)) if exact else own(N)
    ours = sl.group_by(df, "k", partitioner=by).agg(jobs.counts_and_largest())
    assert rows_of(ours) == rows_of(df.groupBy("k").agg(F.count("v"), F.max("v")))
    collected = sl.group_by(df, "k", partitioner=by).agg(vs=sl.collect_list("v"))
    assert rows_of(collected) == rows_of(df.groupBy("k").agg(F.collect_list("v")))


BATCHES = 2  # the second one follows what was learned from the first


def run(job: Any, directory: Path) -> str:
    for _ in range(BATCHES):
        query = job.start(str(directory / "out"), str(directory / "checkpoint"), available_now=True)
        assert query.awaitTermination(300)
    return str(directory / "out")


@pytest.mark.parametrize(
    ("spark", "own", "exact"),
    [
        ("classic", HeaviestFirst, False),
        ("classic", FirstSeen, True),
        ("classic", Emptiest, False),
        ("connect", HeaviestFirst, True),
    ],
    indirect=["spark"],
)
def test_windows_of_a_stream(spark: SparkSession, own: Own, exact: bool, tmp_path: Path) -> None:
    by = sl.Exact(own(N)) if exact else own(N)
    stream = sl.stream(jobs.source(spark, jobs.EVENTS), "k", time="ts", partitioner=by)
    out = run(stream.window("10 seconds").agg(jobs.counts_and_largest()), tmp_path)
    expected = jobs.in_windows(spark, BATCHES * jobs.ROWS, "10 seconds", None, n=F.count("v"), largest=F.max("v"))
    assert rows_of(spark.read.parquet(out).select(expected.columns)) == rows_of(expected)


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
@pytest.mark.parametrize("own", WHOLE)
def test_keyed_state_of_a_stream(spark: SparkSession, own: Own, tmp_path: Path) -> None:
    def add(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
        n, total = state.get if state.exists else (0, 0)
        state.update((n + rows.num_rows, total + pc.sum(rows["v"]).as_py()))
        return pa.table({"k": [key[0]], "n": [state.get[0]], "s": [state.get[1]]})

    stream = sl.stream(jobs.source(spark, jobs.EVENTS), "k", partitioner=own(N))
    out = run(stream.applyInArrowWithState(add, "k string, n long, s long", "n long, s long"), tmp_path)
    assert rows_of(spark.read.parquet(out).select("k", "n", "s")) == rows_of(jobs.of_state(spark, BATCHES))


def test_keyed_state_refuses_one_that_splits_keys(spark: SparkSession, tmp_path: Path) -> None:
    stream = sl.stream(jobs.source(spark, jobs.EVENTS), "k", partitioner=Emptiest(N))
    job = stream.applyInArrowWithState(lambda _key, rows, _state: rows, "k string", "n long")
    with pytest.raises(ValueError, match="emptiest"):
        job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), available_now=True)
