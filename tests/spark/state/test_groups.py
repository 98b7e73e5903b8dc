"""Rows of a task by key."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless.spark.state.groups import Groups, whole_runs
from skewless.store import StateStore

NAN = float("nan")
# Type in Spark's batches, type in the store, values. Spark's times have the session's zone.
KEYS: dict[str, tuple[pa.DataType, pa.DataType, list[Any]]] = {
    "strings": (pa.string(), pa.string(), ["", "a", None, "ä"]),
    "doubles": (pa.float64(), pa.float64(), [0.0, NAN, None, 1.5]),
    "decimals": (pa.decimal128(20, 2), pa.decimal128(20, 2), [Decimal("1.10"), None, Decimal("-5.00")]),
    "times": (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1, 5), None]),
    "structs": (
        pa.struct([pa.field("a", pa.int32(), False), pa.field("b", pa.string())]),
        pa.struct({"a": pa.int32(), "b": pa.string()}),
        [{"a": 1, "b": "x"}, {"a": 1, "b": None}, None],
    ),
    "arrays": (
        pa.list_(pa.field("element", pa.float64(), False)),
        pa.list_(pa.float64()),
        [[0.0], [], [1.0, NAN], None],
    ),
    "maps": (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", 2)], [], None]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_grouped_by_keys_of_any_type_even_if_their_hashes_collide(kind: str) -> None:
    spark_type, stored_type, values = KEYS[kind]
    store = StateStore("nowhere", pa.schema({"k": stored_type}), pa.schema({"n": pa.int64()}))
    numbers = np.random.default_rng(0).integers(0, len(values), 40)
    numbers[:5] = 0
    rows = pa.table({"k": pa.array([values[n] for n in numbers], spark_type), "v": numbers, "at": np.full(40, -7)})
    groups = Groups.of(rows, "at", ["k"], store)
    found = {int(part["v"][0].as_py()): part for part in groups.tables()}
    assert len(groups.texts) == len(set(groups.texts)) == len(found) == len(set(numbers.tolist()))
    assert {n: part.num_rows for n, part in found.items()} == {n: int((numbers == n).sum()) for n in found}
    assert all(set(part["v"].to_pylist()) == {n} for n, part in found.items())
    assert [len(frame) for frame in groups.frames()] == [part.num_rows for part in groups.tables()]


def test_equal_keys_that_look_different_are_one_key() -> None:
    store = StateStore("nowhere", pa.schema({"k": pa.float64()}), pa.schema({"n": pa.int64()}))
    rows = pa.table({"k": [0.0, -0.0, NAN, NAN], "at": [1, 1, 2, 2]})
    assert Groups.of(rows, "at", ["k"], store).bounds == [0, 2, 4]


@given(st.lists(st.integers(0, 3), max_size=8), st.integers(1, 15_000))
def test_all_rows_of_a_position_are_in_one_table(lengths: list[int], unit: int) -> None:
    positions = np.repeat(np.arange(len(lengths)), np.array(lengths, np.int64) * unit)
    rows = pa.table({"at": pa.array(positions, pa.int64())})
    marker = pa.record_batch({"at": pa.nulls(1, pa.int64())})
    tables = list(whole_runs(iter([marker, *rows.to_batches(max_chunksize=7000)]), "at"))
    assert pa.concat_tables([rows.slice(0, 0), *tables]).equals(rows)
    seen = [set(np.unique(table["at"].to_numpy()).tolist()) for table in tables]
    assert sum(map(len, seen)) == len(set().union(*seen))
