"""Commits are typed, and those of older versions can be read. No Spark is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skewless import elastic
from skewless.histogram import Histogram
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.commit import Commit, read_commit
from skewless.spark.streaming.interval_join import IntervalState, Waiting
from skewless.spark.streaming.panes import Panes
from skewless.spark.streaming.windows import LastWindow, WindowsState

SCALE = elastic.Scale(2, 2, (elastic.BatchStatistics(0.5, 1.0, 10, 2),))
# As versions before the format was written did.
OLD: dict[str, dict[str, Any]] = {
    "windows": {"watermark": 7, "panes": [["panes", 3, 0, 40]], "running": [3, 20]},
    "interval": {
        "latest": [5, 6],
        "kept": [["left", 1, 2, 3]],
        "counted": [{"keys": ["18446744073709551615"], "counts": [2.0], "rest": 1.0}] * 2,
    },
}


def test_old_commits_are_read(tmp_path: Path) -> None:
    files = Checkpoint(str(tmp_path))
    scale = {"mappers": 2, "reducers": 2, "zone": 2, "last": "", "grace": 0, "reason": ""}
    scale["recent"] = [{"processing": 0.5, "interval": 1.0, "tuples": 10, "keys": 2}]
    files.write("commits/0.json", {"state": OLD["windows"], "scale": scale, "record": {"rows": 1}})
    files.write("commits/1.json", {"state": OLD["interval"], "scale": None, "record": {}})
    windows = read_commit(files, 0, WindowsState.from_json)
    panes = (Panes("panes", 3, 0, 40),)
    assert windows.state == WindowsState(watermark=7, panes=panes, running=LastWindow(3, 20))
    assert (windows.scale, windows.record) == (SCALE, {"rows": 1})
    interval = read_commit(files, 1, IntervalState.from_json).state
    assert interval.waiting == (Waiting("left", 1, 2, 3),)
    assert interval.histograms is not None
    assert interval.histograms[0].keys.tolist() == [2**64 - 1]
    for commit, state in ((windows, OLD["windows"]), (read_commit(files, 1, IntervalState.from_json), OLD["interval"])):
        assert json.loads(json.dumps(commit.to_json()))["state"] == state


def test_histograms_and_times_of_a_join_are_read_as_they_were_written() -> None:
    histogram = Histogram(np.array([1], np.uint64), np.array([2.0]), 0.0)
    pair = IntervalState(latest=(1, 2), histograms=(histogram, histogram))
    assert IntervalState.from_json(json.loads(json.dumps(pair.to_json()))).latest == (1, 2)


def test_a_commit_of_a_newer_format_or_none_is_refused(tmp_path: Path) -> None:
    files = Checkpoint(str(tmp_path))
    with pytest.raises(ValueError, match=r"commits/0\.json is missing"):
        read_commit(files, 0, WindowsState.from_json)
    Commit(state=WindowsState(), scale=None, record={}, format=2).write(files, 0)
    with pytest.raises(ValueError, match="this commit has format 2; this version of skewless reads 1"):
        read_commit(files, 0, WindowsState.from_json)
