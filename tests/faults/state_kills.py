"""Kills a stream with keyed state, and a join of two streams, again and again: results are those of undisturbed ones.

`python -m tests.faults.state_kills [kills] [batches] [seed] [master]` kills a stateful stream this many times: its
driver, all of its processes, executors, or Python workers. Its hot keys change, so that keys move, and it is rescaled
up and down. In the end the state of every key, and every row of output, must be those of an oracle. A join of two
streams gets a third of the kills, and at least one. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import skewless.spark as sl
from skewless.spark.streaming.checkpoint import Checkpoint
from tests.faults.claims import Claim, judged
from tests.faults.killing import CLUSTER, Kills, compared, disturbed, session

ROWS, KEYS, EXPONENT = 2400, 200, 1.3
PASSING = 8  # one of this many rows has a key that comes again; the other keys are many, so that states move in bulk
PAIRED = 75  # rows of each of two streams
SECONDS = 10  # of event time in a batch
DRIFT = 5  # batches after which other keys are hot
SIZES = (3, 6, 2)  # workers, in turn
RESCALING = 4  # batches after which their number changes
LAST = 3  # values of a key that are kept
FORGET = 60  # rows after which a key is forgotten
IDLE = 25  # seconds of event time without rows after which it is, too
EARLY, LATE = -3, 12  # seconds: how far the right row of a pair is after the left one
OUTPUT, STATE = "k string, n long, total long, gone boolean", "n long, total long, last array<long>"
EVENTS = "k string, v long, ts timestamp"


class Run(NamedTuple):
    """How often a stream is killed, and what it reads."""

    kills: int
    batches: int
    seed: int
    master: str

    def part(self, parts: int) -> Run:
        """Returns a run with a part of the kills and batches."""
        return self._replace(kills=max(1, self.kills // parts), batches=self.batches // parts)


def batch_of(number: int, rows: int, seed: int) -> tuple[list[str], list[int], list[int]]:
    """Returns keys, values and times in microseconds; no two rows have the same time."""
    rng = np.random.default_rng([seed, number])
    ranks = np.minimum(rng.zipf(EXPONENT, rows), KEYS) + 7 * (number // DRIFT)
    times = (number * SECONDS + (np.arange(rows) + rng.random(rows)) * SECONDS / rows) * 1e6
    keys = [f"k{rank % KEYS}" for rank in ranks.tolist()]
    return keys, rng.integers(-1000, 1000, rows).tolist(), times.astype(np.int64).tolist()


def put(directory: Path, number: int, columns: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{number:05d}.parquet"
    order = np.random.default_rng(number).permutation(len(next(iter(columns.values()))))
    pq.write_table(pa.table(columns).take(pa.array(order)), path)
    os.utime(path, (number, number))


def times_of(micros: list[int]) -> pa.Array:
    return pa.array(micros, pa.timestamp("us", "UTC"))


def write_events(directory: Path, batches: int, seed: int) -> tuple[Counter[Any], dict[str, Any]]:
    """Writes one file per batch; returns the output that the stream should have, and the states in the end."""
    states: dict[str, tuple[int, int, list[int]]] = {}
    timeouts: dict[str, int] = {}
    output: Counter[Any] = Counter()
    watermark = 0  # milliseconds
    for number in range(batches):
        keys, values, times = batch_of(number, ROWS, seed)
        keys = [f"passing {number}.{row}" if row % PASSING else key for row, key in enumerate(keys)]
        put(directory, number, {"k": keys, "v": values, "ts": times_of(times)})
        for key in sorted(set(states) - set(keys)):
            if timeouts[key] < watermark:
                output[number, key, *states.pop(key)[:2], True] += 1
        rows = defaultdict(list)
        for row, key in enumerate(keys):
            rows[key].append(row)
        for key, mine in sorted(rows.items()):
            n, total, last = states.pop(key, (0, 0, []))
            n, total = n + len(mine), total + sum(values[row] for row in mine)
            output[number, key, n, total, False] += 1
            if n < FORGET:
                states[key] = n, total, [*last, *(values[row] for row in mine)][-LAST:]
                timeouts[key] = times[mine[-1]] // 1000 + 1000 * IDLE
        watermark = times[-1] // 1000
    return output, states


def followed(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
    """Counts, sums and keeps the last values of a key until it is forgotten."""
    if state.hasTimedOut:
        n, total, _ = state.get
        state.remove()
        return pa.table({"k": [key[0]], "n": [n], "total": [total], "gone": [True]})
    n, total, last = state.get if state.exists else (0, 0, [])
    values = rows.sort_by("ts")["v"].to_pylist()
    n, total = n + len(values), total + sum(values)
    if n < FORGET:
        state.update((n, total, [*last, *values][-LAST:]))
        state.setTimeoutTimestamp(pc.max(rows["ts"]).cast(pa.int64()).as_py() // 1000 + 1000 * IDLE)
    else:
        state.remove()
    return pa.table({"k": [key[0]], "n": [n], "total": [total], "gone": [False]})


def stateful(directory: str, master: str) -> None:
    """Runs the stream with keyed state, in a process that is killed again and again."""
    source = session(master).readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    events = sl.stream(source.parquet(f"{directory}/in"), "k", time="ts", partitioner="kip", n_workers=SIZES[0])
    job = events.applyInArrowWithState(followed, OUTPUT, STATE, "EventTimeTimeout")
    query = job.start(f"{directory}/out", f"{directory}/checkpoint", available_now=True)
    Thread(target=rescale, args=(query,), daemon=True).start()
    query.awaitTermination()


def rescale(query: sl.Query) -> None:
    """Changes the number of workers every few batches, as long as the query runs."""
    last = None
    while query.isActive:
        done = max((record["batch"] for record in query.recent(1)), default=0)
        wanted = SIZES[done // RESCALING % len(SIZES)]
        if wanted != last:
            query.rescale(wanted)
            last = wanted
        sleep(0.1)


def write_sides(directory: Path, batches: int, seed: int) -> Counter[Any]:
    """Writes files for two streams; returns the pairs that their join should output."""
    times: list[dict[str, list[tuple[int, int]]]] = [defaultdict(list), defaultdict(list)]
    for number in range(batches):
        for side, names in enumerate((("k", "v", "ts"), ("k", "w", "at"))):
            keys, values, stamps = batch_of(number, PAIRED, 2 * seed + side)
            put(directory / names[1], number, dict(zip(names, (keys, values, times_of(stamps)), strict=True)))
            for key, value, stamp in zip(keys, values, stamps, strict=True):
                times[side][key].append((stamp, value))
    pairs: Counter[Any] = Counter()
    for key, left in times[0].items():
        for at_left, v in left:
            near = [w for at, w in times[1][key] if EARLY * 10**6 <= at - at_left <= LATE * 10**6]
            pairs.update((key, v, at_left, w) for w in near)
    return pairs


def joined(directory: str, master: str) -> None:
    """Runs the join of two streams, in a process that is killed again and again."""
    reader = session(master).readStream.option("maxFilesPerTrigger", 1)
    left, right = (
        reader.schema(f"k string, {value} long, {time} timestamp").parquet(f"{directory}/in/{value}")
        for value, time in (("v", "ts"), ("w", "at"))
    )
    pairs = sl.stream(left, "k", time="ts", n_workers=4).join(
        sl.stream(right, "k", time="at"), f"{EARLY} seconds", f"{LATE} seconds"
    )
    pairs.start(f"{directory}/out", f"{directory}/checkpoint", available_now=True).awaitTermination()


JOBS = {"stateful": stateful, "joined": joined}


def killed(job: str, directory: Path, run: Run) -> Kills:
    return disturbed("tests.faults.state_kills", [job, str(directory), run.master], directory, run.kills, run.seed)


def output(directory: Path, columns: list[str]) -> list[tuple[Any, ...]]:
    """Returns the rows that a stream wrote: the number of the batch, and these columns; times are in microseconds."""
    rows: list[tuple[Any, ...]] = []
    for folder in directory.glob("batch_id=*"):
        for file in folder.glob("*.parquet"):
            table = pq.read_table(file, columns=columns)
            values = [_plain(table[name]) for name in columns]
            rows += [(int(folder.name.partition("=")[2]), *row) for row in zip(*values, strict=True)]
    return rows


def _plain(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return list(column.to_pylist())


def states_of(checkpoint: str) -> dict[str, Any]:
    spark = session("local[2]")
    rows = sl.read_state(spark, checkpoint).collect()
    assert len(rows) == len({row["k"] for row in rows}), "a key has two states"
    spark.stop()
    return {row["k"]: (row["n"], row["total"], row["last"]) for row in rows}


def of_state(directory: Path, run: Run) -> list[Claim]:
    wanted, states = write_events(directory / "in", run.batches, run.seed)
    done = killed("stateful", directory, run)
    lost, wrong = compared(Counter(output(directory / "out", ["k", "n", "total", "gone"])), wanted)
    saved = states_of(f"{directory}/checkpoint")
    different = [key for key in {*saved, *states} if saved.get(key) != states.get(key)]
    records = Checkpoint(f"{directory}/checkpoint").records()
    miscounted = sum(record["rows"] != ROWS or sum(record["loads"]) != ROWS for record in records)
    rescaled = sum(former["workers"] != latter["workers"] for former, latter in pairwise(records))
    return [
        Claim("kills", done.total, at_least=run.kills, besides=str(done)),
        Claim("keys with another state", len(different), at_most=0, besides=f"of {len(states):,}"),
        Claim("rows lost", lost, at_most=0, besides=f"of {wanted.total():,}"),
        Claim("rows doubled or wrong", wrong, at_most=0),
        Claim("batches without a record", run.batches - len(records), at_most=0),
        Claim("batches whose record has another number of rows", miscounted, at_most=0),
        Claim("batches in which keys moved", sum(record["moved"] > 0 for record in records), at_least=1),
        Claim("changes of the number of workers", rescaled, at_least=min(3, run.batches // RESCALING - 1)),
    ]


def of_pairs(directory: Path, run: Run) -> list[Claim]:
    wanted = write_sides(directory / "in", run.batches, run.seed)
    done = killed("joined", directory, run)
    pairs = Counter(row[1:] for row in output(directory / "out", ["k", "v", "ts", "w"]))
    lost, wrong = compared(pairs, wanted)
    return [
        Claim("kills", done.total, at_least=run.kills, besides=str(done)),
        Claim("pairs lost", lost, at_most=0, besides=f"of {wanted.total():,}"),
        Claim("pairs doubled or wrong", wrong, at_most=0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a stream with keyed state, and a join of two streams.")
    for name, default in (("kills", 30), ("batches", 90), ("seed", 0)):
        parser.add_argument(name, type=int, nargs="?", default=default)
    parser.add_argument("master", nargs="?", default=CLUSTER)
    whole, kept = Run(**vars(parser.parse_args())), True
    for name, measured, part in (("keyed state", of_state, 1), ("two streams", of_pairs, 3)):
        with tempfile.TemporaryDirectory(prefix="skewless-kills-", ignore_cleanup_errors=True) as directory:
            claims = measured(Path(directory), whole.part(part))
        kept &= judged(f"{name}, killed over {whole.part(part).batches} batches", claims)
    sys.exit(not kept)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in JOBS:
        JOBS[sys.argv[1]](sys.argv[2], sys.argv[3])
    else:
        main()
