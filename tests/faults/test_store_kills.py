"""A task of the keyed store survives SIGKILL at any line: `python -m tests.faults.store_kills` tries more of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_task_may_be_killed_at_any_line() -> None:
    """SIGKILL, at lines from the first to the last of a task, while half of the keys come and go."""
    program = [sys.executable, "-m", "tests.faults.store_kills", "37"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
