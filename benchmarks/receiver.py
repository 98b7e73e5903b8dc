"""What Spark waits for at a heartbeat, with Prompt's early batch release and without: `python -m benchmarks.receiver`.

A receiver in a process of its own gets about 1M rows with 100k keys in each interval. At each heartbeat that process
asks for a batch and its blocks, and pickles them for Spark. Runs are interleaved and medians compared. The exit code is
1 if a bound is broken.
"""

from __future__ import annotations

import json
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from socket import create_connection
from typing import NamedTuple

import pyarrow as pa

from benchmarks.spark import Claim, judged
from skewless import streams
from skewless.ingest import heartbeat
from skewless.ingest.receiver import Receiver
from skewless.ingest.records import LineFormat

ROWS, KEYS, BLOCKS = 1_000_000, 100_000, 16
INTERVAL = 5.0  # seconds
BEATS, FIRST = 10, 6  # heartbeats of a run, and those that do not count: until the interval is known
ROUNDS = 3
CHUNKS = 100  # pieces in which the rows of an interval are sent


class Beat(NamedTuple):
    """A heartbeat: what Spark waited for, and the rows of the batch."""

    seconds: float
    rows: int


def receive(log: str) -> None:
    """Runs the receiver; prints its address, then each heartbeat as JSON."""
    lines = LineFormat(pa.schema([("value", pa.string())]), "value", text=True)
    with closing(Receiver(log, lines, ("127.0.0.1", 0), pending=1 << 40, most_rows=None)) as receiver:
        print(receiver.address, flush=True)
        sys.stdin.readline()
        start, due = receiver.begin, time.monotonic()
        for _ in range(BEATS):
            due += INTERVAL
            time.sleep(max(due - time.monotonic(), 0))
            began = time.monotonic()
            end = receiver.latest(start, None)
            blocks = receiver.blocks(start, end, BLOCKS)
            pickle.dumps(blocks)
            beat = Beat(time.monotonic() - began, sum(block.rows.size for block in blocks))
            receiver.delete_before(start)
            print(json.dumps(beat), flush=True)
            start = end


def send(address: str, batches: list[bytes]) -> None:
    """Sends lines evenly over all intervals, without waiting for answers."""
    host, port = address.split(":")
    with create_connection((host, int(port))) as connection:
        connection.sendall(b"bench\n")
        began = time.monotonic()
        for number in range(BEATS * CHUNKS):
            time.sleep(max(began + number * INTERVAL / CHUNKS - time.monotonic(), 0))
            connection.sendall(batches[number % len(batches)])
        time.sleep(INTERVAL)


def run(way: str, chunks: list[bytes]) -> list[Beat]:
    """Returns the heartbeats that count."""
    with tempfile.TemporaryDirectory(prefix="skewless-receiver-") as log:
        command = [sys.executable, "-m", "benchmarks.receiver", way, log]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            assert process.stdin is not None
            address = process.stdout.readline().strip()
            process.stdin.write("\n")
            process.stdin.flush()
            send(address, chunks)
            return [Beat(*json.loads(line)) for line in process.stdout][FIRST:]


def measured() -> list[Claim]:
    keys = streams.zipf(ROWS, KEYS, 1.0)
    lines = [b"key %d\n" % key for key in keys.tolist()]
    size = ROWS // CHUNKS
    chunks = [b"".join(lines[begin : begin + size]) for begin in range(0, ROWS, size)]
    waits: dict[str, list[float]] = {"early": [], "late": []}
    for number in range(ROUNDS):
        for way in (*waits,)[:: 1 if number % 2 else -1]:
            beats = run(way, chunks)
            per_million = [1e6 * beat.seconds / beat.rows for beat in beats]
            listed = ", ".join(f"{1e3 * beat.seconds:.1f} ms for {beat.rows:,} rows" for beat in beats)
            print(f"round {number + 1}, {way}: {listed}", file=sys.stderr)
            waits[way] += per_million
    medians = {way: statistics.median(seconds) for way, seconds in waits.items()}
    besides = ", ".join(f"{way} {1e3 * seconds:.1f} ms" for way, seconds in medians.items())
    ratio = medians["early"] / medians["late"]
    return [Claim("wait at a heartbeat per million rows, early release / none", ratio, at_most=0.1, besides=besides)]


def main() -> None:
    way, *log = sys.argv[1:] or ["all"]
    if log:
        if way == "late":
            heartbeat.ENOUGH = sys.maxsize
        receive(*log)
    else:
        claims = measured()
        sys.exit(not judged(f"receiver, {INTERVAL:g} s intervals, {BLOCKS} blocks", claims))


if __name__ == "__main__":
    main()
