"""Spark's plan is read without printing it, and the number of task slots is asked once per session."""

from __future__ import annotations

import sys
from math import inf, isinf
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless.spark import plans
from skewless.spark.decision import decide
from skewless.spark.keys import keyed
from skewless.spark.plans import Session, explained, parallelism, reads, task_slots
from skewless.spark.request import Request
from tests.spark.frames import skewed

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]


def test_reading_a_plan_does_not_take_what_other_threads_print(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    df, begun, ended, lines = spark.range(10), Event(), Event(), 0

    def print_lines() -> None:
        nonlocal lines
        while not ended.is_set():
            print("a line of the user's")
            lines += 1
            begun.set()

    printing = Thread(target=print_lines)
    printing.start()
    try:
        begun.wait()
        texts = [explained(df) for _ in range(20)]
    finally:
        ended.set()
        printing.join()
    sys.stdout.flush()
    assert all("Range" in text for text in texts)
    assert capsys.readouterr().out.count("a line of the user's") == lines


def test_task_slots_are_asked_once_per_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert task_slots(spark) == 2

    def ask_again(*_: object) -> str:
        raise AssertionError("Spark was asked again")

    monkeypatch.setattr(plans, "explained", ask_again)
    assert task_slots(spark) == 2


def test_every_python_object_of_a_session_shares_what_is_cached(spark: SparkSession) -> None:
    """`foreachBatch` makes a new object in each batch."""
    if hasattr(type(spark), "session_id"):
        pytest.skip("over Connect there is one object")
    other = SparkSession(spark.sparkContext, spark._jsparkSession)
    assert other != spark
    assert Session.of(other) == Session.of(spark) != Session.of(spark.newSession())


def test_rows_and_bytes_are_estimated_before_they_are_read(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 100_000, 1, 2).select("id", F.concat(F.lit("key "), F.col("id") % 40).alias("k"))
    assert reads(df)[:3] == pytest.approx((800_000, 100_000, 100_000), rel=0.01)
    many = reads(df.select(F.explode(F.sequence(F.lit(1), "id"))))
    assert isinf(many.most)
    assert many.grows
    assert not reads(df.where("id > 3").groupBy("k").count()).grows
    df.write.parquet(f"{tmp_path}/rows")
    there = spark.read.parquet(f"{tmp_path}/rows")
    size = sum(path.stat().st_size for path in (tmp_path / "rows").glob("*.parquet"))
    assert reads(there.where("k = 'key 1'")).bytes == pytest.approx(size, rel=0.1)
    assert 1e4 < reads(there).rows < 1e6  # not known to Spark, but likely
    cached = there.cache()
    try:
        cached.count()
        assert reads(cached.groupBy("k").count()).rows == pytest.approx(100_000, rel=0.01)
        assert reads(cached).bytes > 100_000
        assert reads(cached.where("k = 'key 1'").union(cached)).most == 200_000
        assert isinf(reads(there.where("true").groupBy("k").count()).most)
        assert isinf(reads(cached.join(df, "id")).most)
        assert reads(cached.join(df, "id")).rows == pytest.approx(200_000, rel=0.01)
    finally:
        cached.unpersist()


def test_workers_by_default(spark: SparkSession) -> None:
    """Two task slots, seven shuffle partitions."""
    assert [parallelism(spark, size) for size in (0, 2**26, 2**26 + 1, 2**40, inf)] == [2, 2, 3, 7, 7]
    df = skewed(spark)
    assert sl.repartition(df, "k", partitioner="level").select(F.spark_partition_id()).distinct().count() == 2
    assert sl.explain(df, "k").n_workers == 2
    many = df.select(F.explode(F.array_repeat("k", 2000)).alias("k"))
    decision = decide(Request("applyInPandas", (keyed(many, ["k"]),), "level"))
    assert decision.inputs.rows == (many.count(),)  # Spark cannot estimate what `explode` returns: it is counted
    assert decision.n_workers == parallelism(spark, 12 * many.count()) == 3
    tiny = df.join(df.select("k").distinct(), "k")
    assert "so little data" in sl.explain(tiny, "k").reason
    assert decide(Request("applyInPandas", (keyed(tiny, ["k"]),))).profiles == ()
