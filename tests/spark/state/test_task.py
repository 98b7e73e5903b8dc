"""A task calls the function for keys that timed out, unless they have rows. No Spark is started."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from skewless import RoutingTable
from skewless.spark.state.group_state import BatchTime, GroupState
from skewless.spark.state.task import Columns, Task
from skewless.store import Manifest, Share, StateStore

pytestmark = pytest.mark.compiled
KEY, STATE = pa.schema({"k": pa.float64()}), pa.schema({"n": pa.int64()})
NAN = float("nan")


def test_a_key_times_out_although_another_one_with_its_position_has_rows(tmp_path: Path) -> None:
    """Also if its value is not equal to itself, as NaN."""
    store, table = StateStore(str(tmp_path / "state"), KEY, STATE), RoutingTable.hashed(1)
    states = pa.table(
        [
            pa.array([5, 5, 9, 9], pa.uint64()),
            store.key_codec.array([(1.0,), (2.0,), (NAN,), (4.0,)]),
            store.state_codec.array([(10,), (20,), (30,), (40,)]),
            pa.array([100, 100, 100, 5000], pa.int64()),
        ],
        schema=store.schema,
    )
    manifest = Manifest.empty(store).committed(store, 0, [store.write(states, Share.of(table, 0), 0, 0)])
    called: list[tuple[str, int, bool]] = []

    def call(key: tuple[Any, ...], rows: pa.Table, state: GroupState) -> None:
        called.append((str(key[0]), rows.num_rows, state.hasTimedOut))

    task = Task(
        function=call,
        in_pandas=False,
        columns=Columns(keys=("k",), position="at", rows=KEY, output=KEY),
        store=store,
        manifest=manifest,
        table=table,
        version=1,
        clock=BatchTime(now=1000, watermark=0, timeout="ProcessingTimeTimeout", timed=False, width=1),
        output_directory=str(tmp_path / "output"),
        hot_copies=str(tmp_path / "hot"),
        n_tasks=1,
    )
    with ExitStack() as opened:
        work = task._start(0, opened)
        task._handle_rows(call, pa.table({"k": [1.0, 1.0, NAN], "at": pa.array([5, 5, 9], pa.int64())}), work)
        report = task._finish(call, work)
    assert called == [("1.0", 2, False), ("nan", 1, False), ("2.0", 0, True)]
    assert report["expired"] == 1
