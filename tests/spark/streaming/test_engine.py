"""A batch is committed after its sink and runs once; whatever fails, the checkpoint is free again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from skewless import partitioner
from skewless.spark.profile import profile
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.engine import COMMITS, Engine
from skewless.spark.streaming.operator import Batch, BatchResult
from skewless.spark.streaming.running import StreamRouting
from skewless.spark.streaming.scaling import Scaling

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


@dataclass(frozen=True)
class Total:
    """The rows of all batches so far."""

    rows: int

    def to_json(self) -> dict[str, Any]:
        return {"rows": self.rows}


@dataclass
class Counting:
    """An operator that counts rows, and hands on those of a batch with rows."""

    ran: list[int] = field(default_factory=list)
    forgot: list[int] = field(default_factory=list)
    keys: tuple[str, ...] = ("k",)

    def is_routed(self, asked: bool) -> bool:
        return True

    def identity(self, df: DataFrame) -> dict[str, str]:
        return {}

    def restored(self, state: dict[str, Any]) -> Total:
        return Total(state["rows"])

    def run(self, batch: Batch[Total]) -> BatchResult[Total]:
        self.ran.append(batch.number)
        seen = profile(batch.df, "k")
        total = Total(seen.rows + (batch.state.rows if batch.state else 0))
        return BatchResult(
            state=total,
            output=batch.df if seen.rows else None,
            record={"rows": seen.rows, "keys": 2, "loads": [seen.rows, 0], "total": total.rows},
            histogram=seen.histogram if batch.portion else None,
        )

    def forget(self, state: Total, files: Checkpoint, background: Background[Any]) -> None:
        self.forgot.append(state.rows)


def engine(directory: Path, sink: Any, routed: bool = True) -> Engine:
    routing = StreamRouting(partitioner("level", 2) if routed else None)
    return Engine(str(directory), Counting(), sink, routing, Scaling())


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_each_batch_starts_from_the_last_commit_and_runs_once(spark: SparkSession, tmp_path: Path) -> None:
    emitted: list[tuple[int, int]] = []
    df, files = spark.range(10).selectExpr("id % 2 as k"), Checkpoint(str(tmp_path))
    run = engine(tmp_path, lambda rows, batch: emitted.append((batch, rows.count())))
    for batch in (0, 0, 1, 1):
        run(df, batch)
    run(df.limit(0), 2)
    run.release()
    run.release()  # twice is the same as once
    again = engine(tmp_path, lambda rows, batch: emitted.append((batch, rows.count())))
    again(df, 2)  # Spark repeats the last batch after a restart
    again(df, 3)
    again.release()
    assert emitted == [(0, 10), (1, 10), (3, 10)]
    assert isinstance(run.operator, Counting)
    assert isinstance(again.operator, Counting)
    assert (run.operator.ran, again.operator.ran) == ([0, 1, 2], [3])
    assert (run.operator.forgot, again.operator.forgot) == ([10, 20, 20], [30])
    records = files.records()
    assert [record["total"] for record in records] == [10, 20, 20, 30]
    assert [record["imbalance_ratio"] for record in records] == [2.0, 2.0, None, 2.0]
    assert records[0]["workers"] == 2
    assert records[1]["decision"].startswith("level")


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_a_batch_whose_sink_fails_is_not_committed_and_runs_again(spark: SparkSession, tmp_path: Path) -> None:
    emitted: list[int] = []

    def emit(rows: DataFrame, batch: int) -> None:
        emitted.append(batch)
        if len(emitted) == 1:
            raise OSError("this sink is out of order")

    df, files = spark.range(10).selectExpr("id % 2 as k"), Checkpoint(str(tmp_path))
    run = engine(tmp_path, emit, routed=False)
    with pytest.raises(OSError, match="out of order"):
        run(df, 0)
    assert (files.numbered("commits"), files.records()) == ([], [])
    files.lock().close()  # is free
    run(df, 0)
    run.release()
    assert emitted == [0, 0]
    (record,) = files.records()
    assert (record["total"], record["workers"], record["moved"]) == (10, None, 0.0)


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_a_batch_after_the_end_of_its_query_takes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Spark may call once more when a query is stopped; nobody would unlock the checkpoint after it."""
    df, files = spark.range(10).selectExpr("id % 2 as k"), Checkpoint(str(tmp_path))
    run = engine(tmp_path, lambda *_: None)
    run(df, 0)
    run.end()
    with pytest.raises(RuntimeError, match="batch 1 came after the end of its query"):
        run(df, 1)
    assert files.numbered("commits") == [0]
    files.lock().close()


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
@pytest.mark.parametrize(("limits", "n_workers"), [(None, [2, 3, 3]), ((2, 4), [2, 2, 2])])
def test_a_restart_with_a_fixed_number_of_workers_forgets_the_scale(
    spark: SparkSession, tmp_path: Path, limits: tuple[int, int] | None, n_workers: list[int]
) -> None:
    df, files = spark.range(10).selectExpr("id % 2 as k"), Checkpoint(str(tmp_path))
    for batch, scaling in enumerate([Scaling(1000.0, (2, 4)), *2 * [Scaling(1000.0, limits)]]):
        run = engine(tmp_path, lambda *_: None)
        run.routing, run.scaling = StreamRouting(partitioner("level", 3 if batch else 2)), scaling
        run(df, batch)
        run.release()
    assert [record["workers"] for record in files.records()] == n_workers


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_the_last_commits_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(1).selectExpr("id as k")
    run = engine(tmp_path, str(tmp_path / "out"), routed=False)
    for batch in range(COMMITS + 3):
        run(df.limit(0), batch)
    run.release()
    assert Checkpoint(str(tmp_path)).numbered("commits") == list(range(3, COMMITS + 3))
