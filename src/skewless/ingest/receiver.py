"""Receives records from senders, logs them, and forms batches of blocks that are balanced by key."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread

import numpy as np

from skewless.arguments import require
from skewless.arrays import Keys
from skewless.filesystem import resolve, write_atomically
from skewless.ingest.accumulator import Accumulated, Accumulator, divided
from skewless.ingest.journal import Journal, JournalReader
from skewless.ingest.records import MOST_ROWS, Block, LineFormat, decode

CHUNK = 1 << 18  # bytes read from a socket at once, and logged together
LINE_BYTES = 1 << 24  # longest line
NAME_BYTES = 200  # longest name of a sender


@dataclass
class IncomingBatch:
    """A batch that is still arriving: the offsets of its frames, and Prompt's accumulator of its keys."""

    start: int
    end: int
    accumulator: Accumulator  # its interval starts at 0, with the first frame
    offsets: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)  # in ms
    rows: int = 0
    is_full: bool = False  # later rows belong to the next batch
    released: Accumulated | None = None

    def add(self, offset: int, end: int, now: int, keys: Keys) -> None:
        """Adds the rows of a frame."""
        self.offsets.append(offset)
        self.counts.append(keys.size)
        self.times.append(now)
        # A batch may take longer than expected, and the system clock may be set back.
        _, end_of_interval = self.accumulator.interval
        time_in_batch = min(max(now - self.times[0], 0), end_of_interval - 1)
        self.accumulator.add(keys, np.full(keys.size, time_in_batch, np.int64))
        self.rows += keys.size
        self.end = end

    def release(self) -> Accumulated:
        """Returns the finished batch."""
        if self.released is None:
            self.released = self.accumulator.release()
        return self.released

    def following(self, start: int) -> IncomingBatch:
        """Returns the next batch, which is expected to be about as large as this one."""
        batch = self.release()
        return IncomingBatch(start, start, _accumulator(batch.n_tuples, batch.n_keys, self.times))


def _accumulator(n_tuples: int, n_keys: int, times: list[int]) -> Accumulator:
    duration = times[-1] - times[0] if times else 0
    return Accumulator((0, max(duration, 0) + 1), expected_tuples=max(n_tuples, 1), expected_keys=max(n_keys, 1))


