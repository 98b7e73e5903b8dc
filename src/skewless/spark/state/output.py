"""Collects what the user's function returns, and writes it to the output file of a task."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from skewless.arguments import require
from skewless.filesystem import naming_write_errors, resolve


class Results:
    """What several calls of the user's function returned, as one table of the output schema."""

    def __init__(self, schema: pa.Schema, in_pandas: bool) -> None:
        self._schema, self._in_pandas = schema, in_pandas
        self._parts: list[Any] = []

    def add(self, result: Any) -> None:
        """Adds a result: None, a table (a frame in pandas), or an iterable of results."""
        if result is None:
            return
        if self._in_pandas and hasattr(result, "iloc"):
            self._parts.append(result)
        elif not self._in_pandas and isinstance(result, pa.RecordBatch):
            self._parts.append(pa.Table.from_batches([result]))
        elif not self._in_pandas and isinstance(result, pa.Table):
            self._parts.append(result)
        else:
            kind = "a pandas frame" if self._in_pandas else "a pyarrow table"
            is_iterable = isinstance(result, Iterable) and not isinstance(result, (str, bytes, dict))
            require(
                is_iterable,
                f"the function must return {kind}, an iterable of them, or None, not {type(result).__name__}",
            )
            for part in result:
                self.add(part)

    def table(self) -> pa.Table:
        """Returns all results as one table."""
        if not self._parts:
            return self._schema.empty_table()
        if self._in_pandas:
            import pandas as pd  # only functions in pandas need it

            for frame in self._parts:
                self._check_names(list(frame.columns))
            frames = pd.concat(self._parts, ignore_index=True)
            return pa.Table.from_pandas(frames, self._schema, preserve_index=False)
        try:
            return self._cast(pa.concat_tables(self._parts))
        except pa.ArrowInvalid:  # the parts have different types
            return pa.concat_tables([self._cast(part) for part in self._parts])

    def _cast(self, table: pa.Table) -> pa.Table:
        self._check_names(table.column_names)
        return table.select(self._schema.names).cast(self._schema)

    def _check_names(self, names: list[str]) -> None:
        missing = [name for name in self._schema.names if name not in names]
        require(not missing, f"the function's output lacks {', '.join(missing)}; it has {', '.join(map(str, names))}")


class OutputFile:
    """The Parquet file with the output of a task; created at the first rows, under a name unique to the attempt."""

    def __init__(self, directory: str, worker: int, schema: pa.Schema) -> None:
        self._directory, self._name = directory, f"{worker:05d}-{uuid4().hex}.parquet"
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Appends rows."""
        if rows.num_rows == 0:
            return
        with naming_write_errors(f"{self._directory}/{self._name}"):
            if self._writer is None:
                filesystem, path = resolve(self._directory)
                filesystem.create_dir(path, recursive=True)
                self._writer = pq.ParquetWriter(f"{path}/{self._name}", self._schema, filesystem=filesystem)
            self._writer.write_table(rows)

    def abandon(self) -> None:
        """Closes the file if the task failed before it was complete; nothing will read it."""
        if self._writer is not None:
            with suppress(OSError):  # the error of the task tells more
                self._writer.close()

    def close(self) -> str | None:
        """Completes the file and returns its path; None if there were no rows."""
        if self._writer is None:
            return None
        with naming_write_errors(f"{self._directory}/{self._name}"):
            self._writer.close()
        return f"{self._directory}/{self._name}"
