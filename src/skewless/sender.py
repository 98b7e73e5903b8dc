"""A sender: any iterator of records, line by line, to a receiver, each exactly once."""

from __future__ import annotations

import json
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from skewless.arrays import require

WINDOW = 10_000  # lines that are on their way at the most
OFTEN = 100  # lines after which a sender looks whether the receiver has answered
PAUSE = 0.1  # seconds before a connection is tried again


def send(records: Iterable[str | Mapping[str, Any]], address: str, *, name: str, patience: float = 60.0) -> int:
    """Send records until there are no more and all are safe; how many there are.

    A record is a line of text, or a mapping, which is sent as JSON. If the connection breaks, what was not safe is sent
    again. A sender that begins anew, under the same name and with the same records, skips those that are safe already.

    address: host:port of the receiver; it may come up later.
    name: tells this sender from others, for as long as the receiver's log lives.
    patience: seconds for which no receiver need be there.
    """
    host, colon, port = address.rpartition(":")
    require(bool(colon) and port.isdigit(), f"an address is host:port, not {address!r}")
    require(bool(name.strip()) and "\n" not in name, f"a sender's name is a line that is not empty, not {name!r}")
    sending = _Sending(iter(records), name)
    deadline = time.monotonic() + patience
    while True:
        safe = sending.safe
        try:
            with socket.create_connection((host, int(port)), timeout=patience) as connection:
                connection.settimeout(None)
                sending.run(connection)
                return sending.safe
        except OSError as error:
            if sending.safe > safe:
                deadline = time.monotonic() + patience
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no receiver at {address} for {patience:g} s; {sending.safe} lines are safe"
                ) from error
            time.sleep(PAUSE)


class _Sending:
    """What is left to send: lines on their way, and records to come."""

    def __init__(self, records: Iterator[str | Mapping[str, Any]], name: str) -> None:
        self.records, self.name = records, name
        self.safe = 0  # lines that the receiver has
        self.on_their_way = deque[bytes]()
        self._heard = b""

    def run(self, connection: socket.socket) -> None:
        """Send all there is over one connection."""
        self._heard = b""
        connection.sendall(f"{self.name}\n".encode())
        while not self._hear(connection):
            pass
        connection.sendall(b"".join(self.on_their_way))
        sent = 0
        while (record := self._next()) is not None:
            line = _line(record)
            self.on_their_way.append(line)
            connection.sendall(line)
            sent += 1
            if len(self.on_their_way) >= WINDOW:
                self._hear(connection)
            elif sent % OFTEN == 0:
                self._hear(connection, socket.MSG_DONTWAIT)
        while self.on_their_way:
            self._hear(connection)

    def _next(self) -> str | Mapping[str, Any] | None:
        try:
            return next(self.records, None)
        except OSError as error:
            raise RuntimeError("the records to send cannot be had") from error  # not the connection's fault

    def _hear(self, connection: socket.socket, flags: int = 0) -> int:
        """Take note of the lines that are safe now; how often that was said."""
        try:
            received = connection.recv(1 << 16, flags)
        except BlockingIOError:
            return 0
        if not received:
            raise ConnectionError("the receiver has closed the connection")
        *answers, self._heard = (self._heard + received).split(b"\n")
        for answer in answers:
            refused = answer.startswith(b"error: ")
            require(not refused, f"the receiver says: {answer.decode()}")
            self._note(int(answer))
        return len(answers)

    def _note(self, safe: int) -> None:
        had = f"the receiver has {safe} lines of {self.name}, but had {self.safe} before"
        require(safe >= self.safe, f"{had}: its log was lost")
        for _ in range(safe - self.safe):
            if self.on_their_way:
                self.on_their_way.popleft()
            else:
                require(self._next() is not None, f"the receiver has more lines of {self.name} than there are: {safe}")
        self.safe = safe


def _line(record: str | Mapping[str, Any]) -> bytes:
    text = record if isinstance(record, str) else json.dumps(record, separators=(",", ":"))
    require("\n" not in text, "a record is one line: it has no line break")
    return text.encode() + b"\n"
