"""A query on a full disk fails and names the file that could not be written; with more room it continues."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.environment import environment
from tests.faults import full_disk
from tests.faults.stream_kills import output, write

NAMESPACE = ["unshare", "--map-root-user", "--mount"]


def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as directory:
        mount = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", directory]
        try:
            return subprocess.run(mount, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False


pytestmark = [
    pytest.mark.compiled,
    pytest.mark.xdist_group("state"),
    pytest.mark.skipif(not can_mount(), reason="a small disk cannot be mounted here"),
]


def test_errors_on_a_full_disk_name_the_file_and_leave_nothing_half_written(tmp_path: Path) -> None:
    windows = write(tmp_path / "in", 4)
    script = [sys.executable, full_disk.__file__, str(tmp_path)]
    done = subprocess.run(
        [*NAMESPACE, *script], env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for job in full_disk.JOBS:
        errors = json.loads((tmp_path / f"{job}.json").read_text())
        ours = [error for error in errors if "FOREACH_BATCH_USER_FUNCTION_ERROR" in error]
        assert len(ours) > 5
        assert all(re.search(rf"{tmp_path / job}/(checkpoint/skewless|out)/\w+", error) for error in ours)
        of_spark = [error for error in errors if error not in ours]
        assert of_spark
        of_log = rf"could not finish {tmp_path / job}/checkpoint/spark/(sources/0|offsets|commits)/\d+$"
        assert all(re.search(of_log, error) for error in of_spark)
    assert output(tmp_path / "windows out") == windows
    # A file that Spark could not log is read again with the next one: there may be fewer batches than files.
    outputs, files = counts(tmp_path / "state out"), (pq.read_table(file) for file in (tmp_path / "in").iterdir())
    assert all(len(ns) == len(set(ns)) for ns in outputs.values())
    assert {key: max(ns) for key, ns in outputs.items()} == Counter(
        key for rows in files for key in rows["k"].to_pylist()
    )


def counts(directory: Path) -> dict[str, list[int]]:
    """Returns the counts that were written for each key, in any order."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for path in directory.glob("batch_id=*/*.parquet"):
        for row in pq.read_table(path, columns=["k", "n"]).to_pylist():
            by_key[row["k"]].append(row["n"])
    return by_key
