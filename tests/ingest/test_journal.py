"""A log is checked when it is read, its finished files are deleted, and one receiver at a time has it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from skewless.ingest import journal
from skewless.ingest.sender import send
from tests.faults.harm import damage
from tests.ingest.receiving import EVENTS, frames, listening, rows, values, words

pytestmark = pytest.mark.compiled


def test_damage_names_the_file(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver:
        for number in range(3):
            send([f"line {number}"], receiver.address, name=f"s{number}")
        middle = frames(tmp_path, receiver.end)[1].offset
        end = receiver.latest(0, None)
        (file,) = tmp_path.glob("*.log")
        damage(file, "flipped", at=middle + 30)
        with pytest.raises(ValueError, match=rf"{file.name} is damaged at byte {middle}"):
            rows(receiver.blocks(0, end, 1))
    with pytest.raises(ValueError, match=rf"{file.name} is damaged at byte {middle}"):
        listening(tmp_path)


def test_finished_files_are_deleted_and_senders_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FILE_BYTES", 20_000)
    lines = words(20_000)
    with closing(listening(tmp_path, most_rows=500)) as receiver:
        send(lines, receiver.address, name="s")
        start, found = 0, list[str]()
        assert len([*tmp_path.glob("*.log")]) > 5
        while (end := receiver.latest(start, 500)) > start:
            batch = values(receiver, start, end)
            assert 0 < len(batch) <= 500
            found += batch
            start = end
            receiver.delete_before(end)
        assert sorted(found) == sorted(lines)
        assert len([*tmp_path.glob("*.log")]) == 1
        for ask in (lambda: receiver.latest(0, None), lambda: receiver.blocks(start, start + 5000, 2)):
            with pytest.raises(ValueError, match="is not the log of this checkpoint"):
                ask()
    with closing(listening(tmp_path)) as receiver:
        assert send(lines, receiver.address, name="s") == 20_000
        assert receiver.latest(start, None) == start == receiver.end


def test_another_log_or_a_log_in_use_is_refused_and_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.2)
    lines = words(100)
    with closing(listening(tmp_path)) as receiver:
        send(lines, receiver.address, name="s")
        with pytest.raises(ValueError, match="in use by another receiver"):
            listening(tmp_path)
        end = receiver.end
    with pytest.raises(ValueError, match="choose another directory"):
        listening(tmp_path, EVENTS)
    with closing(listening(tmp_path)) as receiver:
        assert receiver.end == end
        assert sorted(values(receiver, 0, receiver.latest(0, None))) == sorted(lines)
