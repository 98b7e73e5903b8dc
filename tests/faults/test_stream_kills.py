"""A stream survives SIGKILL: `python -m tests.faults.stream_kills` does this 30 times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.stream_kills import killed, output, write

pytestmark = [pytest.mark.compiled, pytest.mark.xdist_group("streams")]


def test_a_killed_stream_loses_and_doubles_nothing(tmp_path: Path) -> None:
    wanted = write(tmp_path / "in", 8)
    assert killed(tmp_path, 2, "local[2]").total == 2
    assert output(tmp_path / "out") == wanted
