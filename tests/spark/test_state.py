"""Keyed state on real Spark, classic and over Connect: every key has the state that a dict has."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from skewless import RoutingTable, streams
from skewless.spark.checkpoint import Checkpoint
from skewless.spark.state import Stateful, read_state

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("spark")]
STATE = StructType([StructField("n", LongType()), StructField("total", DoubleType())])
OUTPUT = StructType([StructField("k", StringType()), *STATE.fields])


def counting() -> Any:
    """A function that counts and sums, and forgets a key that has 30 rows; made here so that it needs no module."""

    def running(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
        n, total = state.get if state.exists else (0, 0.0)
        n, total = n + rows.num_rows, total + sum(rows["v"].to_pylist())
        if n >= 30:
            state.remove()
        else:
            state.update((n, total))
        return pa.table({"k": [key[0]], "n": [n], "total": [total]})

    return running


def operator(function: Any, **changes: Any) -> Stateful:
    given: dict[str, Any] = {"timeout": "none", "time": None, "delay": 0, "in_pandas": False, "state": STATE}
    return Stateful(**{"keys": ("k",), "function": function, "output": OUTPUT, **given, **changes})


def tables(batch: int) -> RoutingTable:
    """Other workers, hosts and hot keys in every batch."""
    rng = np.random.default_rng(batch)
    n = int(rng.integers(1, 5))
    plain = RoutingTable.hashed(n)
    hosts = rng.permutation(plain.hosts)
    return RoutingTable(n, hosts, plain.keys, plain.starts, plain.workers, plain.parts)


def batch_of(spark: SparkSession, batch: int, n: int = 400) -> tuple[DataFrame, pd.DataFrame]:
    ranks = streams.zipf(n, 60, 1.2, seed=batch).astype(np.int64)
    data = pd.DataFrame({"k": [None if rank == 3 else f"key {rank}" for rank in ranks], "v": np.arange(n) / 4})
    return spark.createDataFrame(data, "k string, v double").repartition(3), data


def read_state_of(spark: SparkSession, files: Checkpoint, state: Any) -> list[Any]:
    files.write(f"commits/{state['batch']}.json", {"state": state})
    return read_state(spark, files.directory).collect()


def test_states_are_those_of_a_dict_while_keys_move_and_workers_change(spark: SparkSession, tmp_path: Path) -> None:
    files, op, state = Checkpoint(str(tmp_path)), operator(counting()), None
    oracle: dict[Any, tuple[int, float]] = {}
    for batch in range(4):
        df, data = batch_of(spark, batch)
        found = op.run(df, batch, state, tables(batch), files, True)
        expected = {}
        for key, rows in data.groupby("k", dropna=False):
            name = key if isinstance(key, str) else None
            n, total = oracle.get(name, (0, 0.0))
            expected[name] = oracle[name] = n + len(rows), total + rows["v"].sum()
            if oracle[name][0] >= 30:
                del oracle[name]
        assert found.output is not None
        assert {row["k"]: (row["n"], row["total"]) for row in found.output.collect()} == expected
        assert sum(found.record["loads"]) == 400
        assert found.histogram is not None
        state = found.state
        op.forget(state, files)
    kept = read_state_of(spark, files, state)
    assert {row["k"]: (row["n"], row["total"]) for row in kept} == oracle


def test_timeouts_come_when_their_time_is_over_and_no_rows_do(spark: SparkSession, tmp_path: Path) -> None:
    """In event time, in pandas, with a batch that is empty."""

    def sessions(key: tuple[Any, ...], rows: pd.DataFrame, state: Any) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            yield pd.DataFrame({"k": [key[0]], "n": [state.get[0]], "total": [float(len(rows.columns))]})
            state.remove()
            return
        state.update((len(rows) + (state.get[0] if state.exists else 0), 0.0))
        state.setTimeoutTimestamp(max(state.getCurrentWatermarkMs(), int(rows["t"].max().timestamp() * 1000)) + 10_000)

    op = operator(sessions, timeout="event", time="t", delay=0, in_pandas=True)
    files, state = Checkpoint(str(tmp_path)), None
    ended = []
    batches = [[("a", 0), ("b", 5), ("a", 3)], [("a", 12), ("c", 1)], [], [("c", 40), ("b", 2)], []]
    for batch, rows in enumerate(batches):
        data = [(key, dt.datetime.fromtimestamp(second, dt.UTC)) for key, second in rows]
        df = spark.createDataFrame(data, "k string, t timestamp")
        found = op.run(df, batch, state, RoutingTable.hashed(3), files, False)
        state = found.state
        told = [] if found.output is None else found.output.collect()
        ended.append([(row["k"], row["n"], row["total"]) for row in sorted(told)])
    # b ends at 15, a at 22, the watermark is 5, 12, 12, 40 after the batches; c at 1 and b at 2 come too late.
    assert ended == [[], [], [], [], [("a", 3, 2.0), ("b", 1, 2.0)]]
    assert [row["k"] for row in read_state_of(spark, files, state)] == ["c"]
