"""Keyed state on real Spark, classic and over Connect: every key has the state that a dict has."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

import skewless.spark as sl
from skewless import RoutingTable, streams
from skewless.spark.state import routing
from skewless.spark.state.function import KeyFunction
from skewless.spark.state.merging import MergedSegments
from skewless.spark.state.operator import Stateful
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.commit import Commit
from skewless.spark.streaming.operator import Batch
from skewless.spark.streaming.rows import EventTime, StreamKey
from tests.faults.harm import killed_once

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]
STATE = StructType([StructField("n", LongType()), StructField("total", DoubleType())])
OUTPUT = StructType([StructField("k", StringType()), *STATE.fields])


def counting() -> Any:
    """Returns a nested function, sent by value, that counts and sums, and forgets a key that has 30 rows."""

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
    time = changes.pop("time", None)
    settings = {"output": OUTPUT, "state": STATE, **changes}
    called = KeyFunction(call=function, timed=time is not None, **settings)
    return Stateful(key=StreamKey.plain("k"), function=called, time=time)


def tables(batch: int) -> RoutingTable:
    """Returns a table with a random number of workers and hosts in random order, without hot keys."""
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
    Commit(state=state, scale=None, record={}).write(files, state.batch)
    return sl.read_state(spark, files.directory).collect()


@pytest.mark.parametrize("in_turn", [1, 4])
def test_states_are_those_of_a_dict_while_keys_move_and_workers_change(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_turn: int
) -> None:
    """Also where there are more workers than tasks."""
    monkeypatch.setattr(routing, "IN_TURN", in_turn)
    monkeypatch.setattr("skewless.store.manifest.SEGMENTS", 1)  # merge as soon as there is something to merge
    files, op, state = Checkpoint(str(tmp_path)), operator(counting()), None
    background: Background[MergedSegments] = Background("test-merge")
    oracle: dict[Any, tuple[int, float]] = {}
    for batch in range(4):
        df, data = batch_of(spark, batch)
        table = tables(batch)
        given: Batch[Any] = Batch(
            df=df, number=batch, state=state, router=table, files=files, background=background, portion=1.0
        )
        found = op.run(given)
        expected = {}
        for key, rows in data.groupby("k", dropna=False):
            name = key if isinstance(key, str) else None
            n, total = oracle.get(name, (0, 0.0))
            expected[name] = oracle[name] = n + len(rows), total + rows["v"].sum()
            if oracle[name][0] >= 30:
                del oracle[name]
        assert found.output is not None
        assert {row["k"]: (row["n"], row["total"]) for row in found.output.collect()} == expected
        assert found.histogram is not None
        counted = sl.profile(df, "k").histogram
        assert found.record["loads"] == table.loads(counted.keys, counted.counts).tolist()
        assert found.histogram.keys.tolist() == counted.keys.tolist()
        assert found.histogram.counts.tolist() == counted.counts.tolist()
        state = found.state
        kept = read_state_of(spark, files, state)
        op.forget(state, files, background)
        if background._job is not None:
            assert len(background._job.result().receipts) == len(found.record["loads"])
    background.close()
    assert {row["k"]: (row["n"], row["total"]) for row in kept} == oracle
    assert state is not None
    assert len(state.manifest.segments) < 4


def test_rows_of_any_types_come_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.sql(
        """SELECT * FROM VALUES
        ('a', true, 1Y, 2S, 3, 4L, 1.5F, double('NaN'), X'00FF', DATE'0001-01-03', TIMESTAMP'1500-02-03 04:05:06.789',
         TIMESTAMP_NTZ'1883-11-18 12:00:01', 1234567890123456.789BD, INTERVAL '3 4:05:06.7' DAY TO SECOND,
         array(named_struct('x', 1, 'y', 'z'), NULL), map('p', 1.5D, 'q', NULL), named_struct('in', array(1, NULL))),
        ('b', NULL, NULL, NULL, NULL, NULL, NULL, -0.0D, X'', DATE'9999-12-31', TIMESTAMP'2026-11-16 00:00:00', NULL,
         NULL, INTERVAL '-1' DAY, array(), map(), NULL)
        AS rows(k, bool, byte, short, int, long, float, double, bin, date, time, local, dec, span, list, map, nested)"""
    )

    def same(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
        return rows

    job = operator(same, output=df.schema)
    files, table = Checkpoint(str(tmp_path)), RoutingTable.hashed(2)
    background: Background[Any] = Background("test-merge")
    given: Batch[Any] = Batch(df=df, number=0, state=None, router=table, files=files, background=background)
    found = job.run(given).output
    assert found is not None
    assert repr(found.orderBy("k").collect()) == repr(df.orderBy("k").collect())  # NaN is not equal to itself
    assert found.schema.simpleString() == df.schema.simpleString()


def test_timeouts_come_when_their_time_is_over_and_no_rows_do(spark: SparkSession, tmp_path: Path) -> None:
    """In event time, in pandas, with a batch that is empty."""

    def sessions(key: tuple[Any, ...], rows: pd.DataFrame, state: Any) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            yield pd.DataFrame({"k": [key[0]], "n": [state.get[0]], "total": [float(len(rows.columns))]})
            state.remove()
            return
        state.update((len(rows) + (state.get[0] if state.exists else 0), 0.0))
        state.setTimeoutTimestamp(max(state.getCurrentWatermarkMs(), int(rows["t"].max().timestamp() * 1000)) + 10_000)

    op = operator(sessions, timeout="EventTimeTimeout", time=EventTime("t", 0), in_pandas=True)
    files, state, ended = Checkpoint(str(tmp_path)), None, []
    background: Background[Any] = Background("test-merge")
    batches = [[("a", 0), ("b", 5), ("a", 3)], [("a", 12), ("c", 1)], [], [("c", 40), ("b", 2)], []]
    for batch, rows in enumerate(batches):
        data = [(key, dt.datetime.fromtimestamp(second, dt.UTC)) for key, second in rows]
        df = spark.createDataFrame(data, "k string, t timestamp")
        table = RoutingTable.hashed(3)
        found = op.run(Batch(df=df, number=batch, state=state, router=table, files=files, background=background))
        state = found.state
        rows_out = [] if found.output is None else found.output.collect()
        ended.append([(row["k"], row["n"], row["total"]) for row in sorted(rows_out)])
    # b ends at 15, a at 22, the watermark is 5, 12, 12, 40 after the batches; b at 2 comes too late. c at 1 does not:
    # as in Spark, late is what the batch before would have called late.
    assert ended == [[], [], [], [], [("a", 3, 2.0), ("b", 1, 2.0)]]
    assert [(row["k"], row["n"]) for row in read_state_of(spark, files, state)] == [("c", 2)]


def deadly(flag: str) -> Any:
    """Returns a function that counts rows; if there is a flag, it kills its Python worker in the middle of its work."""
    die = killed_once(flag)

    def counted(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
        n = rows.num_rows + (state.get[0] if state.exists else 0)
        state.update((n, 0.0))
        if key[0] == "key 5":
            die()
        return pa.table({"k": [key[0]], "n": [n], "total": [0.0]})

    return counted


def test_a_query_that_dies_and_is_rescaled_continues(spark: SparkSession, tmp_path: Path) -> None:
    source, flag = tmp_path / "source", tmp_path / "flag"
    source.mkdir()
    batches = [streams.zipf(300, 40, 1.2, seed=number).astype(np.int64).tolist() for number in range(4)]
    for number, ranks in enumerate(batches):
        pq.write_table(pa.table({"k": [f"key {rank}" for rank in ranks]}), source / f"{number}.parquet")
        os.utime(source / f"{number}.parquet", (number, number))
    events = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1).parquet(str(source))
    stream = sl.stream(events, "k", partitioner="kip", n_workers=2)
    initial = spark.createDataFrame([("key 1", 100, 0.0), ("gone", 1, 0.0)], "k string, n long, total double")
    job = stream.applyInArrowWithState(deadly(str(flag)), OUTPUT, STATE, initialState=initial)
    flag.touch()
    with pytest.raises(Exception, match=r"(?i)worker|crash|fail"):
        job.start(str(tmp_path / "sink"), str(tmp_path / "checkpoint"), available_now=True).awaitTermination(300)
    assert not flag.exists()
    query = job.start(str(tmp_path / "sink"), str(tmp_path / "checkpoint"), available_now=True)
    query.rescale(5)
    assert query.awaitTermination(300)
    records = query.recent()
    assert [record["batch"] for record in records] == [0, 1, 2, 3]
    assert records[-1]["workers"] == len(records[-1]["loads"]) == 5
    counts = Counter({"key 1": 100, "gone": 1})
    expected = []
    for ranks in batches:
        counts.update(f"key {rank}" for rank in ranks)
        expected.append({key: counts[key] for key in {f"key {rank}" for rank in ranks}})
    for number, counts_of_batch in enumerate(expected):
        rows = pq.read_table(tmp_path / "sink" / f"batch_id={number}").to_pylist()
        assert {row["k"]: row["n"] for row in rows} == counts_of_batch
        assert len(rows) == len(counts_of_batch)
    assert {row["k"]: row["n"] for row in sl.read_state(spark, str(tmp_path / "checkpoint")).collect()} == counts
