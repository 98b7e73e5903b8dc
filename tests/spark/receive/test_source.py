"""The receiver as a source of Spark: real sockets, restarts, killed processes, slow queries."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import measure, streams
from skewless.ingest.receiver import Receiver
from skewless.ingest.records import LineFormat
from tests.faults.harm import kill

pytest.importorskip("pyspark.sql.streaming.datasource", reason="receive needs pyspark 4.2")
pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]

SCHEMA = "word string, n bigint, ts timestamp"
N_BLOCKS = 4


def records(n: int, start: int = 0) -> list[dict[str, Any]]:
    words = streams.zipf(start + n, 300, 1.3).tolist()
    return [{"word": f"w{words[i]}", "n": i, "ts": "2026-01-01T00:00:00Z"} for i in range(start, start + n)]


def until(claim: Callable[[], bool], query: Any = None) -> None:
    deadline = time.monotonic() + 120
    while not claim():
        assert time.monotonic() < deadline
        assert query is None or query.exception() is None
        time.sleep(0.05)


class Running:
    """Starts a query that writes received rows, with the number of their partition, to Parquet."""

    def __init__(self, spark: SparkSession, path: Path, **params: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port: int = free.getsockname()[1]
        self.spark, self.path, self.address = spark, path, f"127.0.0.1:{port}"
        self.params = {"key": "word", "schema": SCHEMA, "port": port, "n_workers": N_BLOCKS, **params}

    def start(self, **trigger: Any) -> Any:
        events = sl.receive(self.spark, self.path / "log", **self.params)
        rows = events.withColumn("block", F.spark_partition_id())
        writing = rows.writeStream.format("parquet").option("checkpointLocation", str(self.path / "checkpoint"))
        writing = writing.trigger(**trigger) if trigger else writing
        query = writing.start(str(self.path / "out"))
        if "availableNow" not in trigger:
            until((self.path / "log" / "address").exists, query)
        return query

    def written(self) -> DataFrame:
        return self.spark.read.schema(f"{SCHEMA}, block int").parquet(str(self.path / "out"))

    def numbers(self) -> list[int]:
        return sorted(row.n for row in self.written().select("n").collect())

    def receiver(self) -> int:
        """Returns the process that holds the lock of the log."""
        lock = self.path / "log" / "lock"
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if any(file.readlink() == lock for file in (process / "fd").iterdir()):
                    return int(process.name)
            except OSError:
                continue
        raise AssertionError("no process holds the lock of the log")


def test_rows_arrive_once_in_balanced_blocks_across_restarts_and_kills(spark: SparkSession, tmp_path: Path) -> None:
    running = Running(spark, tmp_path)
    query = running.start()
    assert sl.send(records(8000), running.address, name="s") == 8000
    query.processAllAvailable()
    query.stop()

    first = running.written().collect()
    assert sorted(row.n for row in first) == [*range(8000)]
    assert {row.ts.isoformat() for row in first} == {"2026-01-01T00:00:00"}

    query, killed = running.start(), Event()

    def more() -> Iterator[dict[str, Any]]:
        for number, record in enumerate(records(20_000)):
            assert number < 14_000 or killed.wait(120)
            yield record

    sending = Thread(target=sl.send, args=(more(), running.address), kwargs={"name": "s"})
    sending.start()
    until(lambda: len(running.numbers()) > 8000, query)
    kill(running.receiver())
    killed.set()
    until(lambda: not query.isActive)
    assert query.exception() is not None

    query = running.start()
    sending.join()
    query.processAllAvailable()
    query.stop()
    assert running.numbers() == [*range(20_000)]


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_senders_wait_for_a_slow_query_whose_batches_are_balanced_blocks(spark: SparkSession, tmp_path: Path) -> None:
    running = Running(spark, tmp_path, pending=300_000, most_rows=6000)
    query = running.start(processingTime="1 hour")
    sending = Thread(target=sl.send, args=(records(60_000), running.address), kwargs={"name": "s"})
    sending.start()

    def logged() -> int:
        return sum(file.stat().st_size for file in (tmp_path / "log").glob("*.log"))

    until(lambda: logged() > 300_000, query)
    sending.join(timeout=2)
    assert sending.is_alive()
    assert logged() < 300_000 + 4 * (1 << 18)
    query.stop()

    query = running.start()
    sending.join()
    query.processAllAvailable()
    sizes = [progress.numInputRows for progress in query.recentProgress]
    query.stop()
    assert running.numbers() == [*range(60_000)]
    assert 0 < max(sizes) <= 6000


def logged_before(log: Path, n: int) -> None:
    """Sends records to a receiver that no query reads yet."""
    fields = [("word", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
    receiver = Receiver(
        log, LineFormat(pa.schema(fields), "word", text=False), ("127.0.0.1", 0), pending=1 << 30, most_rows=None
    )
    with closing(receiver):
        sl.send(records(n), receiver.address, name="s")


def test_a_batch_is_divided_by_algorithm_2(spark: SparkSession, tmp_path: Path) -> None:
    """Pending records become one batch of equal blocks that split few keys."""
    logged_before(tmp_path / "log", 10_000)
    running = Running(spark, tmp_path)
    assert running.start(availableNow=True).awaitTermination(120)
    rows = running.written().select("word", "block").collect()
    keys, blocks = streams.as_keys([row.word for row in rows]), np.array([row.block for row in rows], np.int32)
    m = measure(keys, blocks, N_BLOCKS)
    assert m.load.sum() == 10_000
    assert m.imbalance_ratio <= 1.001
    assert m.fragments <= m.keys + 1.5 * N_BLOCKS
    assert m.cardinality_imbalance <= 3


def test_received_rows_in_windows_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    logged_before(tmp_path / "log", 3000)
    events = sl.receive(spark, tmp_path / "log", key="word", schema=SCHEMA, n_workers=2)
    job = sl.stream(events, "word", time="ts", n_workers=2).window("1 minute").agg(mode="update", n=sl.count())
    query = job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), available_now=True)
    query.awaitTermination(120)
    found = {row.word: row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert found == Counter(record["word"] for record in records(3000))
