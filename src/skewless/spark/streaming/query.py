"""The handle to a running query, as users have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from time import monotonic, sleep, time
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from skewless.arguments import require, whole
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.engine import Engine
from skewless.table import RoutingTable


class Query:
    """A running query. It has the names of Spark's StreamingQuery, and records of its batches.

    >>> query = job.start("/out", "/checkpoint")  # doctest: +SKIP
    >>> query.follow(timeout=60)  # doctest: +SKIP
    batch 0: 120,000 rows in 1.52 s, 8 workers, largest load 1.03 x the mean; level; split key #1 over 3 workers...
    >>> query.stop()  # doctest: +SKIP
    """

    def __init__(self, writer: DataStreamWriter, engine: Engine) -> None:
        self._engine, self._files = engine, Checkpoint(engine.directory)
        self._began = time()
        with self._naming_file():
            self._query: StreamingQuery = writer.start()
        # Over Connect the engine runs in another process, which ends with the query and releases everything.
        self._watcher: Thread | None = None
        if isinstance(self._query, StreamingQuery):  # Classic
            self._watcher = Thread(target=self._watch, name="skewless-watch", daemon=True)
            self._watcher.start()

    @property
    def id(self) -> str:
        """Spark's id of the query, which stays the same for the life of the checkpoint."""
        return self._query.id

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether the query is running."""
        return self._query.isActive

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query."""
        return self._query.status

    def exception(self) -> Exception | None:
        """Returns the error that ended the query, or None.

        >>> query.exception()  # doctest: +SKIP
        """
        error = self._query.exception()
        if error is not None:
            self._name_file(error)
        return error

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802
        """Waits for the end of the query; raises the error that ended it, if there is one.

        timeout: how many seconds to wait at most; then it returns whether the query has ended.

        >>> job.start("/out", "/checkpoint", available_now=True).awaitTermination()  # doctest: +SKIP
        """
        try:
            with self._naming_file():
                has_ended = self._query.awaitTermination(timeout)
        except StreamingQueryException:
            self._wait_for_release()
            raise
        if has_ended is False:
            return False
        is_released = self._wait_for_release(timeout)
        return has_ended and is_released  # None without a timeout

    def processAllAvailable(self) -> None:  # noqa: N802
        """Waits until everything that the source has now is processed.

        >>> query.processAllAvailable()  # doctest: +SKIP
        """
        with self._naming_file():
            self._query.processAllAvailable()

    def stop(self) -> None:
        """Ends the query and its threads, and unlocks the checkpoint, so that `start` may be called again.

        >>> query.stop()  # doctest: +SKIP
        """
        self._query.stop()
        self._wait_for_release()

    def recent(self, most: int = 100) -> list[dict[str, Any]]:
        """Returns the records of the last batches, the latest last.

        most: how many records.

        A record has, among others: `batch`, `rows`, `late` (rows that were dropped), `keys` (about how many),
        `loads` (rows of each worker), `imbalance_ratio` (the longest load over the mean), `decision` (what routed the
        batch, and why), `moved` (the share of rows that this sent to another worker than before), `watermark` and
        `seconds`. Windows and interval joins count rows by Spark's `observe`, which before Spark 4.3 also counts those
        of failed task attempts: after a failure their `rows`, `late`, `loads` and `fragments` may be too high. Keyed
        state counts exactly, except the rows that are late. Results are exact in any case.

        >>> query.recent(1)[0]["imbalance_ratio"]  # doctest: +SKIP
        1.03
        """
        return self._files.records()[-most:]

    def rescale(self, n_workers: int) -> None:
        """Changes the number of workers from the next batch on, until the query ends or is rescaled again.

        n_workers: how many workers.

        Raises ValueError where there are none: if rows are left to Spark, and in joins, which plan grids of their own.
        So it does where the partitioner is a routing table, which has a fixed number of workers, and where the number
        follows the load: with n_workers=(least, most) and an interval.

        >>> query.rescale(16)  # doctest: +SKIP
        """
        router = self._engine.routing.router
        is_fixed, follows_load = isinstance(router, RoutingTable), self._engine.scaling.follows_load
        require(router is not None, "this query has no workers to rescale: Spark routes its rows, or a join its grids")
        require(not is_fixed, "a routing table has a fixed number of workers: start the query with another table")
        require(not follows_load, "the number of workers follows the load: start the query with one n_workers instead")
        self._files.write("rescale.json", {"n_workers": whole("n_workers", n_workers, 1)})

    def follow(self, timeout: float | None = None) -> None:
        """Prints a line for each batch as it is committed, until the query ends.

        timeout: seconds after which to stop printing; by default only the end of the query stops it.

        >>> query.follow(timeout=60)  # doctest: +SKIP
        """
        for record in self._batches(timeout):
            print(line(record), flush=True)

    def _watch(self) -> None:
        """Waits until the query has ended, then releases what the engine holds.

        The query may end before its last batch, which still writes to the checkpoint: `release` waits for it.
        """
        with suppress(Exception):  # `awaitTermination` and `exception` of this class give the error to the user
            self._query.awaitTermination()
        self._engine.end()

    def _wait_for_release(self, timeout: float | None = None) -> bool:
        """Waits until everything is released, if the query has ended; returns whether it is."""
        if self._watcher is None:
            return True
        if not self._engine.is_in_batch:  # a sink may stop its own query, and cannot wait for its own end
            self._watcher.join(timeout)
        return not self._watcher.is_alive()

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._name_file(error)
            raise

    def _name_file(self, error: Exception) -> None:
        """Adds the file that Spark could not write, which Spark itself leaves out."""
        file = self._files.unfinished(self._began)
        if file is not None:
            error.add_note(f"Spark could not finish {file}")

    def _batches(self, timeout: float | None) -> Iterator[dict[str, Any]]:
        until, last = None if timeout is None else monotonic() + timeout, -1
        while True:
            active = self._query.isActive
            for record in self.recent():
                if record["batch"] > last:
                    last = record["batch"]
                    yield record
            if not active or (until is not None and monotonic() > until):
                return
            sleep(0.2)


def line(record: dict[str, Any]) -> str:
    """Returns the record of a batch as a line of text."""
    seconds, rows = record["seconds"]["total"], record["rows"]
    ratio = record["imbalance_ratio"]
    balance = "" if ratio is None else f", {record['workers']} workers, largest load {ratio:.2f} x the mean"
    late = f", {record['late']:,} late" if record.get("late") else ""
    return f"batch {record['batch']}: {rows:,} rows in {seconds:.2f} s{late}{balance}; {record['decision']}"
