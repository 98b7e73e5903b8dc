"""Runs streams on a disk that is full: they fail with an error that names the file, and continue when there is room.

`python -m tests.faults.full_disk` puts the checkpoint and the output of each query on a small disk with too little
room. The query fails; then the disk gets a little larger, and the query is started again, until it is done. The disks
are mounted in a namespace of their own, which needs no rights of root. Exit code 1 if an error does not name its file,
or if a row is lost or doubled.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import skewless.spark as sl
from tests.environment import environment
from tests.faults.claims import Claim, judged
from tests.faults.killing import compared
from tests.faults.stream_kills import output, write

STEP = 24  # kilobytes by which the disk grows after each attempt
NAMESPACE = ["unshare", "--map-root-user", "--mount"]


def counting(events: DataFrame) -> Any:
    stream = sl.stream(events, "k", time="ts", partitioner="level", n_workers=3)
    return stream.window("20 seconds", "10 seconds").agg(n=sl.count(), s=sl.sum("v"))


def remembering(events: DataFrame) -> Any:
    def add(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
        n = rows.num_rows + (state.get[0] if state.exists else 0)
        state.update((n,))
        return pa.table({"k": [key[0]], "n": [n]})

    return sl.stream(events, "k", n_workers=3).applyInArrowWithState(add, "k string, n long", "n long")


JOBS: dict[str, Callable[[DataFrame], Any]] = {"windows": counting, "state": remembering}


def can_mount() -> bool:
    """Returns whether a disk can be mounted in a namespace of its own."""
    with tempfile.TemporaryDirectory() as directory:
        mount = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", directory]
        try:
            return subprocess.run(mount, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False


def mount(disk: Path, kilobytes: int) -> None:
    """Mounts a disk of this size, or changes the size of the one that is mounted."""
    disk.mkdir(exist_ok=True)
    options = f"{'remount,' if disk.is_mount() else ''}size={kilobytes}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)


def attempts(spark: SparkSession, directory: Path, job: str) -> list[str]:
    """Runs a query on ever larger disks until it is done; returns the errors of the failed attempts."""
    disk, errors = directory / job, []
    for kilobytes in count(STEP, STEP):
        mount(disk, kilobytes)
        source = spark.readStream.schema("k string, v long, ts timestamp").option("maxFilesPerTrigger", 1)
        try:
            stream = JOBS[job](source.parquet(str(directory / "in")))
            query = stream.start(str(disk / "out"), str(disk / "checkpoint"), available_now=True)
            query.awaitTermination()
        except Exception as error:
            errors.append("\n".join([str(error), *getattr(error, "__notes__", [])]))
        else:
            break
    # Copied out of the namespace, where the tests can see it.
    subprocess.run(["cp", "-r", str(disk / "out"), str(directory / f"{job} out")], check=True)
    return errors


def streams(directory: Path) -> None:
    """Runs all jobs, in a process that may mount disks; writes the errors of each to a JSON file."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "3")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for job in JOBS:
        (directory / f"{job}.json").write_text(json.dumps(attempts(spark, directory, job)))
    spark.stop()


def measured(directory: Path) -> list[Claim]:
    """Runs all jobs in a namespace, and judges their errors and their output."""
    windows = write(directory / "in", 4)
    command = [*NAMESPACE, sys.executable, "-m", "tests.faults.full_disk", "streams", str(directory)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"the streams failed: {done.stderr[-3000:]}")
    claims = [claim for job in JOBS for claim in of_errors(directory, job)]
    lost, wrong = compared(output(directory / "windows out"), windows)
    # A file that Spark could not log is read again with the next one: there may be fewer batches than files.
    counts, files = counts_of(directory / "state out"), (pq.read_table(file) for file in (directory / "in").iterdir())
    wanted = Counter(key for rows in files for key in rows["k"].to_pylist())
    doubled = sum(len(ns) - len(set(ns)) for ns in counts.values())
    different = sum(max(counts.get(key, [0])) != wanted[key] for key in {*counts, *wanted})
    return [
        *claims,
        Claim("windows lost", lost, at_most=0, besides=f"of {windows.total():,}"),
        Claim("windows doubled or wrong", wrong, at_most=0),
        Claim("counts written twice", doubled, at_most=0),
        Claim("keys with another count", different, at_most=0, besides=f"of {len(wanted):,}"),
    ]


def of_errors(directory: Path, job: str) -> list[Claim]:
    """Judges whether the errors of a job name the files that could not be written."""
    errors = json.loads((directory / f"{job}.json").read_text())
    ours = [error for error in errors if "FOREACH_BATCH_USER_FUNCTION_ERROR" in error]
    of_spark = [error for error in errors if error not in ours]
    file = rf"{directory / job}/(checkpoint/skewless|out)/\w+"
    log = rf"could not finish {directory / job}/checkpoint/spark/(sources/0|offsets|commits)/\d+$"
    return [
        Claim(f"{job}: errors of batches", len(ours), at_least=6),
        Claim(f"{job}: of these, without a file", sum(not re.search(file, error) for error in ours), at_most=0),
        Claim(f"{job}: errors of Spark's logs", len(of_spark), at_least=1),
        Claim(f"{job}: of these, without a file", sum(not re.search(log, error) for error in of_spark), at_most=0),
    ]


def counts_of(directory: Path) -> dict[str, list[int]]:
    """Returns the counts that were written for each key, in any order."""
    by_key: dict[str, list[int]] = defaultdict(list)
    for path in directory.glob("batch_id=*/*.parquet"):
        for row in pq.read_table(path, columns=["k", "n"]).to_pylist():
            by_key[row["k"]].append(row["n"])
    return by_key


def main() -> None:
    if not can_mount():
        raise SystemExit("a small disk cannot be mounted here: unprivileged user namespaces are refused")
    with tempfile.TemporaryDirectory(prefix="skewless-disk-") as directory:
        claims = measured(Path(directory))
    sys.exit(not judged("streams on a full disk", claims))


if __name__ == "__main__":
    if sys.argv[1:2] == ["streams"]:
        streams(Path(sys.argv[2]))
    else:
        main()
