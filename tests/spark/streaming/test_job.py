"""A job checks how it is started before it writes or runs anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import skewless.spark as sl
from skewless import RoutingTable, partitioner
from tests.spark.batches import read, run_to_end, write

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


def test_bad_starts_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    events = read(spark, write(tmp_path / "in", []))
    job = sl.stream(events, "k", time="ts").window("10 seconds").agg(n=sl.count())
    full, checkpoint = tmp_path / "full", str(tmp_path / "checkpoint")
    full.mkdir()
    (full / "another file").touch()
    number: Any = 7
    refused: list[tuple[str, Callable[[], object]]] = [
        ("available_now", lambda: job.start(str(tmp_path / "a"), checkpoint, interval="1 s", available_now=True)),
        ("a length of time such as", lambda: job.start(str(tmp_path / "a"), checkpoint, interval="often")),
        ("a sink is a function (df, batch_id) or a directory, not 7", lambda: job.start(number, checkpoint)),
        (f"{full} is not empty", lambda: job.start(str(full), str(tmp_path / "other"))),
    ]
    for sentence, call in refused:
        with pytest.raises(ValueError, match=re.escape(sentence)):
            call()
    assert not (tmp_path / "checkpoint").exists()


def test_a_job_may_start_again_only_with_its_own_output(spark: SparkSession, tmp_path: Path) -> None:
    events = read(spark, write(tmp_path / "in", []))
    job = sl.stream(events, "k", time="ts").window("10 seconds").agg(n=sl.count())
    for _ in range(2):
        run_to_end(job, str(tmp_path / "out"), tmp_path / "checkpoint")
    with pytest.raises(ValueError, match="the output of another query"):
        job.start(str(tmp_path / "out"), str(tmp_path / "other"))


def test_rows_are_left_to_spark_unless_the_user_asks_for_more(spark: SparkSession, tmp_path: Path) -> None:
    events = read(spark, write(tmp_path / "in", []))
    table = RoutingTable.hashed(3)
    routers = [
        sl.stream(events, "k", time="ts", **asked).window("10 seconds").agg(n=sl.count())._routing().router
        for asked in ({}, {"partitioner": table}, {"partitioner": "level", "n_workers": 5})
    ]
    assert routers[:2] == [None, table]
    assert repr(routers[2]) == repr(partitioner("level", 5))
