"""Sends the records of an iterator to a receiver, each exactly once."""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from skewless.arguments import require

WINDOW = 10_000  # most unacknowledged lines
POLL = 100  # lines between two checks for acknowledgements
PAUSE = 0.1  # seconds before the next attempt to connect


def send(records: Iterable[str | Mapping[str, Any]], address: str, *, name: str, patience: float = 60.0) -> int:
    """Sends records to a receiver until all are acknowledged and returns their number.

    If the connection breaks, unacknowledged records are sent again. A sender that is restarted with the same name and
    records skips those that the receiver has already.

    records: lines of text, or mappings, which are sent as JSON.
    address: host:port of the receiver, which may start later.
    name: identifies this sender for the lifetime of the receiver's log.
    patience: seconds to wait for a receiver before TimeoutError.

    >>> send(({"user": n % 10, "amount": n} for n in range(1000)), "127.0.0.1:5000", name="shop")  # doctest: +SKIP
    1000
    """
    host, colon, port = address.rpartition(":")
    require(bool(colon) and port.isdigit(), f"an address is host:port, not {address!r}")
    require(bool(name.strip()) and "\n" not in name, f"a sender's name is one line that is not empty, not {name!r}")
    sending = _Sending(iter(records), name)
    deadline = time.monotonic() + patience
    while True:
        before = sending.acknowledged
        try:
            with socket.create_connection((host, int(port)), timeout=patience) as connection:
                connection.settimeout(None)
                sending.run(connection)
                return sending.acknowledged
        except OSError as error:
            if sending.acknowledged > before:
                deadline = time.monotonic() + patience
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no receiver at {address} for {patience:g} s; {sending.acknowledged} lines are acknowledged"
                ) from error
            time.sleep(PAUSE)


class _Sending:
    """The records still to be sent, and the lines not yet acknowledged."""

    def __init__(self, records: Iterator[str | Mapping[str, Any]], name: str) -> None:
        self.records, self.name = records, name
        self.acknowledged = 0  # lines that the receiver has logged
        self.unacknowledged = deque[bytes]()
        self._partial = b""  # the beginning of an answer

    def run(self, connection: socket.socket) -> None:
        """Sends all records over one connection; raises OSError if it breaks."""
        self._partial = b""
        connection.sendall(f"{self.name}\n".encode())
        while not self._read_answers(connection):
            pass
        connection.sendall(b"".join(self.unacknowledged))
        sent = 0
        while (record := self._next()) is not None:
            line = _line(record)
            self.unacknowledged.append(line)
            connection.sendall(line)
            sent += 1
            if len(self.unacknowledged) >= WINDOW:
                self._read_answers(connection)
            elif sent % POLL == 0:
                self._read_answers(connection, socket.MSG_DONTWAIT)
        while self.unacknowledged:
            self._read_answers(connection)

    def _next(self) -> str | Mapping[str, Any] | None:
        try:
            return next(self.records, None)
        except OSError as error:
            # Not an OSError, which would be retried as a broken connection.
            raise RuntimeError(f"the records to send cannot be read: {error}") from error

    def _read_answers(self, connection: socket.socket, flags: int = 0) -> int:
        """Reads acknowledgements from the connection and returns how many there were."""
        try:
            received = connection.recv(1 << 16, flags)
        except BlockingIOError:
            return 0
        if not received:
            raise ConnectionError("the receiver closed the connection")
        *answers, self._partial = (self._partial + received).split(b"\n")
        for answer in answers:
            refused = answer.startswith(b"error: ")
            require(not refused, f"the receiver says: {answer.decode()}")
            self._acknowledge(int(answer))
        return len(answers)

    def _acknowledge(self, total: int) -> None:
        lost = f"the receiver has {total} lines of {self.name}, but had {self.acknowledged} before: its log was lost"
        require(total >= self.acknowledged, lost)
        for _ in range(total - self.acknowledged):
            if self.unacknowledged:
                self.unacknowledged.popleft()
            else:
                more = f"the receiver has {total} lines of {self.name}, more than there are records"
                require(self._next() is not None, f"{more}: was another sender given this name?")
        self.acknowledged = total


def _line(record: str | Mapping[str, Any]) -> bytes:
    text = record if isinstance(record, str) else json.dumps(record, separators=(",", ":"))
    require("\n" not in text, "a record must be one line: remove its line breaks")
    return text.encode() + b"\n"
