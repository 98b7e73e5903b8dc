"""Logs of a receiver that were cut off, or whose disk is full."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from skewless.ingest.journal import Journal
from skewless.ingest.sender import send
from tests.ingest.receiving import frames, listening, raw, values

pytestmark = pytest.mark.compiled


def test_acknowledged_lines_are_on_disk_and_a_cut_off_frame_is_dropped(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver, raw(receiver.address, "s") as (connection, answers):
        assert next(answers) == b"0\n"
        for number in range(1, 4):
            connection.sendall(f"line {number}\n".encode())
            assert next(answers) == b"%d\n" % number
            assert [frame.notes["tally"] for frame in frames(tmp_path, receiver.end)] == [*range(1, number + 1)]
    (file,) = tmp_path.glob("*.log")
    size = file.stat().st_size
    last = frames(tmp_path, size)[-1].offset
    for cut in (*range(last, size, 17), size - 1):
        content = file.read_bytes()
        os.truncate(file, cut)
        with closing(listening(tmp_path)) as receiver:
            assert values(receiver, 0, receiver.latest(0, None)) == ["line 1", "line 2"]
            assert send(["line 1", "line 2", "line 3"], receiver.address, name="s") == 3
            assert values(receiver, 0, receiver.end) == ["line 1", "line 2", "line 3"]
        file.write_bytes(content)


def test_a_file_whose_first_frame_was_cut_off_is_deleted(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver:
        send(["a"], receiver.address, name="s")
        end = receiver.end
    for content in (b"", b"\x10\x00\x00"):
        (tmp_path / f"{end:020d}.log").write_bytes(content)
        with closing(listening(tmp_path)) as receiver:
            assert receiver.end == end
            assert values(receiver, 0, receiver.latest(0, None)) == ["a"]


def test_a_journal_refuses_writes_after_one_has_failed(tmp_path: Path) -> None:
    log = Journal(tmp_path, {})
    log._file.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        log._file = full
        for _ in range(2):
            with pytest.raises(ValueError, match=r"0+\.log cannot be written: .*No space"):
                log.append(b"x", 1, 0, "s", 1)
    assert log.tallies == {}
    log.close()
