"""What a stateful task does with its rows before it calls anything; no Spark runs here."""

from __future__ import annotations

import datetime as dt
import socket
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from skewless.spark.fold import _each
from skewless.spark.groupstate import Clock, GroupState
from skewless.spark.haste import hastened, hastening
from skewless.spark.task import Groups, whole_runs
from skewless.store import Store

NAN = float("nan")
# As Spark hands them over: elements and entries have its names, times are in the session's zone.
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
def test_rows_are_grouped_by_keys_of_any_type_even_if_their_hashes_meet(kind: str) -> None:
    given_as, kept_as, values = KEYS[kind]
    store = Store("nowhere", pa.schema({"k": kept_as}), pa.schema({"n": pa.int64()}))
    numbers = np.random.default_rng(0).integers(0, len(values), 40)
    numbers[:5] = 0
    rows = pa.table({"k": pa.array([values[n] for n in numbers], given_as), "v": numbers, "at": np.full(40, -7)})
    groups = Groups.of(rows, "at", ["k"], store)
    found = {int(part["v"][0].as_py()): part for part in groups.tables()}
    assert len(groups.texts) == len(set(groups.texts)) == len(found) == len(set(numbers.tolist()))
    assert {n: part.num_rows for n, part in found.items()} == {n: int((numbers == n).sum()) for n in found}
    assert all(set(part["v"].to_pylist()) == {n} for n, part in found.items())
    assert [len(frame) for frame in groups.frames()] == [part.num_rows for part in groups.tables()]


def test_equal_keys_that_look_different_are_one_key() -> None:
    store = Store("nowhere", pa.schema({"k": pa.float64()}), pa.schema({"n": pa.int64()}))
    rows = pa.table({"k": [0.0, -0.0, NAN, NAN], "at": [1, 1, 2, 2]})
    assert Groups.of(rows, "at", ["k"], store).bounds == [0, 2, 4]


@given(st.lists(st.integers(0, 3), max_size=8), st.integers(1, 15_000))
def test_a_place_is_in_one_table_only(lengths: list[int], unit: int) -> None:
    places = np.repeat(np.arange(len(lengths)), np.array(lengths, np.int64) * unit)
    rows = pa.table({"at": pa.array(places, pa.int64())})
    marker = pa.record_batch({"at": pa.nulls(1, pa.int64())})
    tables = list(whole_runs(iter([marker, *rows.to_batches(max_chunksize=7000)]), "at"))
    assert pa.concat_tables([rows.slice(0, 0), *tables]).equals(rows)
    seen = [set(np.unique(table["at"].to_numpy()).tolist()) for table in tables]
    assert sum(map(len, seen)) == len(set().union(*seen))


def test_aggregates_run_where_this_library_is_not(tmp_path: Path) -> None:
    """Three times, as tasks of one process; from the second on they spare what the first has imported."""

    def total(rows: pa.Table) -> pa.Table:
        return pa.table({"n": [rows.num_rows]})

    rows = pa.record_batch({"k": [1, 1, 2], "begins": [True, False, True]})
    call = _each("begins", ["k"], [], total, pa.schema({"n": pa.int64()}))
    (tmp_path / "call").write_bytes(cloudpickle.dumps((call, rows)))  # type: ignore[no-untyped-call]
    script = f"""import gc, sys
sys.modules["skewless"] = None
from pyspark import cloudpickle
for _ in range(3):
    call, rows = cloudpickle.loads(open({str(tmp_path / "call")!r}, "rb").read())
    print([batch.to_pydict() for batch in call(iter([rows]))], gc.get_freeze_count() > 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    found = "[{'k': [1], 'n': [2]}, {'k': [2], 'n': [1]}]"
    assert done.stdout.splitlines() == [f"{found} False", f"{found} True", f"{found} True"], done.stderr


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone can be told to acknowledge at once")
def test_tasks_acknowledge_at_once_what_spark_sends(tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    spark = socket.create_connection(listening.getsockname())
    task, _ = listening.accept()
    with listening, spark, task, (tmp_path / "file").open("w") as file:
        task.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        is_open = sorted(Path("/proc/self/fd").iterdir())
        hastening()()
        assert task.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        assert sorted(Path("/proc/self/fd").iterdir()) == is_open
        task.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        call = cloudpickle.loads(cloudpickle.dumps(hastened(lambda: "called")))  # type: ignore[no-untyped-call]
        assert task.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        assert call() == "called"
        file.write("still open")


def test_what_a_state_refuses() -> None:
    clock = Clock(now=1000, watermark=500, timeout="EventTimeTimeout", timed=False, width=2)
    state = GroupState(clock, None, False)
    assert not state.exists
    assert state.getOption is None
    for action, words in (
        (lambda: state.get, "no state"),
        (lambda: state.update((1,)), "tuple of 2 fields"),
        (lambda: state.setTimeoutDuration(5), 'needs timeoutConf="ProcessingTimeTimeout"'),
        (lambda: state.setTimeoutTimestamp(499), "not before the watermark 500"),
        (lambda: state.getCurrentWatermarkMs(), "no watermark"),
    ):
        with pytest.raises(ValueError, match=words):
            action()
    state.update((1, 2))
    assert state.get == (1, 2)
    state.remove()
    assert not state.exists
