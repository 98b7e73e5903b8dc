"""Converts lines to rows for the log, and reads blocks of rows back from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from skewless.arguments import require
from skewless.arrays import Keys
from skewless.ingest.journal import JournalReader
from skewless.streams import as_keys

MOST_ROWS = 10_000  # rows of a frame, and of a record batch that is read back


class Block(NamedTuple):
    """Selects rows of the log: of the frame at offsets[i], the next counts[i] row numbers of `rows`."""

    directory: str
    offsets: NDArray[np.int64]
    counts: NDArray[np.int64]
    rows: NDArray[np.int32]


def read_block(block: Block, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a block, in order of arrival."""
    pieces = np.split(block.rows, np.cumsum(block.counts)[:-1])
    pending, n_pending = list[pa.RecordBatch](), 0
    with JournalReader(block.directory) as journal:
        for offset, rows in zip(block.offsets.tolist(), pieces, strict=True):
            pending.append(decode(journal.frame(offset).content, schema).take(pa.array(rows)))
            n_pending += rows.size
            if n_pending >= MOST_ROWS:
                yield from pa.Table.from_batches(pending, schema).combine_chunks().to_batches()
                pending, n_pending = [], 0
    if pending:
        yield from pa.Table.from_batches(pending, schema).combine_chunks().to_batches()


def decode(content: memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the rows of a frame."""
    return pa.ipc.read_record_batch(pa.py_buffer(content), schema)


@dataclass(frozen=True)
class LineFormat:
    """How lines are parsed: as text, the only column, or as JSON objects.

    schema: the fields to read from JSON objects; others are ignored.
    key: the column to balance by.
    text: whether a line is text.
    """

    schema: pa.Schema
    key: str
    text: bool

    def parse(self, lines: bytes, n_lines: int) -> pa.RecordBatch:
        """Returns one row for each line; raises ValueError or TypeError if a line cannot be parsed."""
        if self.text:
            values = pa.array(lines[:-1].split(b"\n"), pa.binary()).cast(pa.string())
            return pa.record_batch([values], schema=self.schema)
        table = pa.json.read_json(
            BytesIO(lines),
            pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            pa.json.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore"),
        )
        require(table.num_rows == n_lines, "each line must be one JSON object")
        # Orders the fields by the schema; the cast fails where a required field is missing.
        return table.select(self.schema.names).cast(self.schema).combine_chunks().to_batches()[0]

    def parse_until_error(self, lines: bytes) -> tuple[list[pa.RecordBatch], str]:
        """Returns the rows of all lines before the first that cannot be parsed, and the reason if there is one."""
        n_lines = lines.count(b"\n")
        try:
            return [self.parse(lines, n_lines)], ""
        except (ValueError, TypeError) as error:
            if n_lines == 1:
                return [], str(error)
        half = len(b"\n".join(lines.split(b"\n", n_lines // 2)[:-1])) + 1
        first, reason = self.parse_until_error(lines[:half])
        if reason:
            return first, reason
        second, reason = self.parse_until_error(lines[half:])
        return first + second, reason

    def keys(self, records: pa.RecordBatch) -> Keys:
        """Returns the key hash of each row."""
        return as_keys(records.column(self.key))
