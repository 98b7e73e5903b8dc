"""Windows and their aggregates are checked before they run, and updated from the last one where that is exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless.spark.streaming.windows import Windows
from tests.spark.batches import BATCHES, read, write

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


def test_bad_windows_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    events = read(spark, write(tmp_path / "in", []))
    stream, mode = sl.stream(events, "k", time="ts"), "complete"
    wrong: Any = mode
    refused: list[tuple[str, Callable[[], object]]] = [
        ("windows need the time of rows", lambda: sl.stream(events, "k").window("1 second")),
        ("a length of time such as", lambda: stream.window("soon")),
        ("longer than 0, not 0 seconds", lambda: stream.window("0 seconds")),
        ("at most the size 1 second, not 2 seconds", lambda: stream.window("1 second", "2 seconds")),
        ("agg needs at least 1 aggregate", lambda: stream.window("1 second").agg()),
        ("not 'complete'", lambda: stream.window("1 second").agg(mode=wrong, n=sl.count())),
        ("window is the name of a column of the result", lambda: stream.window("1 second").agg(window=sl.count())),
    ]
    for sentence, call in refused:
        with pytest.raises(ValueError, match=sentence):
            call()


@pytest.mark.parametrize(
    ("slide", "mode", "aggregate", "incremental"),
    [
        ("10 seconds", "append", sl.sum("v"), True),
        ("20 seconds", "append", sl.sum("v"), False),  # 2 panes: too few
        ("10 seconds", "update", sl.sum("v"), False),
        ("10 seconds", "append", sl.max("v"), False),  # cannot be undone
    ],
)
def test_windows_of_many_panes_are_updated_where_that_is_exact(
    spark: SparkSession, tmp_path: Path, slide: str, mode: Any, aggregate: sl.Aggregate, incremental: bool
) -> None:
    stream = sl.stream(read(spark, write(tmp_path / "in", [])), "k", time="ts")
    operator = stream.window("40 seconds", slide).agg(mode=mode, x=aggregate).operator
    assert isinstance(operator, Windows)
    assert operator.incremental == incremental


def test_a_restart_with_the_key_as_another_kind_of_expression_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """States have the columns of the key under their names in the rows, which are others for expressions."""
    stream, checkpoint = read(spark, write(tmp_path / "in", BATCHES[:1])), str(tmp_path / "checkpoint")

    def start(key: Any) -> None:
        job = sl.stream(stream, key, time="ts").window("10 seconds").agg(n=sl.count())
        assert job.start(str(tmp_path / "out"), checkpoint, available_now=True).awaitTermination(300)

    start("k")
    with pytest.raises(ValueError, match="checkpoint of another query: key was struct<k:string>, and is"):
        start(F.col("k"))
    start("K")
