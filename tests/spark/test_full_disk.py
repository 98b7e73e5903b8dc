"""A query on a full disk fails, and says which file could not be written; with more room it goes on where it was."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.stream_kills import output, write
from tests.spark import full_disk

NAMESPACE = ["unshare", "--map-root-user", "--mount"]


def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as place:
        mount = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", place]
        try:
            return subprocess.run(mount, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False


pytestmark = [
    pytest.mark.compiled,
    pytest.mark.xdist_group("state"),
    pytest.mark.skipif(not can_mount(), reason="a small disk cannot be mounted here"),
]


def test_a_full_disk_is_named_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    windows = write(tmp_path / "in", 4)
    script = [sys.executable, full_disk.__file__, str(tmp_path)]
    # A session over Connect leaves variables behind that would make the other one too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    done = subprocess.run(
        [*NAMESPACE, *script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for job in full_disk.JOBS:
        said = json.loads((tmp_path / f"{job}.json").read_text())
        ours = [words for words in said if "FOREACH_BATCH_USER_FUNCTION_ERROR" in words]
        assert len(ours) > 5
        assert all(re.search(rf"{tmp_path / job}/(checkpoint/skewless|out)/\w+", words) for words in ours)
        of_spark = [words for words in said if words not in ours]
        assert of_spark
        of_log = rf"could not finish {tmp_path / job}/checkpoint/spark/(sources/0|offsets|commits)/\d+$"
        assert all(re.search(of_log, words) for words in of_spark)
    assert output(tmp_path / "windows out") == windows
    # What Spark could note of a file it reads again with the next one: there may be fewer batches than files.
    told, files = counts(tmp_path / "state out"), (pq.read_table(file) for file in (tmp_path / "in").iterdir())
    assert all(len(ns) == len(set(ns)) for ns in told.values())
    assert {key: max(ns) for key, ns in told.items()} == Counter(key for rows in files for key in rows["k"].to_pylist())


def counts(directory: Path) -> dict[str, list[int]]:
    """What was told of each key, in any order."""
    found: dict[str, list[int]] = defaultdict(list)
    for place in directory.glob("batch_id=*/*.parquet"):
        for row in pq.read_table(place, columns=["k", "n"]).to_pylist():
            found[row["k"]].append(row["n"])
    return found
