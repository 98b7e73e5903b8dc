"""A receiver: takes records from senders, logs them, and hands them on in blocks that are balanced by key."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from threading import Condition, Thread
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from skewless.accumulator import Accumulated, Accumulator, divided
from skewless.arrays import Keys, require
from skewless.journal import Journal, Pages
from skewless.streams import as_keys

CHUNK = 1 << 18  # bytes that are taken from a socket at once, and logged together
LONGEST = 1 << 24  # bytes of a line
NAME = 200  # bytes of a sender's name
MOST_ROWS = 10_000  # rows of a frame, and of what is handed on at once


class Block(NamedTuple):
    """Some rows of the log: of the frame at addresses[i], counts[i] rows, which follow one another in `rows`."""

    directory: str
    addresses: NDArray[np.int64]
    counts: NDArray[np.int64]
    rows: NDArray[np.int32]


def read(block: Block, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a block, in the order in which they came."""
    pieces = np.split(block.rows, np.cumsum(block.counts)[:-1])
    held, n_held = list[pa.RecordBatch](), 0
    with Pages(block.directory) as pages:
        for address, rows in zip(block.addresses.tolist(), pieces, strict=True):
            held.append(_records(pages.frame(address).content, schema).take(pa.array(rows)))
            n_held += rows.size
            if n_held >= MOST_ROWS:
                yield from pa.Table.from_batches(held, schema).combine_chunks().to_batches()
                held, n_held = [], 0
    if held:
        yield from pa.Table.from_batches(held, schema).combine_chunks().to_batches()


def _records(content: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(content), schema)


