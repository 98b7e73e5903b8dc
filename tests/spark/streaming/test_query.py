"""A query owns its lock and threads, and releases them however it ends."""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import RoutingTable
from skewless.spark.streaming.checkpoint import Checkpoint
from tests.spark.batches import BATCHES, expected, output_of, read, run_to_end, write

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("skewless-")]


def counts(spark: SparkSession, source: Path, batches: int) -> Any:
    """Returns a job that has a learner, whose plans are made in a thread."""
    events = read(spark, write(source, BATCHES[:batches]))
    stream = sl.stream(events, "k", time="ts", partitioner="level", n_workers=2)
    return stream.window("10 seconds").agg(n=sl.count())


def failing(flag: str) -> Any:
    """Returns a nested function, sent by value: a sink that fails in batch 1 while there is no such file."""

    def emit(df: DataFrame, batch: int) -> None:
        from pathlib import Path

        if batch == 1 and not Path(flag).exists():
            raise OSError("this sink is out of order")
        df.write.mode("overwrite").parquet(f"{flag} {batch}")

    return emit


def test_a_failing_sink_releases_everything_and_the_query_can_start_again_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    job, flag = counts(spark, tmp_path / "in", 3), tmp_path / "flag"
    query = job.start(failing(str(flag)), str(tmp_path / "checkpoint"), available_now=True)
    with pytest.raises(Exception, match="out of order"):
        query.awaitTermination(300)
    assert threads() == []
    Checkpoint(str(tmp_path / "checkpoint")).lock().close()
    flag.touch()
    again = job.start(failing(str(flag)), str(tmp_path / "checkpoint"), available_now=True)
    assert again.awaitTermination(300)
    assert [record["batch"] for record in again.recent()] == [0, 1, 2]
    assert threads() == []


def test_a_query_that_ended_by_itself_leaves_nothing_and_can_start_again(spark: SparkSession, tmp_path: Path) -> None:
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    query = counts(spark, tmp_path / "in", 2).start(out, checkpoint, available_now=True)
    until = monotonic() + 300
    while query.isActive and monotonic() < until:
        sleep(0.1)
    assert not query.isActive
    run_to_end(counts(spark, tmp_path / "in", 1), out, checkpoint)  # written as a third file
    assert output_of(spark, out) == expected(spark, [*BATCHES[:2], BATCHES[0]], 10, 10, n=F.count(F.lit(1)))
    assert threads() == []


def test_no_thread_is_left_after_stop(spark: SparkSession, tmp_path: Path) -> None:
    query = counts(spark, tmp_path / "in", 2).start(str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    query.processAllAvailable()
    query.stop()
    assert threads() == []
    query.stop()  # twice is the same as once


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_the_checkpoint_stays_locked_until_the_last_batch_has_ended(spark: SparkSession, tmp_path: Path) -> None:
    """When a query is stopped, Spark does not wait for the function that `foreachBatch` calls."""
    began, go_on = threading.Event(), threading.Event()

    def emit(df: DataFrame, batch: int) -> None:
        began.set()
        go_on.wait(60)

    checkpoint = str(tmp_path / "checkpoint")
    query = counts(spark, tmp_path / "in", 1).start(emit, checkpoint)
    assert began.wait(60)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    while query.isActive:
        sleep(0.05)
    assert query.awaitTermination(1) is False  # although Spark's own query has ended
    with pytest.raises(ValueError, match="another query is running"):
        Checkpoint(checkpoint).lock()
    go_on.set()
    stopping.join(60)
    assert threads() == []
    Checkpoint(checkpoint).lock().close()


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_a_sink_may_stop_its_own_query(spark: SparkSession, tmp_path: Path) -> None:
    queries: list[Any] = []
    is_there = threading.Event()

    def emit(df: DataFrame, batch: int) -> None:
        is_there.wait(60)
        queries[0].stop()

    queries.append(counts(spark, tmp_path / "in", 1).start(emit, str(tmp_path / "checkpoint")))
    is_there.set()
    queries[0].awaitTermination(60)
    assert threads() == []
    Checkpoint(str(tmp_path / "checkpoint")).lock().close()


def test_workers_are_rescaled_only_where_there_are_some(spark: SparkSession, tmp_path: Path) -> None:
    """By default Spark itself counts the rows of a window, without workers of ours; with `n_workers` there are some."""
    events = read(spark, write(tmp_path / "in", BATCHES[:1]))
    by_default = sl.stream(events, "k", time="ts").window("10 seconds").agg(n=sl.count())
    query = by_default.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), available_now=True)
    with pytest.raises(ValueError, match="no workers to rescale"):
        query.rescale(3)
    assert query.awaitTermination(300)
    (record,) = query.recent()
    assert record["workers"] is None
    assert record["decision"].startswith("left to Spark")
    for parameters, reason in (
        ({"n_workers": (2, 4)}, "follows the load"),
        ({"partitioner": RoutingTable.hashed(2)}, "fixed number of workers"),
    ):
        fixed = sl.stream(events, "k", time="ts", **parameters).window("10 seconds").agg(n=sl.count())
        query = fixed.start(str(tmp_path / f"out {reason}"), str(tmp_path / reason), interval="1 hour")
        with pytest.raises(ValueError, match=reason):
            query.rescale(3)
        query.stop()
    asked = sl.stream(events, "k", time="ts", n_workers=3).window("10 seconds").agg(n=sl.count())
    query = asked.start(str(tmp_path / "out of 3"), str(tmp_path / "checkpoint of 3"), available_now=True)
    assert query.awaitTermination(300)
    assert query.recent()[0]["workers"] == 3


def test_what_is_refused_leaves_nothing_in_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    events = read(spark, write(tmp_path / "in", BATCHES[:1]))
    job = sl.stream(events, "k", partitioner="pkg").applyInArrowWithState(lambda _k, rows, _s: rows, "n long", "n long")
    with pytest.raises(ValueError, match="pkg splits keys"):
        job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "out").exists()
