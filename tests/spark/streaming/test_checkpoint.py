"""The small files of a checkpoint: complete or refused, and not too many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skewless.spark.streaming import checkpoint
from skewless.spark.streaming.checkpoint import Checkpoint
from tests.faults.harm import damage

pytestmark = pytest.mark.compiled


def test_files_of_a_checkpoint_are_whole_or_refused(tmp_path: Path) -> None:
    files = Checkpoint(str(tmp_path))
    assert files.read("a/1.json") is None
    files.write("a/1.json", {"x": 1})
    assert files.read("a/1.json") == {"x": 1}
    (tmp_path / "skewless/a/2.json.tmp").write_text("half")
    assert files.numbered("a") == [1]
    path = tmp_path / "skewless/a/1.json"
    damage(path, "cut", at=-1)
    with pytest.raises(OSError, match=r"a/1\.json is damaged"):
        files.read("a/1.json")
    files.forget("a", [1, 7], ".json")
    assert files.numbered("a") == []
    path.mkdir()
    with pytest.raises(OSError, match=r"cannot write .*a/1\.json"):
        files.write("a/1.json", 1)


def test_records_survive_torn_lines_and_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Checkpoint(str(tmp_path))
    monkeypatch.setattr(checkpoint, "KEPT", 5)
    monkeypatch.setattr(checkpoint, "_LENGTH", 20)
    for batch in range(30):
        files.record({"batch": batch})
    path = tmp_path / "skewless/batches.jsonl"
    with path.open("a") as file:
        file.write('\n{"batch": 3')
    files.record({"batch": 30})
    batches = [record["batch"] for record in files.records()]
    assert batches[-5:] == [26, 27, 28, 29, 30]
    assert len(batches) < 25
    assert all(json.loads(line) for line in path.read_text().splitlines() if line and not line.endswith(": 3"))


def test_a_checkpoint_belongs_to_one_query_and_one_format(tmp_path: Path) -> None:
    files = Checkpoint(str(tmp_path))
    name = files.identify({"key": "a", "window": "10"})
    assert files.identify({"key": "a", "window": "10"}) == name
    with pytest.raises(ValueError, match="window was 10, and is 20 now"):
        files.identify({"key": "a", "window": "20"})
    known = files.read("query.json")
    files.write("query.json", known | {"format": 99})
    with pytest.raises(ValueError, match="has format 99; this version of skewless reads 3"):
        files.identify({"key": "a", "window": "10"})
