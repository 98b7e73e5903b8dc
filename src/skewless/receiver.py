"""A receiver: takes records from senders, logs them, and hands them on in blocks that are balanced by key."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread

import numpy as np

from skewless.accumulator import Accumulated, Accumulator, divided
from skewless.arrays import Keys, require
from skewless.journal import Journal, Pages
from skewless.records import MOST_ROWS, Block, Lines, unpacked

CHUNK = 1 << 18  # bytes that are taken from a socket at once, and logged together
LONGEST = 1 << 24  # bytes of a line
NAME = 200  # bytes of a sender's name


@dataclass
class Gathering:
    """A batch that comes in: where its frames are, and Prompt's accumulator, which has its keys in order."""

    start: int
    end: int
    accumulator: Accumulator  # its interval begins at 0, with the first frame
    addresses: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)  # in ms
    rows: int = 0
    is_full: bool = False  # what comes next is of another batch
    batch: Accumulated | None = None  # once it is released

    def add(self, address: int, end: int, now: int, keys: Keys) -> None:
        self.addresses.append(address)
        self.counts.append(keys.size)
        self.times.append(now)
        # A batch may take longer than expected, and clocks may be set back.
        time_of_batch = min(max(now - self.times[0], 0), self.accumulator.interval[1] - 1)
        self.accumulator.add(keys, np.full(keys.size, time_of_batch, np.int64))
        self.rows += keys.size
        self.end = end

    def released(self) -> Accumulated:
        if self.batch is None:
            self.batch = self.accumulator.release()
        return self.batch

    def following(self, start: int) -> Gathering:
        """The next batch, expected to be like this one."""
        batch = self.released()
        return Gathering(start, start, _accumulator(batch.n_tuples, batch.n_keys, self.times))


def _accumulator(n_tuples: int, n_keys: int, times: list[int]) -> Accumulator:
    lasted = times[-1] - times[0] if times else 0
    return Accumulator((0, max(lasted, 0) + 1), expected_tuples=max(n_tuples, 1), expected_keys=max(n_keys, 1))


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
        self._gathering = Gathering(at, at, _accumulator(1000, 100, []))
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
        again = Gathering(start, end, _accumulator(rows, rows // 10, [frame.notes["time"] for frame in frames]))
        for frame in frames:
            keys = self.lines.keys(unpacked(frame.content, self.lines.schema))
            again.add(frame.address, end, frame.notes["time"], keys)
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
            sockets = [self._listener, *self._connections]
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
        with self._changed:
            self._connections.add(connection)
            if self._closed:
                connection.close()
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
        with self._changed:
            self._connections.discard(connection)
            for name in [name for name, current in self._senders.items() if current is connection]:
                del self._senders[name]

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
        while self._lets_through():
            lines, newline, data = data.rpartition(b"\n")
            if newline:
                self._log(name, connection, lines + newline)
            require(len(data) <= LONGEST, f"a line is at most {LONGEST} bytes long")
            received = connection.recv(CHUNK)
            if not received:
                return
            data += received

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
                    now = time.time_ns() // 1_000_000
                    address = self._journal.append(content, piece.num_rows, now, name, safe)
                    self._gather(address, now, keys)
                connection.sendall(b"%d\n" % safe)
        if why:
            with self._changed:
                number = self._journal.tallies.get(name, 0) + 1
            raise ValueError(f"line {number} cannot be read: {why}")

    def _gather(self, address: int, now: int, keys: Keys) -> None:
        batch = self._gathering
        if self.most_rows is not None and batch.rows + keys.size > self.most_rows:
            batch.is_full = True
        if not batch.is_full:
            batch.add(address, self._journal.end, now, keys)
