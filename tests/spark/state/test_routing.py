"""Rows of a stateful batch come to the tasks of their keys, sorted by key, without those that are late."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from skewless import RoutingTable
from skewless.spark.state.routing import LateRows, RoutedRows
from skewless.spark.streaming.rows import EventTime, StreamKey
from tests.spark.frames import frame

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


def test_rows_are_sorted_by_key_in_the_task_of_their_worker(spark: SparkSession) -> None:
    """A task has the workers with its number, and those that are a multiple of the number of tasks above it."""
    table, tasks = RoutingTable.hashed(5), 2
    df = spark.range(300).select((F.col("id") % 37).alias("k"), F.col("id").alias("v"))
    routed = RoutedRows.of(df, table, tasks, StreamKey.plain("k"), LateRows(None))
    rows = frame(routed.rows.select("*", F.spark_partition_id().alias("task"), F.xxhash64("k").alias("hash")))
    blank = rows[routed.position].isna()
    assert sorted(rows["task"][blank]) == [0, 1]  # one row for each task, so that keys time out there
    found = rows[~blank]
    assert sorted(found["v"]) == list(range(300))
    workers = table.route(found["hash"].to_numpy(np.int64).view(np.uint64))
    assert (found["task"] == workers % tasks).all()
    assert all(part[routed.position].is_monotonic_increasing for _, part in found.groupby("task"))
    assert found.groupby(routed.position)["k"].nunique().eq(1).all()


def test_late_rows_are_dropped_and_counted(spark: SparkSession) -> None:
    begin = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    data = [("k", begin + dt.timedelta(seconds=second)) for second in range(10)] + [("k", None)]
    df = spark.createDataFrame(data, "k string, t timestamp")
    until = int((begin + dt.timedelta(seconds=3)).timestamp() * 1e6)
    late = LateRows(EventTime("t", 0), until)
    routed = RoutedRows.of(df, RoutingTable.hashed(2), 2, StreamKey.plain("k"), late)
    times = [row.t for row in routed.rows.where(F.col(routed.position).isNotNull()).collect()]
    assert sorted(time.second for time in times if time) == [4, 5, 6, 7, 8, 9]
    assert None in times
    assert routed.facts() == {"late": 4, "latest": until + 6_000_000}


def test_tables_that_split_keys_are_refused(spark: SparkSession) -> None:
    table = RoutingTable.hashed(2).with_hot_keys(
        np.array([7], np.uint64), np.array([0, 2]), np.array([0, 1]), np.ones(2)
    )
    with pytest.raises(ValueError, match="splits keys"):
        RoutedRows.of(spark.range(1), table, 2, StreamKey.plain("id"), LateRows(None))
