"""Splits the rows of a task by key, as Arrow tables or pandas frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skewless.store import Positions, StateStore
from skewless.store.codec import differs_from_last

_CHUNK_ROWS = 20_000  # rows to gather before they are grouped


@dataclass(frozen=True)
class Groups:
    """Rows by key: key number i has the rows from bounds[i] to bounds[i + 1]."""

    rows: pa.Table
    positions: Positions  # one for each key
    texts: list[str]  # the keys, encoded by the store's key codec
    bounds: list[int]

    @classmethod
    def of(
        cls, rows: pa.Table, position: str, keys: Sequence[str], store: StateStore, hidden: Sequence[str] = ()
    ) -> Groups:
        """Groups rows that are sorted by the positions of their keys.

        position: the name of the column with these positions.
        hidden: columns that the groups leave out.
        """
        positions = rows[position].to_numpy().view(np.uint64)
        rows = rows.drop_columns([position])
        key_columns = rows.select(list(keys)).cast(store.key)
        is_first = np.append(True, positions[1:] != positions[:-1])
        if differs_from_last(key_columns.columns, ~is_first).any():
            # Two keys have the same hash, or equal keys look different, as NaN does: compare their texts.
            _, numbers = np.unique(np.array(store.key_codec.texts(key_columns)), return_inverse=True)
            order = np.lexsort((numbers, np.cumsum(is_first)))
            rows, key_columns, numbers = rows.take(pa.array(order)), key_columns.take(pa.array(order)), numbers[order]
            is_first |= np.append(True, numbers[1:] != numbers[:-1])
        first = np.flatnonzero(is_first)
        texts = [str(text) for text in store.key_codec.texts(key_columns.take(pa.array(first)))]
        rows = rows.drop_columns(list(hidden))
        return cls(rows.combine_chunks(), positions[first], texts, [*first.tolist(), rows.num_rows])

    def tables(self) -> Iterator[pa.Table]:
        """Yields the rows of each key as an Arrow table."""
        for start, stop in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            yield self.rows.slice(start, stop - start)

    def frames(self) -> Iterator[Any]:
        """Yields the rows of each key as a pandas frame."""
        frame = to_pandas(self.rows)  # slicing a frame is several times faster than converting slices
        for start, stop in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            yield frame.iloc[start:stop].reset_index(drop=True)


def to_pandas(rows: pa.Table) -> Any:
    """Converts rows to a frame as PySpark does: timestamps are in the session's time zone and carry none."""
    frame = rows.to_pandas(date_as_object=True)
    for name, column in zip(rows.column_names, rows.schema.types, strict=True):
        if pa.types.is_timestamp(column) and column.tz is not None:
            frame[name] = frame[name].dt.tz_localize(None)
    return frame


def whole_runs(batches: Iterator[pa.RecordBatch], position: str) -> Iterator[pa.Table]:
    """Gathers batches, whose rows are sorted by position, in larger tables; each position is in one table only.

    Rows without a position are dropped: they only make sure that every task gets at least one row.
    """
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if batch[position].null_count:
            batch = batch.filter(pc.is_valid(batch[position]))
        if batch.num_rows == 0:
            continue
        waiting.append(batch)
        count += batch.num_rows
        if count < _CHUNK_ROWS:
            continue
        rows = pa.Table.from_batches(waiting).combine_chunks()
        positions = rows[position].to_numpy()
        end = int(np.searchsorted(positions, positions[-1]))  # the last run may continue in the next batch
        if end:
            yield rows.slice(0, end)
        waiting, count = rows.slice(end).to_batches(), rows.num_rows - end
    if count:
        yield pa.Table.from_batches(waiting).combine_chunks()
