"""Files that version 0.1.0 wrote still open, and queries continue from them with right results."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless.spark.streaming.checkpoint import Checkpoint
from tests.fixtures import jobs, make

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


def unpacked(name: str, directory: Path) -> Path:
    with tarfile.open(make.HERE / f"{name}.tar.xz") as tar:
        tar.extractall(directory, filter="data")
    return directory


def canonical(value: Any) -> Any:
    """Returns a value that can be compared: the order of collected values does not matter."""
    if isinstance(value, list):
        return tuple(sorted(map(canonical, value)))
    return tuple(map(canonical, value)) if isinstance(value, tuple) else value


def saved_reason(directory: Path, name: str) -> str:
    """Returns what the record of the next batch must say, by the plan or the sources that are saved for it."""
    files = Checkpoint(str(directory / "checkpoint"))
    if name == "interval_join":  # it has no partitioner; every batch of the fixture has the same hot key
        return "1 hot keys on grids"
    if name == "exact_windows":
        saved: Any = files.read(f"sources/{jobs.BATCHES}.json")
        assert len(saved["snapshots"]) == 2
        assert saved["since"] == 0
        return "dalton: 2 sources route each row; they agreed after the last batch"
    plan: Any = files.read(f"tables/{jobs.BATCHES}.json")
    assert "#1" in plan["reason"]  # it was learned from a batch
    return str(plan["reason"])


@pytest.mark.parametrize(
    ("spark", "name"), [*(("classic", name) for name in jobs.JOBS), ("connect", "keyed_state")], indirect=["spark"]
)
def test_a_query_continues_from_a_saved_checkpoint(
    spark: SparkSession, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = unpacked(name, tmp_path)
    planned, more = saved_reason(directory, name), 2
    for _ in range(more):
        query = jobs.run(spark, name, directory)
    records = query.recent()[-more:]
    assert [record["batch"] for record in records] == [jobs.BATCHES, jobs.BATCHES + more - 1]
    assert records[0]["decision"] == planned
    assert "learn anew" not in caplog.text  # over Connect, batches log in another process
    expected = jobs.JOBS[name][1](spark, jobs.BATCHES + more)
    columns = expected.columns
    found = spark.read.parquet(str(directory / "out")).select(columns)
    assert Counter(map(canonical, found.collect())) == Counter(map(canonical, expected.collect()))


def test_a_saved_state_is_read_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    directory = unpacked("keyed_state", tmp_path)
    states = sl.read_state(spark, str(directory / "checkpoint"))
    rows = jobs.all_rows(spark, jobs.EVENTS, jobs.BATCHES * jobs.ROWS)
    expected = rows.groupBy("k").agg(F.count("v"), F.sum("v"), F.lit(None).cast("long"))
    assert states.columns == ["k", "n", "s", "timeout"]
    assert Counter(states.collect()) == Counter(expected.collect())
