"""Joins of two streams are checked before they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import skewless.spark as sl
from skewless.spark.streaming.interval_join import Intervals
from tests.spark.batches import batch_of, read, write
from tests.spark.streaming.test_interval_join import sides

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("state")]


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
