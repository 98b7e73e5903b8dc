"""Receivers that listen on a free port, and functions that read what they have logged."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from skewless import streams
from skewless.ingest.journal import Frame, JournalReader
from skewless.ingest.receiver import Receiver
from skewless.ingest.records import Block, LineFormat, read_block

TEXT = LineFormat(pa.schema([("value", pa.string())]), "value", text=True)


EVENTS = LineFormat(
    pa.schema([("k", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]), "k", text=False
)


def listening(log: Path, lines: LineFormat = TEXT, **params: Any) -> Receiver:
    return Receiver(log, lines, ("127.0.0.1", 0), **{"pending": 1 << 30, "most_rows": None, **params})


def rows(blocks: list[Block], lines: LineFormat = TEXT) -> list[dict[str, Any]]:
    return [row for block in blocks for records in read_block(block, lines.schema) for row in records.to_pylist()]


def values(receiver: Receiver, start: int, end: int, n_workers: int = 3) -> list[str]:
    return sorted(row["value"] for row in rows(receiver.blocks(start, end, n_workers)))


def words(n: int, exponent: float = 1.2) -> list[str]:
    return [f"w{key}" for key in streams.zipf(n, 500, exponent)]


def frames(log: Path, end: int) -> list[Frame]:
    with JournalReader(log) as pages:
        return [*pages.frames(0, end)]


@contextmanager
def raw(address: str, name: str) -> Iterator[tuple[socket.socket, Iterator[bytes]]]:
    """Yields a plain connection, and the lines that the receiver answers."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
        connection.sendall(f"{name}\n".encode())
        yield connection, iter(answers)
