"""The log that a receiver of version 0.1.0 wrote is read on."""

from __future__ import annotations

import tarfile
from contextlib import closing
from pathlib import Path

import pytest

import skewless.ingest.sender
from tests.fixtures import make
from tests.ingest.receiving import rows

pytestmark = pytest.mark.compiled


def test_a_saved_log_is_read_and_its_sender_continues(tmp_path: Path) -> None:
    with tarfile.open(make.HERE / "receiver.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    with closing(make.receiver(tmp_path)) as receiver:
        end = receiver.latest(0, None)
        logged = rows(receiver.blocks(0, end, 3), receiver.lines)
        assert sorted(row["n"] for row in logged) == [*range(make.SENT)]
        assert skewless.ingest.sender.send(make.records(1000), receiver.address, name="sender") == 1000
        more = rows(receiver.blocks(end, receiver.latest(end, None), 3), receiver.lines)
        expected = {row["n"]: row["word"] for row in make.records(1000)}
        assert {row["n"]: row["word"] for row in (*logged, *more)} == expected
        assert len(logged) + len(more) == 1000
