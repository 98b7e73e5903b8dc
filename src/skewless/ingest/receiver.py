"""Receives records from senders, logs them, and forms batches of blocks that are balanced by key."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread

from skewless.arguments import require
from skewless.filesystem import resolve, write_atomically
from skewless.ingest.batches import LogBatches
from skewless.ingest.journal import Journal
from skewless.ingest.records import MOST_ROWS, Block, LineFormat

CHUNK = 1 << 18  # bytes read from a socket at once, and logged together
LINE_BYTES = 1 << 24  # longest line
NAME_BYTES = 200  # longest name of a sender


class Receiver:
    """Listens for senders, logs their records before acknowledging them, and forms batches of balanced blocks.

    A connection serves one sender. The sender sends its name, receives the number of its lines already in the log, and
    sends the following lines; after each piece written to disk it receives the new number. So a sender continues where
    the log ends after either side crashed: no line is lost or doubled. A line that cannot be parsed is answered with
    an error message, and the connection is closed.

    Batches end at offsets in the log, so that a batch can be read again. Prompt's accumulator sorts the keys of the
    arriving batch (algorithm 1); algorithm 2 divides it into blocks, shortly before Spark is expected to ask for it.

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
        self._batches = LogBatches(self._journal, lines, self._changed, most_rows)
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
        self._start(self._batches.plan_ahead)

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
        self._batches.stop_at(target)

    def latest(self, start: int, most: int | None) -> int:
        """Returns where the batch that begins at `start` ends, with at most `most` rows; earlier batches are done."""
        with self._changed:
            require(not self._journal.broken, self._journal.broken)
            self._check_offsets(start)
            self._done = max(self._done, start)
            return self._batches.latest(start, most)

    def _check_offsets(self, *offsets: int) -> None:
        """Refuses offsets that are not in the log, such as those of another checkpoint."""
        begin, end = self._journal.begin, self._journal.end
        for offset in offsets:
            outside = f"the log in {self._journal.directory} has offsets from {begin} to {end}, not {offset}"
            require(begin <= offset <= end, f"{outside}: it is not the log of this checkpoint, which needs its own")

    def blocks(self, start: int, end: int, n_workers: int) -> list[Block]:
        """Returns the batch between two offsets as blocks of equal size that split few keys."""
        self._check_offsets(start, end)
        return self._batches.blocks(start, end, n_workers)

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
            self._batches.stop()
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
                    self._batches.add(offset, now, keys)
                connection.sendall(b"%d\n" % logged)
        if reason:
            with self._changed:
                number = self._journal.tallies.get(name, 0) + 1
            raise ValueError(f"line {number} cannot be read: {reason}")
