"""Keys of recorded data are those of Spark, wherever the data come from."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from skewless import streams


def test_words_of_the_standard_library() -> None:
    words = streams.words(200_000)
    _, counts = np.unique(words, return_counts=True)
    assert words.size == 200_000
    assert np.array_equal(words[:1000], streams.words(1000))
    assert 0.02 < counts.max() / words.size < 0.2
    assert counts.size > 5000


def test_keys_are_sparks_xxhash64() -> None:
    """Values printed by Spark 4.3: SELECT xxhash64('Spark'), xxhash64(1), xxhash64(1L), xxhash64(NULL)."""
    assert streams.as_keys(["Spark"]).view(np.int64).tolist() == [-4294468057691064905]
    assert streams.as_keys(pa.array([1], pa.int32())).view(np.int64).tolist() == [-6698625589789238999]
    assert streams.as_keys([1]).view(np.int64).tolist() == [-7001672635703045582]
    assert streams.as_keys([None, "a"])[0] == 42


def test_keys_of_numpy_arrow_and_dictionaries_agree() -> None:
    values = [5, -3, 5, 2**40]
    expected = streams.as_keys(values).tolist()
    assert streams.as_keys(np.array(values)).tolist() == expected
    assert streams.as_keys(pa.chunked_array([values[:2], values[2:]])).tolist() == expected
    assert streams.as_keys(pa.array(values).dictionary_encode()).tolist() == expected
    assert streams.as_keys([]).size == 0
    assert streams.as_keys([None, None]).tolist() == [42, 42]
    assert streams.as_keys(pa.array(["a"], pa.string_view())).tolist() == streams.as_keys([b"a"]).tolist()
    for given, kind in (([1.5], "double"), (np.array([2**63], np.uint64), "uint64")):
        with pytest.raises(TypeError, match=f"keys are words or signed whole numbers, as in Spark, not {kind}"):
            streams.as_keys(given)


def test_traces(tmp_path: Path) -> None:
    words = ["a", "b", "a", "c"]
    table = pa.table({"n": [1, 2, 3, 4], "word": words})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "t.csv")
    with gzip.open(tmp_path / "t.txt.gz", "wt") as file:
        file.write("a b\na c\n")
    expected = streams.as_keys(words).tolist()
    assert streams.trace(tmp_path / "t.parquet", "word").tolist() == expected
    assert streams.trace(tmp_path / "t.csv", "word").tolist() == expected
    assert streams.trace(tmp_path / "t.txt.gz").tolist() == expected
    assert streams.trace(tmp_path / "t.parquet").tolist() == streams.as_keys([1, 2, 3, 4]).tolist()
    with pytest.raises(ValueError, match="has no column 'words'; it has n, word"):
        streams.trace(tmp_path / "t.parquet", "words")
    with pytest.raises(ValueError, match="there is no file"):
        streams.trace(tmp_path / "nothing.parquet")
