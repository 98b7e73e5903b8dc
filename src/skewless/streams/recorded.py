"""Streams of keys read from real data, and the hashing of words and numbers to keys."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import Keys

if TYPE_CHECKING:
    import pyarrow as pa

SPARK_SEED = 42  # the seed of Spark's xxhash64: keys hash here as they do in Spark


def words(limit: int | None = None) -> Keys:
    """Returns the hashed words of the Python standard library's source files: real, Zipf-like data on every machine.

    limit: the number of words; all if None.

    >>> words(1000).size
    1000
    """
    return as_keys(texts(limit))


def texts(limit: int | None = None) -> list[bytes]:
    """Returns the words of the Python standard library's source files, in order.

    limit: the number of words; all if None.

    >>> len(texts(1000))
    1000
    """
    if limit is not None:
        whole("the number of words", limit, 1)
    collected: list[bytes] = []
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"test", "skipped", "idle_test", "site-packages", "__pycache__"}
    for path in sorted(root.rglob("*.py")):
        if not skipped & set(path.relative_to(root).parts):
            collected += path.read_bytes().translate(_TO_WORDS).split()
        if limit is not None and len(collected) >= limit:
            break
    require(
        len(collected) > 0,
        f"no source files of the standard library in {root}, where Python {sys.version.split()[0]} should have them",
    )
    return collected[:limit]


_TO_WORDS = bytes(c if chr(c).isascii() and (chr(c).isalnum() or c == ord("_")) else 32 for c in range(256))


def trace(path: str | Path, column: str | None = None) -> Keys:
    """Returns the hashed keys of a file, in order: a column of a Parquet or CSV file, or the words of a text file.

    path: the file; CSV and text files may be compressed (.gz and the like).
    column: the column of a Parquet or CSV file; the first one if None.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "visits.csv"
    >>> _ = path.write_text("user,page\\n1,a\\n2,b\\n1,a\\n")
    >>> trace(path, "page").tolist() == as_keys(["a", "b", "a"]).tolist()
    True
    """
    import pyarrow.csv
    import pyarrow.parquet

    path = Path(path)
    require(path.is_file(), f"there is no file {path}")
    kinds = path.suffixes
    if ".parquet" in kinds:
        names = pyarrow.parquet.read_schema(path).names
        return as_keys(pyarrow.parquet.read_table(path, columns=[_column(column, names, path)]).column(0))
    if ".csv" in kinds:
        content = pyarrow.csv.read_csv(path)
        return as_keys(content.column(_column(column, content.column_names, path)))
    require(
        column is None, f"{path} is read as text and has no column {column!r}; .parquet and .csv files have columns"
    )
    with pyarrow.input_stream(str(path)) as stream:
        return as_keys(stream.read().split())


def _column(column: str | None, names: list[str], path: Path) -> str:
    require(column is None or column in names, f"{path} has no column {column!r}; it has {', '.join(names)}")
    return names[0] if column is None else column


def as_keys(values: Sequence[Any] | NDArray[Any] | pa.Array | pa.ChunkedArray) -> Keys:
    """Returns the hashes of words or whole numbers, equal to Spark's xxhash64 of a string, int or bigint column.

    values: a sequence, or a numpy or Arrow array. As in Spark, a missing value hashes to the seed.

    >>> as_keys(["a", "b", "a"]).tolist()
    [9864288744972464332, 12054797757861652435, 9864288744972464332]
    """
    import pyarrow as pa

    column = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.dictionary_encode()
    distinct = encoded.dictionary
    kind = distinct.type
    if pa.types.is_null(kind):
        raw: list[bytes] = []
    elif any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        raw = distinct.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    elif any(is_kind(kind) for is_kind in (pa.types.is_binary, pa.types.is_large_binary)):
        raw = distinct.to_pylist()
    elif pa.types.is_signed_integer(kind):
        width = 8 if kind.bit_width == 64 else 4  # Spark widens bytes and shorts to ints
        raw = [int(value).to_bytes(width, "little", signed=True) for value in distinct.to_pylist()]
    else:
        raise TypeError(f"keys are words or signed whole numbers, as in Spark, not {kind}: cast them first")
    table = np.array([*(xxhash.xxh64_intdigest(value, SPARK_SEED) for value in raw), SPARK_SEED], np.uint64)
    number: NDArray[np.int64] = encoded.indices.fill_null(len(raw)).to_numpy(zero_copy_only=False)
    return table[number]
