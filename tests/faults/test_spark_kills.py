"""Executors killed while routed rows are read; KILLS=20 pytest tests/faults/test_spark_kills.py tries harder."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.environment import environment

pytestmark = [pytest.mark.compiled, pytest.mark.xdist_group("streams")]

KILLS = int(os.environ.get("KILLS", "3"))  # one for each query


def test_a_killed_executor_changes_no_result() -> None:
    command = [sys.executable, "-m", "tests.faults.spark_kills", "--kills", str(KILLS)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    summary = re.search(r"(\d+) of \d+ results equal; stages ran again after (\d+) of \d+ kills", done.stdout)
    assert summary is not None
    assert int(summary[1]) == KILLS
    assert int(summary[2]) >= 1
