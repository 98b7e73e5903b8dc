"""A stream that runs: what it is asked, what it is told, and what it tells of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep, time
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from skewless.arrays import whole
from skewless.spark import engine
from skewless.spark.checkpoint import Checkpoint


class Query:
    """A running stream: Spark's own query, and what it tells of its batches."""

    def __init__(self, writer: DataStreamWriter, files: Checkpoint) -> None:
        self._files = files
        self._began = time()
        with self._naming():
            self._query: StreamingQuery = writer.start()

    @property
    def id(self) -> str:
        return self._query.id

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._query.isActive

    @property
    def status(self) -> dict[str, Any]:
        return self._query.status

    def exception(self) -> Exception | None:
        error = self._query.exception()
        if error is not None:
            self._name_file(error)
        return error

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        try:
            with self._naming():
                return self._query.awaitTermination(timeout)
        finally:
            if not self._query.isActive:
                engine.release(self._files.directory)

    def processAllAvailable(self) -> None:  # noqa: N802
        with self._naming():
            self._query.processAllAvailable()

    def stop(self) -> None:
        self._query.stop()
        engine.release(self._files.directory)

    def recent(self, most: int = 100) -> list[dict[str, Any]]:
        """The records of the last batches, the latest last."""
        return self._files.records()[-most:]

    def rescale(self, n_workers: int) -> None:
        """Have another number of workers from the next batch on, until the query ends or is told otherwise."""
        self._files.write("rescale.json", {"n_workers": whole("n_workers", n_workers, 1)})

    def follow(self, timeout: float | None = None) -> None:
        """Print a line for each batch as it ends, until the query does, or for so many seconds."""
        for record in self._batches(timeout):
            print(line(record), flush=True)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._name_file(error)
            raise

    def _name_file(self, error: Exception) -> None:
        """Say which file Spark could not write: of its own it does not."""
        file = self._files.unfinished(self._began)
        if file is not None:
            error.add_note(f"Spark could not finish {file}")

    def _batches(self, timeout: float | None) -> Iterator[dict[str, Any]]:
        until, told = None if timeout is None else monotonic() + timeout, -1
        while True:
            active = self._query.isActive
            for record in self.recent():
                if record["batch"] > told:
                    told = record["batch"]
                    yield record
            if not active or (until is not None and monotonic() > until):
                return
            sleep(0.2)


QUERIES: dict[str, Query] = {}  # by checkpoint, of this process


def free(checkpoint: str) -> None:
    """Let go of a checkpoint whose query has ended by itself."""
    query = QUERIES.get(checkpoint)
    if query is not None and not query.isActive:
        engine.release(checkpoint)
        del QUERIES[checkpoint]


def line(record: dict[str, Any]) -> str:
    """A batch in a line."""
    seconds, rows = record["seconds"]["total"], record["rows"]
    ratio = record["imbalance_ratio"]
    balance = "" if ratio is None else f", {record['workers']} workers, longest {ratio:.2f} of the mean"
    late = f", {record['late']:,} late" if record.get("late") else ""
    return f"batch {record['batch']}: {rows:,} rows in {seconds:.2f} s{late}{balance}; {record['decision']}"
