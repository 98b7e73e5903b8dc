"""A receiver survives SIGKILL: `python -m tests.faults.receiver_kills` does this 20 times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.receiver_kills import received, sent

pytestmark = pytest.mark.compiled


def test_no_line_is_lost_or_doubled_when_the_receiver_is_killed(tmp_path: Path) -> None:
    lines = sent(tmp_path, kills=2)
    assert received(tmp_path) == sorted(lines)
