"""Joins of two streams are checked before they run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless.spark.streaming.interval_join import Intervals
from tests.spark.batches import batch_of, read, write
from tests.spark.changing import setting
from tests.spark.streaming.test_interval_join import sides
from tests.spark.test_checksums import CHECKSUM

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


def test_joins_of_streams_refuse_what_they_cannot_do(spark: SparkSession, tmp_path: Path) -> None:
    events = read(spark, write(tmp_path / "in", [batch_of(10, 0)]))
    left, right = sides(spark, events, events)
    one, two = sl.stream(left, "k", time="ts"), sl.stream(right, "k", time="at")
    with pytest.raises(ValueError, match="both streams have columns ts, v: rename"):
        one.join(sl.stream(left, "k", time="ts"), "0 seconds", "1 second")
    with pytest.raises(ValueError, match="both streams need the time"):
        one.join(sl.stream(right, "k"), "0 seconds", "1 second")
    with pytest.raises(ValueError, match="earliest is at most latest"):
        one.join(two, "1 second", "-1 second")
    with pytest.raises(ValueError, match="leave the partitioner out"):
        sl.stream(left, "k", time="ts", partitioner="pkg").join(two, "0 seconds", "1 second")
    with pytest.raises(ValueError, match="give n_workers to the left stream: the right one has 3, not None"):
        one.join(sl.stream(right, "k", time="at", n_workers=3), "0 seconds", "1 second")
    wrong: Any = "a stream"
    with pytest.raises(ValueError, match=r"another .*not str"):
        one.join(wrong, "0 seconds", "1 second")


def test_the_bounds_and_workers_of_a_join_are_resolved(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, *[read(spark, write(tmp_path / "in", [batch_of(10, 0)]))] * 2)
    one, two = sl.stream(left, "k", time="ts", n_workers=3), sl.stream(right, "k", time="at")
    job = one.join(two, "-1 minute", "2 seconds")
    assert isinstance(job.operator, Intervals)
    assert (job.operator.least, job.operator.most, job.operator.n_workers) == (-60_000_000, 2_000_000, 3)
    assert job.split


def test_keys_in_another_case_are_joined_and_other_keys_refused(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, *[read(spark, write(tmp_path / "in", [batch_of(40, 0)]))] * 2)
    one, two = sl.stream(left, "k", time="ts"), sl.stream(right.withColumnRenamed("k", "K"), "K", time="at")
    out = str(tmp_path / "out")
    one.join(two, "0 seconds", "1 hour").start(out, str(tmp_path / "c"), available_now=True).awaitTermination(300)
    result = spark.read.parquet(out)
    assert result.columns == ["k", "v", "ts", "w", "at", "batch_id"]
    assert result.count() > 40
    for key, other, problem in (
        ("v", "K", "the same key, not struct<v:bigint> and struct<K:string>"),
        (F.upper("k"), "K", "the same key"),
    ):
        with pytest.raises(ValueError, match=problem):
            sl.stream(left, key, time="ts").join(sl.stream(two.rows.df, other, time="at"), "0 seconds", "1 second")


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_without_checksums_a_join_of_streams_spreads_no_keys(spark: SparkSession, tmp_path: Path) -> None:
    left, right = sides(spark, *[read(spark, write(tmp_path / "in", [batch_of(400, 0)]))] * 2)
    one, two = sl.stream(left, "k", time="ts", n_workers=4), sl.stream(right, "k", time="at")
    decisions = []
    for value in ("true", "false"):
        with setting(spark, CHECKSUM, value):
            job = one.join(two, "0 seconds", "1 hour")
            query = job.start(str(tmp_path / f"out {value}"), str(tmp_path / f"c {value}"), available_now=True)
            assert query.awaitTermination(300)
            decisions += [record["decision"] for record in query.recent()]
    assert decisions[0].endswith("hot keys on grids")
    assert decisions[1].startswith(f"left to Spark: spreading the rows of hot keys in a join needs {CHECKSUM}")
    with_grids, without = (spark.read.parquet(str(tmp_path / f"out {value}")).collect() for value in ("true", "false"))
    assert Counter(map(tuple, with_grids)) == Counter(map(tuple, without))
