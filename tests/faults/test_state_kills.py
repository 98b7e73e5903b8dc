"""Keyed state and a join of streams survive SIGKILL: `python -m tests.faults.state_kills` does this 40 times."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.environment import environment

pytestmark = [pytest.mark.compiled, pytest.mark.xdist_group("streams")]


def test_killed_streams_have_the_states_and_pairs_of_undisturbed_ones() -> None:
    """In a process of its own, which starts and ends a session to read the states."""
    command = [sys.executable, "-m", "tests.faults.state_kills", "1", "12", "0", "local[2]"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert re.findall(r"  kills: (\d+)", done.stdout) == ["1", "1"]
