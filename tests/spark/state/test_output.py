"""Results of a user's function become one table of the output schema, in a file of their own. No Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skewless.spark.state.output import OutputFile, Results

pytestmark = pytest.mark.compiled
SCHEMA = pa.schema({"k": pa.string(), "n": pa.int64()})


def collected(results: list[Any], in_pandas: bool = False) -> list[dict[str, Any]]:
    all_results = Results(SCHEMA, in_pandas)
    for result in results:
        all_results.add(result)
    table = all_results.table()
    assert table.schema == SCHEMA
    return list(table.to_pylist())


def test_tables_batches_and_iterables_of_them_become_one_table() -> None:
    """With their columns in any order, and of types that fit."""
    one = pa.table({"n": pa.array([1], pa.int8()), "k": ["a"]})
    two = pa.record_batch({"k": ["b"], "n": pa.array([2], pa.int64()), "more": [True]})
    assert collected([None, one, [two, None], iter([one])]) == [
        {"k": "a", "n": 1},
        {"k": "b", "n": 2},
        {"k": "a", "n": 1},
    ]
    assert collected([]) == []


def test_frames_become_one_table() -> None:
    frame = pd.DataFrame({"n": [1, 2], "k": ["a", None]})
    assert collected([frame, [frame.head(1)]], in_pandas=True) == [
        {"k": "a", "n": 1},
        {"k": None, "n": 2},
        {"k": "a", "n": 1},
    ]


@pytest.mark.parametrize(
    ("result", "in_pandas", "sentence"),
    [
        ("text", False, "must return a pyarrow table, an iterable of them, or None, not str"),
        (pd.DataFrame({"n": [1]}), True, "output lacks k; it has n"),
        (pa.table({"k": ["a"]}), False, "output lacks n; it has k"),
        ({"k": "a"}, True, "must return a pandas frame, an iterable of them, or None, not dict"),
    ],
)
def test_other_results_are_refused(result: Any, in_pandas: bool, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        collected([result], in_pandas)


def test_a_file_is_made_with_the_first_rows(tmp_path: Path) -> None:
    rows = pa.table({"k": ["a"], "n": [1]}, schema=SCHEMA)
    file, empty = (OutputFile(str(tmp_path / "output"), worker, SCHEMA) for worker in (3, 4))
    for part in (rows.slice(0, 0), rows, rows):
        file.add(part)
    empty.add(rows.slice(0, 0))
    assert empty.close() is None
    path = file.close()
    assert path is not None
    assert [str(name) for name in (tmp_path / "output").iterdir()] == [path]
    assert Path(path).name.startswith("00003-")
    assert pq.read_table(path).equals(pa.concat_tables([rows, rows]))


def test_errors_name_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("no directory")
    with pytest.raises(OSError, match=str(tmp_path / "output/00000-")):
        OutputFile(str(tmp_path / "output"), 0, SCHEMA).add(pa.table({"k": ["a"], "n": [1]}, schema=SCHEMA))
