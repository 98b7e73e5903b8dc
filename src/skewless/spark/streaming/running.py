"""The parts of a running query that live in one process: its lock, its learner and its threads."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from threading import Lock
from typing import Any

from skewless.partitioner import Partitioner
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.commit import name_of
from skewless.spark.streaming.learner import Learner, TableLearner
from skewless.spark.streaming.sources import SourceLearner
from skewless.table import RoutingTable


@dataclass(frozen=True)
class StreamRouting:
    """What routes the rows of a stream, and what it learns from."""

    router: Partitioner[Any, Any] | RoutingTable | None  # None: Spark distributes the rows
    row_by_row: bool = False  # does the partitioner route each row itself (`sl.Exact`), or plan tables?
    statistics: str | float = "last"  # "last", "present", or the share of the present batch to look at

    def learner(self, files: Checkpoint) -> Learner | None:
        """Returns the learner that plans each batch; None if Spark distributes the rows."""
        if isinstance(self.router, Partitioner) and self.row_by_row:
            return SourceLearner(files, self.router)
        return None if self.router is None else TableLearner(files, self.router)


class RunningQuery:
    """Owns the lock of a checkpoint, the learner and the background thread of a query, until it is closed.

    Everything else that a query needs is in files, so that another process can take over.
    """

    def __init__(self, directory: str, routing: StreamRouting) -> None:
        self.files = Checkpoint(directory)
        with ExitStack() as owned:
            self.lock = owned.enter_context(closing(self.files.lock()))
            self.committed = max(self.files.numbered("commits"), default=-1)
            if self.committed >= 0:
                self._repeat_record()
            self.background: Background[Any] = owned.enter_context(closing(Background("skewless-merge")))
            self.learner = routing.learner(self.files)
            if self.learner is not None:
                owned.enter_context(closing(self.learner))
            self._owned, self._closing = owned.pop_all(), Lock()

    def close(self) -> None:
        """Ends the threads, then releases the lock. May be called again, also from another thread."""
        with self._closing:
            self._owned.close()

    def _repeat_record(self) -> None:
        """Appends the record of the last batch, if the query died between its commit and its record."""
        records = self.files.records()
        if not records or records[-1]["batch"] < self.committed:
            self.files.record(self.files.read(name_of(self.committed))["record"])
