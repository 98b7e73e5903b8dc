"""The work of one task of a stateful batch: calls the user's function key by key, and writes output and states."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext

from skewless.arguments import require
from skewless.spark.state.changes import Changes
from skewless.spark.state.group_state import BatchTime, GroupState
from skewless.spark.state.groups import Groups, to_pandas, whole_runs
from skewless.spark.state.output import OutputFile, Results
from skewless.spark.task_startup import quick_start
from skewless.store import Entry, HotCopy, Manifest, Positions, Share, StateStore, Values, open_hot_copy
from skewless.table import RoutingTable

Function: TypeAlias = Callable[[Values, Any, GroupState], Any]
POSITION = "position"  # the name of the column with key positions, unless the user's rows have it
REPORT = pa.schema(
    {
        "worker": pa.int32(),
        "rows": pa.int64(),
        "keys": pa.int64(),
        "expired": pa.int64(),  # keys that timed out
        "output": pa.string(),  # path of the output file; NULL if there is no output
        "read": pa.int64(),  # bytes of durable state
        "receipt": pa.binary(),
        "positions": pa.list_(pa.int64()),  # of the hottest keys
        "counts": pa.list_(pa.int64()),  # of their rows
    }
)
HOTTEST = 4096  # keys that all tasks report together


class FunctionWithSetup(ABC):
    """A user's function with set-up and clean-up code that runs once a task."""

    @abstractmethod
    def running(self) -> AbstractContextManager[Function]:
        """Returns a context in which the function may be called."""
        ...


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names and types of the columns of a task's input and output."""

    keys: tuple[str, ...]
    position: str  # the name of the column with key positions
    rows: pa.Schema  # the user's rows, without the position
    output: pa.Schema
    hidden: tuple[str, ...] = ()  # columns of the key that are not the user's


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all tasks of a batch do: a callable for `mapInArrow`.

    There may be fewer tasks than workers: task i is for workers i, i + n_tasks, i + 2 n_tasks, ...
    """

    function: Function | FunctionWithSetup
    in_pandas: bool
    columns: Columns
    store: StateStore
    manifest: Manifest
    table: RoutingTable
    version: int
    clock: BatchTime
    output_directory: str
    hot_copies: str  # the name of their directory on local disks
    n_tasks: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Handles rows that are sorted by position; returns a report for each worker."""
        quick_start()
        number = TaskContext.get().partitionId()  # type: ignore[union-attr]  # not None in a task
        function = self.function
        running = function.running() if isinstance(function, FunctionWithSetup) else nullcontext(function)
        with ExitStack() as opened, running as call:
            works = [self._start(worker, opened) for worker in range(number, self.table.n_workers, self.n_tasks)]
            for chunk in whole_runs(batches, self.columns.position):
                positions, n_rows = chunk[self.columns.position].to_numpy().view(np.uint64), 0
                for work in works:
                    is_own = work.share.has(positions)
                    rows = chunk if is_own.all() else chunk.filter(pa.array(is_own))
                    n_rows += rows.num_rows
                    if rows.num_rows:
                        self._handle_rows(call, rows, work)
                require(n_rows == chunk.num_rows, f"task {number} got rows of keys that belong to other tasks' workers")
            reports = [self._finish(call, work) for work in works]
        yield pa.RecordBatch.from_pylist(reports, REPORT)

    def _start(self, worker: int, opened: ExitStack) -> Work:
        share, directory = Share.of(self.table, worker), local_directory(self.hot_copies, worker)
        output = OutputFile(self.output_directory, worker, self.columns.output)
        opened.callback(output.abandon)
        return Work(
            worker=worker,
            share=share,
            copy=opened.enter_context(open_hot_copy(directory, worker, self.store, self.manifest, share)),
            changes=Changes(self.store),
            output=output,
        )

    def _handle_rows(self, function: Function, rows: pa.Table, work: Work) -> None:
        """Calls the function for each key of these rows."""
        groups = Groups.of(rows, self.columns.position, self.columns.keys, self.store, self.columns.hidden)
        entries = work.copy.get(groups.positions, groups.texts)
        keys = self.store.key_codec.values(groups.texts)
        parts = groups.frames() if self.in_pandas else groups.tables()
        results = Results(self.columns.output, self.in_pandas)
        for position, key, text, entry, part in zip(
            groups.positions.tolist(), keys, groups.texts, entries, parts, strict=True
        ):
            if entry is not None and self._is_due(entry):
                work.timeouts_ended.add((position, text))
            state = GroupState(self.clock, None if entry is None else entry.state, False)
            results.add(function(key, part, state))
            work.changes.add(position, key, state, entry)
        work.output.add(results.table())
        work.positions.append(groups.positions)
        work.counts.append(np.diff(groups.bounds))

    def _handle_timeouts(self, function: Function, expired: list[Entry], work: Work) -> None:
        """Calls the function for each key that timed out."""
        results = Results(self.columns.output, self.in_pandas)
        no_rows = self.columns.rows.empty_table()
        rows = to_pandas(no_rows) if self.in_pandas else no_rows
        for entry in expired:
            state = GroupState(self.clock, entry.state, True)
            results.add(function(entry.key, rows, state))
            work.changes.add(entry.position, entry.key, state, entry)
        work.output.add(results.table())

    def _is_due(self, entry: Entry) -> bool:
        until = self.clock.expiring
        return until is not None and entry.timeout is not None and entry.timeout <= until

    def _expired(self, work: Work) -> list[Entry]:
        """Returns the keys that timed out and have no rows: a call with rows has ended the timeout of the others."""
        until = self.clock.expiring
        if until is None:
            return []
        expired = work.copy.expired(until)
        texts = self.store.key_codec.texts(self.store.key_codec.array([entry.key for entry in expired]))
        return [
            entry
            for entry, text in zip(expired, texts, strict=True)
            if (entry.position, text) not in work.timeouts_ended
        ]

    def _finish(self, function: Function, work: Work) -> dict[str, Any]:
        """Handles timeouts and writes the changes; returns the worker's report."""
        positions, counts = np.concatenate(work.positions), np.concatenate(work.counts)
        expired = self._expired(work)
        self._handle_timeouts(function, expired, work)
        receipt = self.store.write(work.changes.table(), work.share, self.version, work.worker)
        hot_positions, hot_counts = _hottest(positions, counts, HOTTEST // self.table.n_workers + 1)
        return {
            "worker": work.worker,
            "rows": int(counts.sum()),
            "keys": positions.size,
            "expired": len(expired),
            "output": work.output.close(),
            "read": work.copy.tally.bytes,
            "receipt": receipt.to_bytes(),
            "positions": hot_positions,
            "counts": hot_counts,
        }


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a task does for one of its workers."""

    worker: int
    share: Share
    copy: HotCopy
    changes: Changes
    output: OutputFile
    timeouts_ended: set[tuple[int, str]] = field(default_factory=set)  # keys that timed out but have rows
    positions: list[Positions] = field(default_factory=lambda: [np.empty(0, np.uint64)])  # of keys with rows
    counts: list[NDArray[np.int64]] = field(default_factory=lambda: [np.empty(0, np.int64)])  # of these rows


def _hottest(positions: Positions, counts: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the positions with the most rows, and their counts; keys that share a position count as one."""
    unique, inverse = np.unique(positions, return_inverse=True)
    rows = np.bincount(inverse, counts, unique.size).astype(np.int64)
    order = np.argsort(-rows, kind="stable")[:most]
    return unique[order].view(np.int64), rows[order]


def local_directory(name: str, worker: int) -> Path:
    """Returns a directory on a local disk of this machine, which Spark deletes when the application ends."""
    disks = os.environ.get("SPARK_LOCAL_DIRS", gettempdir()).split(",")
    return Path(disks[worker % len(disks)]) / name
