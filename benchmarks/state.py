"""A running count per key in a stream: rows per second, beside Spark's own ways on RocksDB in the same run.

Three queries run side by side on files of the same rows. In every round each of them gets two files, one after the
other, while the others rest. What counts is the time that Spark says the second one took: Spark ends Python workers
that have been idle for a minute, and the first file starts them again.
`python -m benchmarks.state uniform` or `zipf`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructField, StructType

import skewless.spark as sl
from benchmarks.spark import STREAMING, Claim, judged, ratio, session
from skewless import streams

ROWS, KEYS, WORKERS, ROUNDS = 100_000, 10_000, 8, 3
BOUND = 10.0
OUTPUT, STATE = "k string, n long", "n long"


def in_arrow(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
    n = rows.num_rows + (state.get[0] if state.exists else 0)
    state.update((n,))
    return pa.table({"k": [key[0]], "n": [n]})


def in_pandas(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    n = sum(len(frame) for frame in frames) + (state.get[0] if state.exists else 0)
    state.update((n,))
    yield pd.DataFrame({"k": [key[0]], "n": [n]})


class Count(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._n = handle.getValueState("n", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        n = sum(len(frame) for frame in rows) + ((self._n.get() or (0,))[0] if self._n.exists() else 0)
        self._n.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


def discard(df: DataFrame, batch: int) -> None:
    df.write.format("noop").mode("overwrite").save()


def started(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The queries, by name; each reads the files of the directory of its name."""
    queries: dict[str, Any] = {}
    for name in ("skewless", "applyInPandasWithState", "transformWithStateInPandas"):
        source, checkpoint = folder / name, str(folder / f"{name} checkpoint")
        source.mkdir()
        events = spark.readStream.schema("k string, v long").parquet(str(source))
        if name == "skewless":
            stream = sl.stream(events, "k", n_workers=WORKERS, partitioner="kip")
            job = stream.applyInArrowWithState(in_arrow, OUTPUT, STATE)
            queries[name] = job.start(discard, checkpoint)._query
            continue
        groups = events.groupBy("k")
        if name == "applyInPandasWithState":
            found = groups.applyInPandasWithState(in_pandas, OUTPUT, STATE, "update", "NoTimeout")
        else:
            found = groups.transformWithStateInPandas(Count(), OUTPUT, "update", "None")
        writer = found.writeStream.format("noop").outputMode("update")
        queries[name] = writer.option("checkpointLocation", checkpoint).start()
    return queries


def main() -> None:
    kind = sys.argv[1] if len(sys.argv) > 1 else "uniform"
    spark = session(2, STREAMING | {"spark.sql.shuffle.partitions": str(WORKERS)})
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        queries = started(spark, folder)
        speeds: dict[str, list[float]] = {name: [] for name in queries}
        exponent = 0.0 if kind == "uniform" else 1.2
        for number in range(ROUNDS):
            for name, query in queries.items():
                for part in range(2):
                    ranks = streams.zipf(ROWS, KEYS, exponent, seed=2 * number + part)
                    rows = pa.table({"k": [f"key {rank}" for rank in ranks.tolist()], "v": np.arange(ROWS)})
                    pq.write_table(rows, folder / "new")
                    (folder / "new").rename(folder / name / f"{number}-{part}.parquet")
                    query.processAllAvailable()
                spent = [p.durationMs["triggerExecution"] for p in query.recentProgress if p.numInputRows][-2:]
                print(f"round {number}: {name} took {spent} ms", file=sys.stderr, flush=True)
                speeds[name].append(1000 * ROWS / spent[1])
        for query in queries.values():
            query.stop()
    title = f"{ROWS:,} rows, {KEYS:,} {kind} keys a batch, {WORKERS} workers: rows a second, median of {ROUNDS} batches"
    mine = speeds.pop("skewless")
    claims = [
        Claim(
            f"skewless / {name}",
            ratio(mine, theirs),
            at_least=BOUND,
            besides=f"{median(mine):,.0f} rows a second against {median(theirs):,.0f}",
        )
        for name, theirs in speeds.items()
    ]
    kept = judged(title, claims)
    spark.stop()
    sys.exit(not kept)


if __name__ == "__main__":
    main()
