"""States that came many at once: an Arrow file on the local disk, sorted by place, in which one looks them up.

To put them into the database, one by one, takes five times as long as to read them from the durable files.
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

from skewless.store.files import naming, places_of
from skewless.store.share import Places, Share


@dataclass(frozen=True)
class Bulk:
    """Rows of states as they came. Those of a share count, as long as the database has nothing newer of their keys."""

    path: Path
    checksum: int
    share: Share

    @classmethod
    def written(cls, beside: Path, rows: pa.Table, share: Share) -> Self:
        """Write rows to a new file; beside: the database that they belong to."""
        rows = rows.take(pa.array(np.argsort(places_of(rows)))).combine_chunks()
        path = beside.with_name(f"{beside.stem}-{uuid4().hex}.arrow")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, rows.schema) as file:
            file.write_table(rows)
        data = sink.getvalue()
        with naming(str(path)), path.open("wb") as file:
            file.write(data)
        return cls(path, zlib.crc32(data), share)

    def to_json(self) -> str:
        return json.dumps({"file": self.path.name, "checksum": self.checksum, "share": self.share.to_json()})

    @classmethod
    def from_json(cls, text: str, beside: Path) -> Self:
        content = json.loads(text)
        return cls(beside.with_name(content["file"]), content["checksum"], Share.from_json(content["share"]))

    def within(self, share: Share) -> Self | None:
        """What counts of it in a share; None: nothing can."""
        left = self.share.within(share)
        return None if left.is_empty else replace(self, share=left)

    def rows(self) -> pa.Table:
        """All that count."""
        return self._counting(self._read())

    def at(self, places: Places) -> pa.Table:
        """Those at these places."""
        rows, wanted = self._read(), np.unique(places)
        known = places_of(rows)
        starts, ends = (np.searchsorted(known, wanted, side) for side in ("left", "right"))
        lengths = ends - starts
        numbers = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        return self._counting(rows.take(pa.array(numbers)))

    def expired(self, now: int) -> pa.Table:
        """Those whose timeout is now or was before. Looks at all timeouts, which are next to one another."""
        rows = self._read()
        return self._counting(rows.filter(pc.less_equal(rows["timeout"], now)))

    def _counting(self, rows: pa.Table) -> pa.Table:
        return rows.filter(pa.array(self.share.has(places_of(rows))))

    def _read(self) -> pa.Table:
        if not _is_whole(str(self.path), self.checksum):
            raise ValueError(f"{self.path} is not what was written")
        with pa.memory_map(str(self.path)) as file:
            return pa.ipc.open_file(file).read_all()


@lru_cache(maxsize=256)
def _is_whole(path: str, checksum: int) -> bool:
    """Whether a file is what was written. A process looks once: damage may end it, and the next one will find out."""
    try:
        with pa.memory_map(path) as file:
            return zlib.crc32(file.read_buffer()) == checksum
    except OSError:
        return False
