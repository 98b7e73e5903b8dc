"""A task of the keyed store survives SIGKILL at any line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from skewless.store.hotcopy import MANY


@pytest.mark.parametrize("many", [1, MANY])
def test_a_task_may_be_killed_at_any_line(tmp_path: Path, many: int) -> None:
    """SIGKILL, at lines from the first to the last of a task, while half of the keys come and go."""
    program = [sys.executable, "-m", "tests.faults.store_kills", str(tmp_path), "37", str(many)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    kills, ends = map(int, done.stdout.split())
    assert kills > 40
    assert ends > 0
