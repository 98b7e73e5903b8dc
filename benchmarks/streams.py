"""Our streams compared with Spark's own: `python -m benchmarks.streams [counts] [waits] [drift] [sources] ...`.

counts    windowed counts: the time of a batch, compared with Structured Streaming on RocksDB
waits     a grouped Python aggregate that waits for each row, 16 task slots, compared with applyInPandasWithState
drift     changing hot keys: how soon loads are balanced again
sources   statistics that the table of a batch is planned from: the last batch, its own rows, or a tenth of these
planning  the time to plan a batch of 1M rows and 100k keys, as a share of the interval
soak      many small batches: files, memory and time must not grow (SOAK=2000 batches)

Runs are interleaved and medians compared. The exit code is 1 if a bound is broken.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import skewless.spark as sl
from benchmarks.spark import STREAMING, Claim, judged, session
from skewless import streams

SCHEMA = "k long, v long, ts timestamp"
ROUNDS = 3


def write(directory: Path, batches: Iterator[np.ndarray[Any, Any]], seconds: int = 10) -> str:
    """Writes one file per batch, each with this many seconds of event time."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, keys in enumerate(batches):
        rng = np.random.default_rng(number)
        times = ((number + np.sort(rng.random(keys.size))) * seconds * 1e6).astype(np.int64)
        table = pa.table({"k": keys.astype(np.int64), "v": rng.integers(0, 100, keys.size), "ts": _times(times)})
        path = directory / f"{number:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (number, number))
    return str(directory)


