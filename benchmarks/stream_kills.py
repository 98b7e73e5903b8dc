"""A stream that is killed again and again, at any moment, and goes on: its output is that of an undisturbed one.

`python -m benchmarks.stream_kills [kills] [batches]` starts a driver of its own, kills it or its executors with SIGKILL
at random moments, starts it again, and compares. Exit code 1 if a row was lost or doubled.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 300
SECONDS = 10  # of event time in a batch


def write(directory: Path, batches: int, seed: int = 0) -> Counter[tuple[Any, ...]]:
    """Files for a stream, one a batch; and the counts and sums by window and key that they should give."""
    directory.mkdir(parents=True)
    wanted: dict[tuple[int, str], list[int]] = {}
    for number in range(batches):
        rng = np.random.default_rng([seed, number])
        keys = np.minimum(rng.zipf(1.5, ROWS), 40)
        times = (number * SECONDS + rng.random(ROWS) * SECONDS) * 1e6
        values = rng.integers(-100, 100, ROWS)
        table = pa.table(
            {
                "k": [f"k{key}" for key in keys],
                "v": values,
                "ts": pa.array(times.astype(np.int64), pa.timestamp("us", "UTC")),
            }
        )
        place = directory / f"{number:05d}.parquet"
        pq.write_table(table, place)
        os.utime(place, (number, number))
        for key, at, value in zip(keys, times, values, strict=True):
            for window in (int(at // 1e7) - 1, int(at // 1e7)):
                entry = wanted.setdefault((window * SECONDS, f"k{key}"), [0, 0])
                entry[0] += 1
                entry[1] += int(value)
    last = max(
        int(at) for at in pq.read_table(directory / f"{batches - 1:05d}.parquet")["ts"].cast(pa.int64()).to_numpy()
    )
    complete = {place: entry for place, entry in wanted.items() if (place[0] + 2 * SECONDS) * 10**6 <= last}
    return Counter((start, key, *entry) for (start, key), entry in complete.items())


def output(directory: Path) -> Counter[tuple[Any, ...]]:
    """What the stream wrote, file by file."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for file in sorted(directory.glob("batch_id=*/*.parquet")):
        table = pq.read_table(file)
        starts = pc.struct_field(table["window"], "start").cast(pa.int64()).to_pylist()
        scale = 10**9 if "ns" in str(table.schema.field("window").type) else 10**6
        for start, key, n, total in zip(
            starts, table["k"].to_pylist(), table["n"].to_pylist(), table["s"].to_pylist(), strict=True
        ):
            rows[start // scale, key, n, total] += 1
    return rows


def stream(directory: str, master: str) -> None:
    """The job: in a process of its own, which is killed."""
    from pyspark.sql import SparkSession

    import skewless.spark as sl

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "4").config("spark.driver.memory", "1g")
    spark = builder.config("spark.executor.memory", "512m").config("spark.task.maxFailures", "20").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    source = spark.readStream.schema("k string, v long, ts timestamp").option("maxFilesPerTrigger", 1)
    events = source.parquet(f"{directory}/in")
    job = sl.stream(events, "k", time="ts", partitioner="level", n_workers=4).window("20 seconds", "10 seconds")
    query = job.agg(n=sl.count(), s=sl.sum("v")).start(
        f"{directory}/out", f"{directory}/checkpoint", available_now=True
    )
    query.awaitTermination()


def executors(driver: int) -> list[int]:
    """The processes in which tasks run, of a driver with a cluster of its own."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = place.read_bytes()
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in command and os.getpgid(int(place.parent.name)) == driver:
            found.append(int(place.parent.name))
    return found


def disturbed(directory: Path, kills: int, master: str = "local[2]", seed: int = 0) -> int:
    """Run the job to its end, and kill it, or one of its executors, so many times on the way; returns how often."""
    rng, killed = random.Random(seed), 0
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "benchmarks.stream_kills", "stream", str(directory), master]
    log = directory / "log"
    while True:
        with log.open("w") as file:
            process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=file, stderr=file)
        began = _progress(directory)
        while process.poll() is None and killed < kills:
            # Mostly after another batch, so that it gets somewhere; sometimes while it starts.
            if rng.random() < 0.2 or _progress(directory) > began:
                time.sleep(3 * rng.random())
                some = executors(process.pid) if rng.random() < 0.5 else []
                if process.poll() is None:
                    os.kill(rng.choice(some), signal.SIGKILL) if some else os.killpg(process.pid, signal.SIGKILL)
                    killed += 1
                    began = _progress(directory)
            time.sleep(0.5)
        process.wait()
        if process.returncode == 0:
            return killed
        if process.returncode != -signal.SIGKILL:
            raise SystemExit(f"the stream failed: {log.read_text()[-3000:]}")


def _progress(directory: Path) -> int:
    """The last batch that was committed."""
    commits = (directory / "checkpoint/skewless/commits").glob("*.json")
    return max((int(commit.stem) for commit in commits), default=-1)


def main() -> None:
    given = [int(argument) for argument in sys.argv[1:]]
    kills, batches = [*given, *(30, 60)[len(given) :]]
    directory = Path(tempfile.mkdtemp(prefix="skewless-kills-"))
    try:
        wanted = write(directory / "in", batches)
        killed = disturbed(directory, kills, "local-cluster[2,1,512]")
        found = output(directory / "out")
        lost, doubled = wanted - found, found - wanted
        result = f"{len(wanted)} rows, {len(lost)} lost, {len(doubled)} doubled or wrong"
        print(f"{killed} kills over {batches} batches: {result}")
        sys.exit(bool(lost or doubled))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["stream"]:
        stream(sys.argv[2], sys.argv[3])
    else:
        main()
