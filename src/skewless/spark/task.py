"""What one task of a stateful batch does: its workers' rows by key, the user's function, and what it changed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark import TaskContext

from skewless.arrays import require
from skewless.spark.groupstate import Clock, GroupState
from skewless.spark.haste import hastening
from skewless.store import Entry, HotCopy, Manifest, Places, Share, Store, Values, opened
from skewless.store.codec import changing
from skewless.store.files import naming, resolved
from skewless.table import RoutingTable

Function: TypeAlias = Callable[[Values, Any, GroupState], Any]
PLACE = "place"  # the name of our column, if the user has none of that name
REPORT = pa.schema(
    {
        "worker": pa.int32(),
        "rows": pa.int64(),
        "keys": pa.int64(),
        "expired": pa.int64(),  # keys that timed out
        "output": pa.string(),  # the file with the rows of output; NULL: there are none
        "read": pa.int64(),  # bytes of durable state
        "receipt": pa.binary(),
        "places": pa.list_(pa.int64()),  # of the hottest keys
        "counts": pa.list_(pa.int64()),  # of their rows
    }
)
HOTTEST = 4096  # keys that all tasks report together
_FULL = 20_000  # rows that are worked on at once, at the least


class Lasting(ABC):
    """A function with a beginning and an end, before the first key of a task and after its last."""

    @abstractmethod
    def running(self) -> AbstractContextManager[Function]: ...


@dataclass(frozen=True)
class Task:
    """The work of all tasks of a batch; each finds out for which workers it is. What `mapInArrow` is given."""

    function: Function | Lasting
    in_pandas: bool
    store: Store
    manifest: Manifest
    table: RoutingTable
    version: int
    clock: Clock
    keys: tuple[str, ...]
    place: str  # the name of the column with the places of keys
    rows: pa.Schema  # of the user's rows
    output: pa.Schema
    outputs: str  # the directory for files of it
    directory: str  # for hot copies, below the local disk
    tasks: int  # how many there are; if there are fewer than workers, task i is for workers i, i + tasks, ...

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows, sorted by place, become rows in files of output, and a report for each worker."""
        hastening()()
        number = TaskContext.get().partitionId()  # type: ignore[union-attr]  # there is one in a task
        with ExitStack() as opening, self._running() as function:
            works = [self._begun(worker, opening) for worker in range(number, self.table.n_workers, self.tasks)]
            for chunk in whole_runs(batches, self.place):
                places, found = chunk[self.place].to_numpy().view(np.uint64), 0
                for work in works:
                    mine = work.share.has(places)
                    rows = chunk if mine.all() else chunk.filter(pa.array(mine))
                    found += rows.num_rows
                    if rows.num_rows:
                        self._done(function, rows, work)
                require(found == chunk.num_rows, f"rows came to task {number} that are not of its workers")
            reports = [self._ended(function, work) for work in works]
        yield pa.RecordBatch.from_pylist(reports, REPORT)

    def _begun(self, worker: int, opening: ExitStack) -> Work:
        share, place = Share.of(self.table, worker), local_directory(self.directory, worker)
        copy = opening.enter_context(opened(place, worker, self.store, self.manifest, share))
        return Work(worker, share, copy, Changes(self.store), Written(self.outputs, worker, self.output))

    def _done(self, function: Function, rows: pa.Table, work: Work) -> None:
        groups = Groups.of(rows, self.place, self.keys, self.store)
        work.written.add(self._called(function, groups, work.copy, work.changes))
        work.places.append(groups.places)
        work.counts.append(np.diff(groups.bounds))

    def _ended(self, function: Function, work: Work) -> dict[str, Any]:
        places, counts = np.concatenate(work.places), np.concatenate(work.counts)
        late = self._expired(work.copy, places)
        work.written.add(self._timed_out(function, late, work.changes))
        receipt = self.store.write(work.changes.table(), work.share, self.version, work.worker)
        hottest = _hottest(places, counts, HOTTEST // self.table.n_workers + 1)
        sizes = int(counts.sum()), places.size, len(late)
        read = work.copy.tally.bytes
        report = (work.worker, *sizes, work.written.close(), read, receipt.to_bytes(), *hottest)
        return dict(zip(REPORT.names, report, strict=True))

    def _running(self) -> AbstractContextManager[Function]:
        return self.function.running() if isinstance(self.function, Lasting) else nullcontext(self.function)

    def _called(self, function: Function, groups: Groups, copy: HotCopy, changes: Changes) -> pa.Table:
        """The function's output for these keys."""
        known = copy.get(groups.places, groups.texts)
        keys = self.store.key_codec.values(groups.texts)
        parts = groups.frames() if self.in_pandas else groups.tables()
        results: list[Any] = []
        for place, key, entry, rows in zip(groups.places.tolist(), keys, known, parts, strict=True):
            state = GroupState(self.clock, None if entry is None else entry.state, False)
            self._collect(function(key, rows, state), results)
            changes.add(place, key, state, entry)
        return self._gathered(results)

    def _expired(self, copy: HotCopy, touched: Places) -> list[Entry]:
        """The keys whose time is over and that had no rows. Rows came first, and may have set another timeout."""
        until = self.clock.expiring
        if until is None:
            return []
        late = copy.expired(until)
        fresh = ~np.isin(np.array([entry.place for entry in late], np.uint64), touched)
        return [entry for entry, alone in zip(late, fresh.tolist(), strict=True) if alone]

    def _timed_out(self, function: Function, late: Sequence[Entry], changes: Changes) -> pa.Table:
        results: list[Any] = []
        nothing = self.rows.empty_table()
        empty = _frame(nothing) if self.in_pandas else nothing
        for entry in late:
            state = GroupState(self.clock, entry.state, True)
            self._collect(function(entry.key, empty, state), results)
            changes.add(entry.place, entry.key, state, entry)
        return self._gathered(results)

    def _collect(self, result: Any, results: list[Any]) -> None:
        """A function may return nothing, a table or frame, or several of them one by one."""
        if result is None:
            return
        if self.in_pandas and hasattr(result, "iloc"):
            results.append(result)
        elif not self.in_pandas and isinstance(result, pa.RecordBatch):
            results.append(pa.Table.from_batches([result]))
        elif not self.in_pandas and isinstance(result, pa.Table):
            results.append(result)
        else:
            wanted = "pandas frame" if self.in_pandas else "pyarrow table"
            several = isinstance(result, Iterable) and not isinstance(result, (str, bytes, dict))
            require(several, f"the function returns a {wanted}, several, or None, not {type(result).__name__}")
            for each in result:
                self._collect(each, results)

    def _gathered(self, results: list[Any]) -> pa.Table:
        """All results as one table of the output's schema."""
        if not results:
            return self.output.empty_table()
        if self.in_pandas:
            import pandas as pd  # only where it is asked for

            for frame in results:
                self._named(list(frame.columns))
            joined = pd.concat(results, ignore_index=True)
            return pa.Table.from_pandas(joined, self.output, preserve_index=False)
        try:
            return self._fitting(pa.concat_tables(results))
        except pa.ArrowInvalid:  # they are not all of the same types
            return pa.concat_tables([self._fitting(result) for result in results])

    def _fitting(self, table: pa.Table) -> pa.Table:
        self._named(table.column_names)
        return table.select(self.output.names).cast(self.output)

    def _named(self, names: list[str]) -> None:
        lacking = [name for name in self.output.names if name not in names]
        require(not lacking, f"the function's output lacks {', '.join(lacking)}; it has {', '.join(map(str, names))}")


@dataclass(frozen=True)
class Work:
    """What a task does for one of its workers."""

    worker: int
    share: Share
    copy: HotCopy
    changes: Changes
    written: Written
    places: list[Places] = field(default_factory=lambda: [np.empty(0, np.uint64)])  # of keys that had rows
    counts: list[NDArray[np.int64]] = field(default_factory=lambda: [np.empty(0, np.int64)])  # of these rows


class Written:
    """The output of a task, in a file that begins with the first rows, under a name that no other attempt has."""

    def __init__(self, directory: str, worker: int, schema: pa.Schema) -> None:
        self._directory, self._name = directory, f"{worker:05d}-{uuid4().hex}.parquet"
        self._schema = schema
        self._file: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        with naming(f"{self._directory}/{self._name}"):
            if self._file is None:
                files, path = resolved(self._directory)
                files.create_dir(path, recursive=True)
                self._file = pq.ParquetWriter(f"{path}/{self._name}", self._schema, filesystem=files)
            self._file.write_table(rows)

    def close(self) -> str | None:
        """Where it is; None if nothing was written."""
        if self._file is None:
            return None
        with naming(f"{self._directory}/{self._name}"):
            self._file.close()
        return f"{self._directory}/{self._name}"


def _hottest(places: Places, counts: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places with the most rows; where two keys are in one place, they count as one."""
    once, inverse = np.unique(places, return_inverse=True)
    rows = np.bincount(inverse, counts, once.size).astype(np.int64)
    order = np.argsort(-rows, kind="stable")[:most]
    return once[order].view(np.int64), rows[order]


@dataclass(frozen=True)
class Loading:
    """The work of tasks that write the states with which a query begins. What `mapInArrow` is given."""

    store: Store
    table: RoutingTable
    keys: tuple[str, ...]
    place: str
    version: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        hastening()()
        worker = TaskContext.get().partitionId()  # type: ignore[union-attr]
        found = list(batches)
        if not found:
            return
        rows = pa.Table.from_batches(found).combine_chunks()
        store = self.store
        parts = [rows.select(schema.names).cast(schema) for schema in (store.key, store.state)]
        places = rows[self.place].to_numpy().view(np.uint64)
        texts = store.key_codec.texts(parts[0])
        once = len(set(zip(places.tolist(), texts, strict=True))) == len(texts)
        require(once, "the initial state has a row for each key, not several for one")
        columns = [_struct(part) for part in parts]
        changes = [pa.array(places), *columns, pa.nulls(len(texts), pa.int64())]
        share = Share.of(self.table, worker)
        receipt = store.write(pa.table(changes, schema=store.schema), share, self.version, worker)
        yield pa.record_batch([pa.array([receipt.to_bytes()], pa.binary())], names=["receipt"])


def _struct(rows: pa.Table) -> pa.StructArray:
    arrays = [column.combine_chunks() for column in rows.columns]
    return pa.StructArray.from_arrays(arrays, fields=list(rows.schema))


class Changes:
    """What the function changed, to be written when the task ends."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._places: list[int] = []
        self._keys: list[Values] = []
        self._states: list[Values | None] = []
        self._timeouts: list[int | None] = []

    def add(self, place: int, key: Values, state: GroupState, before: Entry | None) -> None:
        """Note the state of a key after a call, if it differs from what was there before."""
        value, timeout = state._value, state._timeout
        if not state._touched and timeout == (None if before is None else before.timeout):
            return
        if before is None and value is None and timeout is None:
            return
        self._places.append(place)
        self._keys.append(key)
        self._states.append(value)
        self._timeouts.append(timeout)

    def table(self) -> pa.Table:
        columns = [
            pa.array(self._places, pa.uint64()),
            self._store.key_codec.array(self._keys),
            self._store.state_codec.array(self._states),
            pa.array(self._timeouts, pa.int64()),
        ]
        return pa.table(columns, schema=self._store.schema)


@dataclass(frozen=True)
class Groups:
    """Rows by key: those of key number i are rows bounds[i] to bounds[i + 1]."""

    rows: pa.Table
    places: Places  # of each key
    texts: list[str]
    bounds: list[int]

    @classmethod
    def of(cls, rows: pa.Table, place: str, keys: Sequence[str], store: Store) -> Groups:
        """Groups of rows that are sorted by place."""
        places = rows[place].to_numpy().view(np.uint64)
        rows = rows.drop_columns([place])
        named = rows.select(list(keys)).cast(store.key)
        is_first = np.append(True, places[1:] != places[:-1])
        if changing(named.columns, ~is_first).any():
            # Two keys have one hash, or equal keys look different, as NaN does: their texts decide.
            _, numbers = np.unique(np.array(store.key_codec.texts(named)), return_inverse=True)
            order = np.lexsort((numbers, np.cumsum(is_first)))
            rows, named, numbers = rows.take(pa.array(order)), named.take(pa.array(order)), numbers[order]
            is_first |= np.append(True, numbers[1:] != numbers[:-1])
        first = np.flatnonzero(is_first)
        texts = [str(text) for text in store.key_codec.texts(named.take(pa.array(first)))]
        return cls(rows.combine_chunks(), places[first], texts, [*first.tolist(), rows.num_rows])

    def tables(self) -> Iterator[pa.Table]:
        for start, stop in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            yield self.rows.slice(start, stop - start)

    def frames(self) -> Iterator[Any]:
        whole = _frame(self.rows)  # a slice of a frame is several times faster than a frame of a slice
        for start, stop in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            yield whole.iloc[start:stop].reset_index(drop=True)


def _frame(rows: pa.Table) -> Any:
    """As PySpark gives frames: times are local ones, without a zone."""
    frame = rows.to_pandas(date_as_object=True)
    for name, column in zip(rows.column_names, rows.schema.types, strict=True):
        if pa.types.is_timestamp(column) and column.tz is not None:
            frame[name] = frame[name].dt.tz_localize(None)
    return frame


def whole_runs(batches: Iterator[pa.RecordBatch], place: str) -> Iterator[pa.Table]:
    """Rows that are sorted by place, in tables of some length; a place is in one of them only."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch[place].null_count:  # the row that every worker gets
            batch = batch.filter(pc.is_valid(batch[place]))
        if batch.num_rows == 0:
            continue
        waiting.append(batch)
        count += batch.num_rows
        if count < _FULL:
            continue
        rows = pa.Table.from_batches(waiting).combine_chunks()
        places = rows[place].to_numpy()
        end = int(np.searchsorted(places, places[-1]))  # the last run may go on
        if end:
            yield rows.slice(0, end)
        waiting, count = rows.slice(end).to_batches(), rows.num_rows - end
    if count:
        yield pa.Table.from_batches(waiting).combine_chunks()


def local_directory(name: str, worker: int) -> Path:
    """A directory on the local disk of this machine, which Spark deletes when the application ends."""
    disks = os.environ.get("SPARK_LOCAL_DIRS", gettempdir()).split(",")
    return Path(disks[worker % len(disks)]) / name
