"""A running query owns the lock of its checkpoint, its learner and its threads. No Spark is started."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from skewless import RoutingTable, partitioner
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.commit import Commit
from skewless.spark.streaming.learner import TableLearner
from skewless.spark.streaming.running import RunningQuery, StreamRouting
from skewless.spark.streaming.sources import SourceLearner
from skewless.spark.streaming.windows import WindowsState
from tests.faults.harm import damage

pytestmark = pytest.mark.compiled
LEVEL = StreamRouting(partitioner("level", 2))


def test_a_checkpoint_is_held_until_the_query_is_closed(tmp_path: Path) -> None:
    running = RunningQuery(str(tmp_path), LEVEL)
    running.background.submit(lambda: 7)
    running.lock.check()
    with pytest.raises(ValueError, match="another query is running on the checkpoint"):
        RunningQuery(str(tmp_path), LEVEL)
    running.close()
    running.close()  # twice is the same as once
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("skewless-")] == []
    RunningQuery(str(tmp_path), LEVEL).close()


def test_a_record_that_is_missing_after_a_crash_is_written_again(tmp_path: Path) -> None:
    files = Checkpoint(str(tmp_path))
    for batch in range(2):
        Commit(state=WindowsState(), scale=None, record={"batch": batch, "rows": 10}).write(files, batch)
    files.record({"batch": 0, "rows": 10})
    for _ in range(2):
        running = RunningQuery(str(tmp_path), LEVEL)
        assert running.committed == 1
        running.close()
    assert [record["batch"] for record in files.records()] == [0, 1]
    assert (tmp_path / "skewless/batches.jsonl").read_text().count('"batch":1') == 1


def test_an_error_at_the_start_unlocks_the_checkpoint(tmp_path: Path) -> None:
    Commit(state=WindowsState(), scale=None, record={"batch": 0}).write(Checkpoint(str(tmp_path)), 0)
    damage(tmp_path / "skewless/commits/0.json", "rubbish")
    with pytest.raises(OSError, match=r"commits/0\.json is damaged"):
        RunningQuery(str(tmp_path), LEVEL)
    Checkpoint(str(tmp_path)).lock().close()


def test_the_learner_fits_what_routes(tmp_path: Path) -> None:
    files = Checkpoint(str(tmp_path))
    learners = [
        StreamRouting(router, row_by_row).learner(files)
        for router, row_by_row in (
            (None, False),
            (RoutingTable.hashed(2), False),
            (partitioner("kip", 2), False),
            (partitioner("dalton", 2), True),
        )
    ]
    assert [type(learner) for learner in learners] == [type(None), TableLearner, TableLearner, SourceLearner]
    assert [learner.plans_from_rows for learner in learners[1:3] if learner] == [False, True]
    for learner in learners[1:]:
        assert learner is not None
        learner.close()
