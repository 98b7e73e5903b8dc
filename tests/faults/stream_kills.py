"""Kills a stream of windows again and again, at any moment: its output is that of an undisturbed one.

`python -m tests.faults.stream_kills [kills] [batches]` starts a driver of its own, kills it, its executors or Python
workers with SIGKILL at random moments, starts it again, and compares. Exit code 1 if a row was lost or doubled.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import skewless.spark as sl
from tests.faults.claims import Claim, judged
from tests.faults.killing import CLUSTER, Kills, compared, disturbed, session

ROWS = 300
SECONDS = 10  # of event time in a batch


def write(directory: Path, batches: int, seed: int = 0) -> Counter[tuple[Any, ...]]:
    """Writes one file per batch; returns the counts and sums by window and key that the stream should output."""
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
        path = directory / f"{number:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (number, number))
        for key, at, value in zip(keys, times, values, strict=True):
            for window in (int(at // 1e7) - 1, int(at // 1e7)):
                entry = wanted.setdefault((window * SECONDS, f"k{key}"), [0, 0])
                entry[0] += 1
                entry[1] += int(value)
    last = max(
        int(at) for at in pq.read_table(directory / f"{batches - 1:05d}.parquet")["ts"].cast(pa.int64()).to_numpy()
    )
    complete = {key: entry for key, entry in wanted.items() if (key[0] + 2 * SECONDS) * 10**6 <= last}
    return Counter((start, key, *entry) for (start, key), entry in complete.items())


def output(directory: Path) -> Counter[tuple[Any, ...]]:
    """Returns the rows that the stream wrote, and how often."""
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
    """Runs the query, in a process that is killed again and again."""
    source = session(master).readStream.schema("k string, v long, ts timestamp").option("maxFilesPerTrigger", 1)
    events = source.parquet(f"{directory}/in")
    job = sl.stream(events, "k", time="ts", partitioner="level", n_workers=4).window("20 seconds", "10 seconds")
    query = job.agg(n=sl.count(), s=sl.sum("v")).start(
        f"{directory}/out", f"{directory}/checkpoint", available_now=True
    )
    query.awaitTermination()


def killed(directory: Path, kills: int, master: str = CLUSTER, seed: int = 0) -> Kills:
    return disturbed("tests.faults.stream_kills", ["stream", str(directory), master], directory, kills, seed)


def main() -> None:
    given = [int(argument) for argument in sys.argv[1:]]
    kills, batches = [*given, *(30, 90)[len(given) :]]
    with tempfile.TemporaryDirectory(prefix="skewless-kills-", ignore_cleanup_errors=True) as temporary:
        directory = Path(temporary)
        wanted = write(directory / "in", batches)
        done = killed(directory, kills)
        lost, wrong = compared(output(directory / "out"), wanted)
    claims = [
        Claim("kills", done.total, at_least=kills, besides=str(done)),
        Claim("rows lost", lost, at_most=0, besides=f"of {wanted.total():,}"),
        Claim("rows doubled or wrong", wrong, at_most=0),
    ]
    sys.exit(not judged(f"windows over {batches} batches", claims))


if __name__ == "__main__":
    if sys.argv[1:2] == ["stream"]:
        stream(sys.argv[2], sys.argv[3])
    else:
        main()