class Receiver:
    """Listens for senders, logs their records before acknowledging them, and forms batches of balanced blocks.

    A connection serves one sender. The sender sends its name, receives the number of its lines already in the log, and
    sends the following lines; after each piece written to disk it receives the new number. So a sender continues where
    the log ends after either side crashed: no line is lost or doubled. A line that cannot be parsed is answered with
    an error message, and the connection is closed.

    Batches end at offsets in the log, so that a batch can be read again. Prompt's accumulator sorts the keys of the
    incoming batch (algorithm 1) until Spark asks for it; algorithm 2 divides it into blocks. After a crash, a batch is
    accumulated again from the log.

    directory: the log.
    lines: how lines are parsed.
    address: host and port to listen on; port 0 takes a free one.
    pending: bytes of the log that may wait for batches; beyond that, senders are not read until a batch is done.
    most_rows: the most rows of a batch; no limit if None.
    """

    def __init__(
        self, directory: str | Path, lines: LineFormat, address: tuple[str, int], *, pending: int, most_rows: int | None
    ) -> None:
        self.lines, self.pending, self.most_rows = lines, pending, most_rows
        self._frame_rows = min(MOST_ROWS, most_rows or MOST_ROWS)
        holds = {"fields": str(lines.schema), "key": lines.key, "lines": "text" if lines.text else "JSON"}
        self._journal = Journal(directory, holds)
        self._changed = Condition()
        self._closed = False
        self._done = self._journal.begin  # batches before this offset are finished
        self._target: int | None = None
        self._last_batch: IncomingBatch | None = None
        end = self._journal.end
        self._incoming = IncomingBatch(end, end, _accumulator(1000, 100, []))
        self._connections: set[socket.socket] = set()
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
        write_atomically(*resolve(str(self._published)), self.address.encode())
        self._start(self._accept)

    @property
    def begin(self) -> int:
        """The first offset in the log."""
        return self._journal.begin

    @property
    def end(self) -> int:
        """The offset after the last record in the log."""
        return self._journal.end

    def stop_at(self, target: int) -> None:
        """Ends all batches at or before this offset."""
        self._target = target

    def latest(self, start: int, most: int | None) -> int:
        """Returns where the batch that begins at `start` ends, with at most `most` rows; earlier batches are done."""
        with self._changed:
            require(not self._journal.broken, self._journal.broken)
            self._check_offsets(start)
            end = self._journal.end
            self._done = max(self._done, start)
            self._changed.notify_all()
            first = self._journal.skip_description(start)
            batch_end = self._end_of_batch(first, end, most)
            return batch_end if batch_end > first else start

    def _check_offsets(self, *offsets: int) -> None:
        """Refuses offsets that are not in the log, such as those of another checkpoint."""
        begin, end = self._journal.begin, self._journal.end
        for offset in offsets:
            outside = f"the log in {self._journal.directory} has offsets from {begin} to {end}, not {offset}"
            require(begin <= offset <= end, f"{outside}: it is not the log of this checkpoint, which needs its own")

    def _end_of_batch(self, start: int, end: int, most: int | None) -> int:
        """Returns where the batch that begins at `start` ends, and accumulates later rows in a new one.

        end: that of the log.
        """
        limit = end if self._target is None else min(end, self._target)
        incoming = self._incoming
        if start < incoming.start:
            return self._scan(start, min(incoming.start, limit), most)
        fits = incoming.end <= limit and (incoming.rows <= most if most else not incoming.is_full)
        if start == incoming.start and fits:
            if incoming.rows:
                self._incoming, self._last_batch = incoming.following(end), incoming
            return incoming.end
        # The accumulated batch is not the requested one, which will be accumulated from the log.
        self._incoming = incoming.following(end)
        return self._scan(start, limit, most)

    def _scan(self, start: int, limit: int, most: int | None) -> int:
        """Returns where a batch of at most `most` rows ends; it has at least one frame."""
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
        """Returns the batch between two offsets as blocks of equal size that split few keys."""
        self._check_offsets(start, end)
        batch = self._last_batch
        if batch is None or (batch.start, batch.end) != (self._journal.skip_description(start), end):
            batch = self._replay(start, end)
        counts = np.array(batch.counts, np.int64)
        offsets = np.array(batch.offsets, np.int64)
        starts = np.cumsum(counts) - counts
        workers = divided(batch.release(), n_workers)
        by_block = np.split(np.argsort(workers, kind="stable"), np.cumsum(np.bincount(workers))[:-1])
        blocks = []
        for tuples in by_block:
            if tuples.size:
                frame = np.searchsorted(starts, tuples, side="right") - 1
                used, n_used = np.unique(frame, return_counts=True)
                rows = (tuples - starts[frame]).astype(np.int32)
                directory = str(self._journal.directory)
                blocks.append(Block(directory=directory, offsets=offsets[used], counts=n_used, rows=rows))
        return blocks

    def _replay(self, start: int, end: int) -> IncomingBatch:
        """Accumulates a batch again from the log."""
        with JournalReader(self._journal.directory) as journal:
            frames = [*journal.frames(start, end)]
        rows = sum(frame.notes["rows"] for frame in frames)
        times = [frame.notes["time"] for frame in frames]
        batch = IncomingBatch(start, end, _accumulator(rows, rows // 10, times))
        for frame in frames:
            keys = self.lines.keys(decode(frame.content, self.lines.schema))
            batch.add(frame.offset, end, frame.notes["time"], keys)
        return batch

    def delete_before(self, offset: int) -> None:
        """Deletes the files of the log that end at or before this offset: their batches are done."""
        with self._changed:
            self._done = max(self._done, offset)
            self._journal.delete_before(offset)
            self._changed.notify_all()

    def close(self) -> None:
        """Closes all connections and the log."""
        self._published.unlink(missing_ok=True)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            sockets = [self._listener, *self._connections]
        for open_socket in sockets:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()
        for thread in self._threads:
            thread.join(timeout=10)
        with self._changed:
            self._journal.close()

    def _start(self, work: Callable[..., None], *sockets: socket.socket) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(Thread(target=work, args=sockets, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                time.sleep(0.1)  # the receiver is closing, or there are too many open connections for now
            else:
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        """Receives from a sender; answers a line that cannot be parsed with an error."""
        with self._changed:
            self._connections.add(connection)
            if self._closed:
                connection.close()
        with connection, suppress(OSError):
            try:
                self._receive(connection)
            except ValueError as error:
                connection.sendall(f"error: {error}\n".encode())
                # Closing a socket with unread data would discard the answer: read the rest first.
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(1.0)
                deadline = time.monotonic() + 5.0
                while time.monotonic() < deadline and connection.recv(CHUNK):
                    pass
        with self._changed:
            self._connections.discard(connection)
            for name in [name for name, current in self._senders.items() if current is connection]:
                del self._senders[name]

    def _receive(self, connection: socket.socket) -> None:
        """Reads the name and then the lines of a sender until it closes the connection."""
        data = b""
        while b"\n" not in data:
            require(len(data) <= NAME_BYTES, f"the first line is the sender's name, of 1 to {NAME_BYTES} bytes")
            received = connection.recv(NAME_BYTES)
            if not received:
                return
            data += received
        first, _, data = data.partition(b"\n")
        name = first.decode()
        require(0 < len(first) <= NAME_BYTES, f"the first line is the sender's name, of 1 to {NAME_BYTES} bytes")
        with self._changed:
            # A sender that connects again has given up its old connection: drop what the old one still delivers.
            previous = self._senders.get(name)
            if previous is not None:
                with suppress(OSError):
                    previous.shutdown(socket.SHUT_RDWR)
            self._senders[name] = connection
            logged = self._journal.tallies.get(name, 0)
        connection.sendall(b"%d\n" % logged)
        while self._wait_for_room():
            lines, newline, data = data.rpartition(b"\n")
            if newline:
                self._log(name, connection, lines + newline)
            require(len(data) <= LINE_BYTES, f"a line is at most {LINE_BYTES} bytes long")
            received = connection.recv(CHUNK)
            if not received:
                return
            data += received

    def _wait_for_room(self) -> bool:
        """Waits while more than `pending` bytes of the log wait for batches; returns False if the receiver closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._journal.end - self._done <= self.pending)
            return not self._closed

    def _log(self, name: str, connection: socket.socket, lines: bytes) -> None:
        """Writes lines to disk, then acknowledges them."""
        parsed, reason = self.lines.parse_until_error(lines)
        for records in parsed:
            for start in range(0, records.num_rows, self._frame_rows):
                piece = records.slice(start, self._frame_rows)
                keys = self.lines.keys(piece)
                content = piece.serialize().to_pybytes()
                with self._changed:
                    if self._closed or self._senders.get(name) is not connection:
                        return
                    logged = self._journal.tallies.get(name, 0) + piece.num_rows
                    now = time.time_ns() // 1_000_000
                    offset = self._journal.append(content, piece.num_rows, now, name, logged)
                    self._accumulate(offset, now, keys)
                connection.sendall(b"%d\n" % logged)
        if reason:
            with self._changed:
                number = self._journal.tallies.get(name, 0) + 1
            raise ValueError(f"line {number} cannot be read: {reason}")

    def _accumulate(self, offset: int, now: int, keys: Keys) -> None:
        """Adds logged rows to the incoming batch, unless it is full."""
        batch = self._incoming
        if self.most_rows is not None and batch.rows + keys.size > self.most_rows:
            batch.is_full = True
        if not batch.is_full:
            batch.add(offset, self._journal.end, now, keys)
