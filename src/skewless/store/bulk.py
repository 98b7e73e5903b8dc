"""States that arrived in bulk: an Arrow file on the local disk, sorted by position and memory-mapped.

Inserting them into the database takes five times as long as reading them from the durable files.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skewless.filesystem import naming_write_errors
from skewless.store.files import positions_of
from skewless.store.share import Positions, Share


@dataclass(frozen=True)
class Bulk:
    """A file of states. Only keys of `share` are valid, and only while the database has nothing newer of them."""

    path: Path
    checksum: int
    share: Share

    @classmethod
    def written(cls, database: Path, rows: pa.Table, share: Share) -> Self:
        """Writes states to a new file next to the database that they belong to.

        rows: the states, with the columns of `StateStore.schema`.
        """
        rows = rows.take(pa.array(np.argsort(positions_of(rows)))).combine_chunks()
        path = database.with_name(f"{database.stem}-{uuid4().hex}.arrow")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as file:
            file.write_table(rows)
        data = sink.getvalue()
        with naming_write_errors(str(path)), path.open("wb") as file:
            file.write(data)
        return cls(path, zlib.crc32(data), share)

    def to_json(self) -> str:
        """Returns the file's name, its checksum and the share as JSON text."""
        return json.dumps({"file": self.path.name, "checksum": self.checksum, "share": self.share.to_json()})

    @classmethod
    def from_json(cls, text: str, database: Path) -> Self:
        """Returns what `to_json` wrote; the file is next to the database."""
        content = json.loads(text)
        return cls(database.with_name(content["file"]), content["checksum"], Share.from_json(content["share"]))

    def within(self, share: Share) -> Self | None:
        """Returns the part of it that is in a share; None if there can be none."""
        remaining = self.share.within(share)
        return None if remaining.is_empty else replace(self, share=remaining)

    def rows(self) -> pa.Table:
        """Returns all valid rows."""
        return self._valid(self._read())

    def at(self, positions: Positions) -> pa.Table:
        """Returns the valid rows at these positions."""
        rows, unique = self._read(), np.unique(positions)
        starts, ends = (np.searchsorted(positions_of(rows), unique, side) for side in ("left", "right"))
        lengths = ends - starts
        numbers = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        return self._valid(rows.take(pa.array(numbers)))

    def expired(self, now: int) -> pa.Table:
        """Returns the valid rows whose timeout is at most `now`. Scans the whole column of timeouts."""
        rows = self._read()
        return self._valid(rows.filter(pc.less_equal(rows["timeout"], now)))

    def _valid(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(self.share.has(positions_of(rows))))

    def _read(self) -> pa.Table:
        if not _is_intact(str(self.path), self.checksum):
            raise ValueError(f"{self.path} is missing or damaged")
        try:
            with pa.memory_map(str(self.path)) as file:
                return pa.ipc.open_file(file).read_all()
        except OSError as error:  # deleted since `_is_intact` looked at it
            raise ValueError(f"{self.path} is missing or damaged") from error


@lru_cache(maxsize=256)
def _is_intact(path: str, checksum: int) -> bool:
    """Returns whether a file has its checksum.

    A process checks each file once: later damage is only noticed by the next process.
    """
    try:
        with pa.memory_map(path) as file:
            return zlib.crc32(file.read_buffer()) == checksum
    except OSError:
        return False
