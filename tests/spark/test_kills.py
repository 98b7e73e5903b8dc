"""Executors killed while routed rows are read; KILLS=20 pytest tests/spark/test_kills.py tries harder."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.compiled, pytest.mark.xdist_group("state")]

KILLS = int(os.environ.get("KILLS", "3"))  # one for each query


def test_a_killed_executor_changes_no_result() -> None:
    command = [sys.executable, "-m", "benchmarks.spark_kills", "--kills", str(KILLS)]
    # What a session over Connect left in the environment of the tests is not for it.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    said = re.search(r"(\d+) of \d+ results equal; stages ran again after (\d+) of \d+ kills", done.stdout)
    assert said is not None
    assert int(said[1]) == KILLS
    assert int(said[2]) >= 1