def _times(micros: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(micros, pa.timestamp("us", "UTC"))


def read(spark: SparkSession, directory: str) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(directory)


def triggers(query: Any) -> list[float]:
    """Returns the seconds of each batch with rows, as Spark measured them, without the first two, which compile."""
    inner = getattr(query, "_query", query)
    seconds = [
        progress.durationMs["triggerExecution"] / 1000 for progress in inner.recentProgress if progress.numInputRows
    ]
    return seconds[2:]


def in_turns(directory: Path, rounds: int = ROUNDS, **jobs: Callable[[Path], Any]) -> dict[str, float]:
    """Returns the median time of a batch of each job; jobs are interleaved, and each round begins with another one.

    A first round does not count: the JVM compiles, and Python workers start.
    """
    times: dict[str, list[float]] = {name: [] for name in jobs}
    names = list(jobs)
    for turn in range(-1, rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            path = directory / f"{name}-{turn}"
            seconds = triggers(jobs[name](path))
            print(f"turn {turn + 1}, {name}: {statistics.median(seconds):.2f} s", file=sys.stderr)
            if turn >= 0:
                times[name] += seconds
            shutil.rmtree(path, ignore_errors=True)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def counts(spark: SparkSession, directory: Path) -> list[Claim]:
    """Compares windowed counts with those of Structured Streaming."""
    source = write(directory / "in", (streams.zipf(200_000, 20_000, 1.0, seed=n) for n in range(12)))

    def ours(path: Path) -> Any:
        job = sl.stream(read(spark, source), "k", time="ts").window("20 seconds").agg(n=sl.count())
        query = job.start(f"{path}/out", f"{path}/checkpoint", available_now=True)
        query.awaitTermination()
        return query

    def plain(path: Path) -> Any:
        rows = read(spark, source).withWatermark("ts", "0 seconds").groupBy(F.window("ts", "20 seconds"), "k").count()
        writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{path}/checkpoint")
        query = writer.trigger(availableNow=True).start(f"{path}/out")
        query.awaitTermination()
        return query

    times = in_turns(directory, skewless=ours, spark=plain)
    return [
        Claim(
            "time of a batch of 200k rows",
            times["skewless"] / times["spark"],
            at_most=1.25,
            besides=listed(times),
        )
    ]


def waits(spark: SparkSession, directory: Path, wait: float = 0.002, rows: int = 16_000) -> list[Claim]:
    """Compares an aggregate that waits this many seconds for each row with applyInPandasWithState."""
    source = write(directory / "in", (streams.zipf(rows, 10_000, 1.5, seed=n) for n in range(4)))

    def partial(table: pa.Table) -> pa.Table:
        time.sleep(wait * table.num_rows)
        return pa.table({"rows": [table.num_rows]})

    def merge(states: pa.Table) -> pa.Table:
        return pa.table({"rows": [sum(states["rows"].to_pylist())]})

    counted = sl.ArrowAggregate(partial, merge, lambda s: s.rename_columns(["n"]), "rows long", "n long")

    def stateful(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        n = sum(len(frame) for frame in frames)
        time.sleep(wait * n)
        state.update((n + (state.get[0] if state.exists else 0),))
        yield pd.DataFrame({"k": [key[0]], "n": [state.get[0]]})

    def ours(path: Path) -> Any:
        job = sl.stream(read(spark, source), "k", time="ts", n_workers=16).window("10 seconds").agg(counted)
        query = job.start(f"{path}/out", f"{path}/checkpoint", available_now=True)
        query.awaitTermination()
        return query

    def plain(path: Path) -> Any:
        grouped = read(spark, source).groupBy("k")
        counts = grouped.applyInPandasWithState(
            stateful, "k long, n long", "n long", "update", GroupStateTimeout.NoTimeout
        )
        writer = counts.writeStream.outputMode("update").foreachBatch(_written).trigger(availableNow=True)
        query = writer.option("checkpointLocation", f"{path}/checkpoint").start()
        query.awaitTermination()
        return query

    times = in_turns(directory, skewless=ours, spark=plain)
    return [Claim("rows a second, Zipf 1.5", times["spark"] / times["skewless"], at_least=4, besides=listed(times))]


def _written(df: DataFrame, batch: int) -> None:
    df.write.format("noop").mode("overwrite").save()


def drift(spark: SparkSession, directory: Path, n: int = 16, rows: int = 100_000) -> list[Claim]:
    """Measures balance where the distribution changes every 10 batches, in three ways."""
    scenarios: dict[str, Callable[[int], np.ndarray[Any, Any]]] = {
        "hot keys change": lambda b: streams.zipf(rows, 10_000, 1.2, seed=b) + np.uint64(1_000_003 * (b // 10)),
        "uniform and Zipf": lambda b: streams.zipf(rows, 10_000, (0.0, 1.4)[b // 10 % 2], seed=b),
        "Zipf reverses": lambda b: (
            np.uint64(10_000) - streams.zipf(rows, 10_000, 1.2, seed=b)
            if b // 10 % 2
            else streams.zipf(rows, 10_000, 1.2, seed=b)
        ),
    }
    claims = []
    for name, batch in scenarios.items():
        path = directory / name.replace(" ", "-")
        source = write(path / "in", (batch(b) for b in range(30)))
        stream = sl.stream(read(spark, source), "k", time="ts", partitioner="level", n_workers=n)
        query = stream.window("10 seconds").agg(n=sl.count()).start(f"{path}/out", f"{path}/c", available_now=True)
        query.awaitTermination()
        ratios = [record["imbalance_ratio"] for record in query.recent()]
        settled = [ratio for b, ratio in enumerate(ratios) if b % 10 >= 2]
        print(f"  {name}: " + " ".join(f"{ratio:.2f}" for ratio in ratios))
        claims.append(Claim(f"{name}: imbalance two batches after a change", max(settled), at_most=1.2))
    return claims


def planning(spark: SparkSession, directory: Path) -> list[Claim]:
    """Measures which share of the time of a batch planning takes."""
    source = write(directory / "in", (streams.zipf(1_000_000, 100_000, 1.0, seed=n) for n in range(4)), seconds=60)
    stream = sl.stream(read(spark, source), "k", time="ts", partitioner="level", n_workers=64)
    query = (
        stream.window("60 seconds").agg(n=sl.count()).start(f"{directory}/out", f"{directory}/c", available_now=True)
    )
    query.awaitTermination()
    seconds = [record["seconds"] for record in query.recent()[1:]]
    plan = statistics.median(entry["planning"] for entry in seconds)
    total = statistics.median(entry["total"] for entry in seconds)
    waited = statistics.median(entry["plan"] for entry in seconds)
    besides = f"{plan:.3f} s of {total:.2f} s; the batch waits {waited:.3f} s for its plan"
    return [Claim("share of a batch of 1M rows and 100k keys", plan / total, at_most=0.05, besides=besides)]


def sources(spark: SparkSession, directory: Path) -> list[Claim]:
    """Compares the time of a batch by each choice of statistics, where reading is cheap and where it is expensive.

    The default must be the fastest in both. The other two read the keys of a batch twice.
    """
    parquet = write(directory / "parquet", (streams.zipf(200_000, 20_000, 1.2, seed=n) for n in range(8)))
    (directory / "json").mkdir()
    for path in sorted(Path(parquet).iterdir()):
        copy = directory / "json" / f"{path.stem}.json"
        pq.read_table(path).to_pandas().to_json(copy, orient="records", lines=True, date_format="iso", date_unit="us")
        os.utime(copy, (int(path.stem), int(path.stem)))
    choices: dict[str, Any] = {"last": "last", "present": "present", "a tenth": 0.1}
    ratios: dict[str, list[float]] = {name: [] for name in choices}

    def by(name: str, kind: str) -> Callable[[Path], Any]:
        def run(path: Path) -> Any:
            source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
            rows = source.format(kind).load(str(directory / kind))
            choice = choices[name]
            stream = sl.stream(rows, "k", time="ts", partitioner="level", n_workers=16, statistics=choice)
            job = stream.window("10 seconds").agg(n=sl.count())
            query = job.start(f"{path}/out", f"{path}/checkpoint", available_now=True)
            query.awaitTermination()
            ratios[name] += [record["imbalance_ratio"] for record in query.recent()[2:]]
            return query

        return run

    claims = []
    for kind in ("parquet", "json"):
        # The differences are small, so more rounds than elsewhere reduce the noise.
        times = in_turns(directory, 2 * ROUNDS, **{name: by(name, kind) for name in choices})
        for name in ("present", "a tenth"):
            quotient = times["last"] / times[name]
            claims.append(Claim(f"{kind}: last against {name}", quotient, at_most=1, besides=listed(times)))
    print("imbalance: " + ", ".join(f"{name} {statistics.median(ratio):.3f}" for name, ratio in ratios.items()))
    return claims


def soak(spark: SparkSession, directory: Path) -> list[Claim]:
    """Runs many small batches, and compares time, files and memory late in the run with those before."""
    batches = int(os.environ.get("SOAK", "300"))
    source = write(directory / "in", (streams.zipf(50, 30, 1.0, seed=n) for n in range(batches)))
    stream = sl.stream(read(spark, source), "k", time="ts", partitioner="level", n_workers=2)
    job = stream.window("40 seconds", "10 seconds").agg(n=sl.count(), m=sl.max("v"))
    query = job.start(_written, f"{directory}/c", available_now=True)
    files, memory = [], []
    while query.isActive:
        query.awaitTermination(5)
        files.append(sum(len(names) for _, _, names in os.walk(f"{directory}/c/skewless")))
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    totals = [record["seconds"]["total"] for record in query.recent(batches)]
    quarter = len(totals) // 4
    early, late = statistics.median(totals[quarter : 2 * quarter]), statistics.median(totals[-quarter:])
    half = len(files) // 2
    first, second = max(files[:half]), max(files[half:])
    at_end, at_half = max(memory), memory[half]
    return [
        Claim(f"time of a batch, last quarter of {batches} against the second", late / early, at_most=1.25),
        Claim("files, second half against the first", second / first, at_most=1.2, besides=f"{second} files"),
        Claim("Python memory, end against half-way", at_end / at_half, at_most=1.1, besides=f"{at_end:.0f} MB"),
    ]


def listed(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {spent:.2f} s" for name, spent in seconds.items())


# name -> task slots, measurement
MEASUREMENTS: dict[str, tuple[int, Callable[[SparkSession, Path], list[Claim]]]] = {
    "counts": (4, counts),
    "waits": (16, waits),
    "drift": (4, drift),
    "sources": (4, sources),
    "planning": (4, planning),
    "soak": (2, soak),
}


def main() -> None:
    kept = True
    for name in sys.argv[1:] or MEASUREMENTS:
        slots, measured = MEASUREMENTS[name]
        spark = session(slots, STREAMING)
        with tempfile.TemporaryDirectory(prefix=f"skewless-{name}-", ignore_cleanup_errors=True) as directory:
            kept &= judged(f"{name}, {slots} task slots", measured(spark, Path(directory)))
        spark.stop()
    sys.exit(not kept)


if __name__ == "__main__":
    main()
