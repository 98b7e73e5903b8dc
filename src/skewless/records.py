"""Records of a log: lines that become rows, and blocks of rows that are read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from skewless.arrays import Keys, require
from skewless.journal import Pages
from skewless.streams import as_keys

MOST_ROWS = 10_000  # rows that are logged, or handed on, at once


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
            held.append(unpacked(pages.frame(address).content, schema).take(pa.array(rows)))
            n_held += rows.size
            if n_held >= MOST_ROWS:
                yield from pa.Table.from_batches(held, schema).combine_chunks().to_batches()
                held, n_held = [], 0
    if held:
        yield from pa.Table.from_batches(held, schema).combine_chunks().to_batches()


def unpacked(content: memoryview, schema: pa.Schema) -> pa.RecordBatch:
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