@dataclass(frozen=True)
class Lines:
    """How lines become rows: as text, the only column; or as JSON objects with these fields, others left out."""

    schema: pa.Schema
    key: str
    text: bool

    def parsed(self, lines: bytes, n_lines: int) -> pa.RecordBatch:
        """One row for each line, or ValueError."""
        if self.text:
            values = pa.array(lines[:-1].split(b"\n"), pa.binary()).cast(pa.string())
            return pa.record_batch([values], schema=self.schema)
        table = pa.json.read_json(
            BytesIO(lines),
            pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            pa.json.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore"),
        )
        require(table.num_rows == n_lines, "a line is one JSON object")
        # Fields that no line has stand where they should; a field that may not be missing is not.
        return table.select(self.schema.names).cast(self.schema).combine_chunks().to_batches()[0]

    def taken(self, lines: bytes) -> tuple[list[pa.RecordBatch], str]:
        """Rows of all lines up to the first that cannot be read; and why that cannot."""
        n_lines = lines.count(b"\n")
        try:
            return [self.parsed(lines, n_lines)], ""
        except (ValueError, TypeError) as error:
            if n_lines == 1:
                return [], str(error)
        half = len(b"\n".join(lines.split(b"\n", n_lines // 2)[:-1])) + 1
        first, why = self.taken(lines[:half])
        if why:
            return first, why
        second, why = self.taken(lines[half:])
        return first + second, why

    def keys(self, records: pa.RecordBatch) -> Keys:
        return as_keys(records.column(self.key))


@dataclass
class Gathering:
    """A batch that comes in: where its frames are, and Prompt's accumulator, which has its keys in order."""

    start: int
    end: int
    accumulator: Accumulator
    began: float = field(default_factory=time.monotonic)
    addresses: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    rows: int = 0
    is_full: bool = False  # what comes next is of another batch
    batch: Accumulated | None = None  # once it is released

    def add(self, address: int, end: int, keys: Keys) -> None:
        opened, closes = self.accumulator.interval
        now = min(opened + int(1000 * (time.monotonic() - self.began)), closes - 1)
        self.accumulator.add(keys, np.full(keys.size, now, np.int64))
        self.addresses.append(address)
        self.counts.append(keys.size)
        self.rows += keys.size
        self.end = end

    def released(self) -> Accumulated:
        if self.batch is None:
            self.batch = self.accumulator.release()
        return self.batch

    def following(self, start: int) -> Gathering:
        """The next batch, expected to be like this one."""
        batch, spent = self.released(), int(1000 * (time.monotonic() - self.began))
        tuples, keys = max(batch.n_tuples, 1), max(batch.n_keys, 1)
        return Gathering(start, start, Accumulator((0, max(spent, 1)), expected_tuples=tuples, expected_keys=keys))


class Receiver:
    """Listens for senders, logs what they send before it says so, and cuts the log into batches of balanced blocks.

    Each connection has one sender, who says his name, hears how many of his lines are safe already, and sends the next
    ones; after each piece that is on the disk he hears how many are. So a sender that begins anew after a crash, of
    himself or of the receiver, goes on where the log ends: no line is lost and none is there twice. A line that cannot
    be read is answered by a sentence, and the connection ends.

    Offsets are addresses in the log, so that a batch can be had again. Of what comes in, Prompt's accumulator keeps the
    keys in order (algorithm 1) until the batch is asked for; its blocks are cut by algorithm 2. A batch that was not
    gathered here, but by one that crashed, is gathered again from the log.

    pending: bytes of the log that may wait for batches; beyond, nothing is read from senders until a batch is done.
    most_rows: of a batch.
    """

    def __init__(
        self, directory: str | Path, lines: Lines, address: tuple[str, int], *, pending: int, most_rows: int | None
    ) -> None:
        self.lines, self.pending, self.most_rows = lines, pending, most_rows
        self._frame_rows = min(MOST_ROWS, most_rows or MOST_ROWS)
        holds = {"fields": str(lines.schema), "key": lines.key, "lines": "text" if lines.text else "JSON"}
        self._journal = Journal(directory, holds)
        self._changed = Condition()
        self._closed = False
        self._done = self._journal.begin
        self._target: int | None = None
        self._released: Gathering | None = None
        at = self._journal.end
        self._gathering = Gathering(at, at, Accumulator((0, 1000), expected_tuples=1000, expected_keys=100))
        self._senders: dict[str, socket.socket] = {}
        self._threads: list[Thread] = []
        try:
            self._listener = socket.create_server(address)
        except OSError as error:
            self._journal.close()
            raise ValueError(f"cannot listen on {address[0]}:{address[1]}: {error}") from error
        host, port = self._listener.getsockname()[:2]
        self.address = f"{host}:{port}"
        self._published = Path(directory) / "address"
        self._published.write_text(self.address)
        self._start(self._accept)

    @property
    def begin(self) -> int:
        return self._journal.begin

    @property
    def end(self) -> int:
        return self._journal.end

    def until(self, target: int) -> None:
        """Give no batch beyond this address."""
        self._target = target

    def latest(self, start: int, most: int | None) -> int:
        """Where the next batch ends, of at most so many rows, if the one before ended at `start` and is done."""
        with self._changed:
            require(not self._journal.broken, self._journal.broken)
            self._check(start)
            end = self._journal.end
            self._done = max(self._done, start)
            self._changed.notify_all()
            found = self._next(self._journal.past_notes(start), end, most)
            return found if found > self._journal.past_notes(start) else start

    def _check(self, *addresses: int) -> None:
        begin, end = self._journal.begin, self._journal.end
        for address in addresses:
            where = f"the log in {self._journal.directory} has what is between {begin} and {end}, not {address}"
            require(begin <= address <= end, f"{where}: it is not the log of this checkpoint")

    def _next(self, start: int, end: int, most: int | None) -> int:
        limit = end if self._target is None else min(end, self._target)
        gathered = self._gathering
        if start < gathered.start:
            return self._scanned(start, min(gathered.start, limit), most)
        fits = gathered.end <= limit and (gathered.rows <= most if most else not gathered.is_full)
        if start == gathered.start and fits:
            if gathered.rows:
                self._gathering, self._released = gathered.following(end), gathered
            return gathered.end
        # What was gathered is not what is asked for: it will be gathered from the log.
        self._gathering = gathered.following(end)
        return self._scanned(start, limit, most)

    def _scanned(self, start: int, limit: int, most: int | None) -> int:
        """Where a batch of at most so many rows ends; there is one frame in it at the least."""
        if most is None:
            return max(start, limit)
        rows, end = 0, start
        for frame in self._journal.frames(start, limit):
            rows += frame.notes["rows"]
            if rows > most and end > start:
                break
            end = frame.end
        return end

    def blocks(self, start: int, end: int, n_workers: int) -> list[Block]:
        """The batch between two addresses, as blocks of equal size with few keys in more than one."""
        self._check(start, end)
        gathered = self._released
        if gathered is None or (gathered.start, gathered.end) != (self._journal.past_notes(start), end):
            gathered = self._replayed(start, end)
        counts = np.array(gathered.counts, np.int64)
        addresses = np.array(gathered.addresses, np.int64)
        starts = np.cumsum(counts) - counts
        workers = divided(gathered.released(), n_workers)
        by_block = np.split(np.argsort(workers, kind="stable"), np.cumsum(np.bincount(workers))[:-1])
        found = []
        for tuples in by_block:
            if tuples.size:
                frame = np.searchsorted(starts, tuples, side="right") - 1
                used, n_used = np.unique(frame, return_counts=True)
                rows = (tuples - starts[frame]).astype(np.int32)
                found.append(Block(str(self._journal.directory), addresses[used], n_used, rows))
        return found

    def _replayed(self, start: int, end: int) -> Gathering:
        """A batch once more, from the log."""
        with Pages(self._journal.directory) as pages:
            frames = [*pages.frames(start, end)]
        rows = sum(frame.notes["rows"] for frame in frames)
        accumulator = Accumulator((0, 1000), expected_tuples=max(rows, 1), expected_keys=max(rows // 10, 1))
        again = Gathering(start, end, accumulator)
        for frame in frames:
            again.add(frame.address, end, self.lines.keys(_records(frame.content, self.lines.schema)))
        return again

    def forget(self, until: int) -> None:
        """What lies before this address will not be asked for again."""
        with self._changed:
            self._done = max(self._done, until)
            self._journal.forget(until)
            self._changed.notify_all()

    def close(self) -> None:
        self._published.unlink(missing_ok=True)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            sockets = [self._listener, *self._senders.values()]
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(timeout=10)
        with self._changed:
            self._journal.close()

    def _start(self, work: Callable[..., None], *given: socket.socket) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(Thread(target=work, args=given, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                time.sleep(0.1)  # closed; or there are too many connections, and one may end
            else:
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            try:
                self._take(connection)
            except ValueError as error:
                connection.sendall(f"error: {error}\n".encode())
                # To close while there is more to read would take the answer back.
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(1.0)
                deadline = time.monotonic() + 5.0
                while time.monotonic() < deadline and connection.recv(CHUNK):
                    pass

    def _take(self, connection: socket.socket) -> None:
        """All that one sender sends."""
        data = b""
        while b"\n" not in data:
            require(len(data) <= NAME, f"the first line is the sender's name, of 1 to {NAME} bytes")
            received = connection.recv(NAME)
            if not received:
                return
            data += received
        first, _, data = data.partition(b"\n")
        name = first.decode()
        require(0 < len(first) <= NAME, f"the first line is the sender's name, of 1 to {NAME} bytes")
        with self._changed:
            # One who comes again has given up his last connection, whatever that still holds.
            before = self._senders.get(name)
            if before is not None:
                with suppress(OSError):
                    before.shutdown(socket.SHUT_RDWR)
            self._senders[name] = connection
            safe = self._journal.tallies.get(name, 0)
        connection.sendall(b"%d\n" % safe)
        try:
            while self._lets_through():
                lines, newline, data = data.rpartition(b"\n")
                if newline:
                    self._log(name, connection, lines + newline)
                require(len(data) <= LONGEST, f"a line is at most {LONGEST} bytes long")
                received = connection.recv(CHUNK)
                if not received:
                    return
                data += received
        finally:
            with self._changed:
                if self._senders.get(name) is connection:
                    del self._senders[name]

    def _lets_through(self) -> bool:
        """Wait while more of the log is pending than may be; False when the receiver closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._journal.end - self._done <= self.pending)
            return not self._closed

    def _log(self, name: str, connection: socket.socket, lines: bytes) -> None:
        """Put lines on the disk, then say so."""
        taken, why = self.lines.taken(lines)
        for records in taken:
            for at in range(0, records.num_rows, self._frame_rows):
                piece = records.slice(at, self._frame_rows)
                keys = self.lines.keys(piece)
                content = piece.serialize().to_pybytes()
                with self._changed:
                    if self._closed or self._senders.get(name) is not connection:
                        return
                    safe = self._journal.tallies.get(name, 0) + piece.num_rows
                    address = self._journal.append(content, piece.num_rows, name, safe)
                    self._gather(address, keys)
                connection.sendall(b"%d\n" % safe)
        if why:
            with self._changed:
                number = self._journal.tallies.get(name, 0) + 1
            raise ValueError(f"line {number} cannot be read: {why}")

    def _gather(self, address: int, keys: Keys) -> None:
        batch = self._gathering
        if self.most_rows is not None and batch.rows + keys.size > self.most_rows:
            batch.is_full = True
        if not batch.is_full:
            batch.add(address, self._journal.end, keys)
