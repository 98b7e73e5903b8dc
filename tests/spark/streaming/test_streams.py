"""Streams learn between batches, continue after a restart, and refuse what they cannot do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import streams
from skewless.spark.streaming import checkpoint
from skewless.spark.streaming.checkpoint import Checkpoint
from tests.faults.harm import blocked, damage, damaged
from tests.spark.batches import BATCHES, BEGIN, batch_of, expected, output_of, read, run_to_end, write

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


@pytest.mark.parametrize("name", ["dalton", "kip"])
def test_sources_route_each_row_and_agree_between_batches(spark: SparkSession, tmp_path: Path, name: str) -> None:
    batches = BATCHES[:4]  # the first agreement may take longer than a batch, and is then not repeated after the next
    job = sl.stream(
        read(spark, write(tmp_path / "in", batches)), "k", time="ts", partitioner=sl.Exact(name), n_workers=4
    )
    query = run_to_end(job.window("10 seconds").agg(s=sl.sum("v")), str(tmp_path / "out"), tmp_path / "checkpoint")
    assert output_of(spark, tmp_path / "out") == expected(spark, batches, 10, 10, s=F.sum("v"))
    assert query.recent()[-1]["decision"] == f"{name}: 1 source routes each row; they agreed after the last batch"
    assert len(list((tmp_path / "checkpoint/skewless/sources").iterdir())) <= 2


def test_counting_a_part_of_a_large_batch_is_enough_to_plan_by(spark: SparkSession, tmp_path: Path) -> None:
    batches, rows = [], 120_000
    for number in range(3):
        ranks = streams.zipf(rows, 500, 1.2, seed=number).astype(np.int64)
        begin = int(BEGIN.timestamp() * 1e6) + 10_000_000 * number
        times = pa.array(begin + np.arange(rows), pa.timestamp("us", "UTC"))
        batches.append(pa.table({"k": [f"k{rank}" for rank in ranks.tolist()], "v": np.arange(rows), "ts": times}))
    job = sl.stream(read(spark, write(tmp_path / "in", batches)), "k", time="ts", partitioner="level", n_workers=4)
    query = run_to_end(job.window("10 seconds").agg(n=sl.count()), str(tmp_path / "out"), tmp_path / "checkpoint")
    assert output_of(spark, tmp_path / "out") == expected(spark, batches, 10, 10, n=F.count(F.lit(1)))
    last = query.recent()[-1]
    assert last["imbalance_ratio"] < 1.05
    assert last["keys"] == pytest.approx(len(set(batches[-1]["k"].to_pylist())), rel=0.1)


def test_a_query_continues_with_another_partitioner(spark: SparkSession, tmp_path: Path) -> None:
    source, out, checkpoint = tmp_path / "in", str(tmp_path / "out"), tmp_path / "checkpoint"
    wanted: Counter[tuple[Any, ...]] = Counter()
    decisions: list[str] = []
    for number, (partitioner, workers) in enumerate([("level", 3), ("level", 5), ("kip", 5), ("auto", None)]):
        write(source, BATCHES[number : number + 1])
        stream = sl.stream(read(spark, str(source)), "k", time="ts", partitioner=partitioner, n_workers=workers)
        query = run_to_end(stream.window("20 seconds", "5 seconds").agg(s=sl.sum("v")), out, checkpoint)
        decisions.append(query.recent()[-1]["decision"])
        wanted = expected(spark, BATCHES[: number + 1], 20, 5, s=F.sum("v"))
        assert output_of(spark, out) == wanted
    assert decisions[1].startswith("5 workers instead of 3")
    assert decisions[2].startswith("kip")
    assert decisions[3].startswith("left to Spark")


def test_workers_are_added_while_batches_take_too_long(spark: SparkSession, tmp_path: Path) -> None:
    source = write(tmp_path / "in", [batch_of(50, number) for number in range(6)])
    job = sl.stream(read(spark, source), "k", time="ts", partitioner="level", n_workers=(2, 3)).window("10 seconds")
    query = job.agg(n=sl.count()).start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), interval="10 milliseconds")
    try:
        query.processAllAvailable()
        records = query.recent()
        assert records[0]["workers"] == 2
        assert records[-1]["workers"] == 3  # every batch takes longer than 10 ms
        assert any(record["scaling"].startswith("out: ") for record in records)
    finally:
        query.stop()


def test_bad_streams_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = write(tmp_path / "in", BATCHES[:1])
    events = read(spark, source)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    stream = sl.stream(events, "k", time="ts")
    job, other = stream.window("10 seconds").agg(n=sl.count()), sl.stream(events, "v", time="ts")
    run_to_end(job, out, checkpoint)
    refused: list[tuple[str, Callable[[], object]]] = [
        ("stream takes a streaming DataFrame", lambda: sl.stream(spark.range(1), "id")),
        ("there is no column 'x'", lambda: sl.stream(events, "x")),
        ("column 'v' must be a timestamp, not bigint", lambda: sl.stream(events, "k", time="v")),
        ("window was 10,000,000", lambda: stream.window("5 seconds").agg(n=sl.count()).start(out, checkpoint)),
        ("aggregate was", lambda: stream.window("10 seconds").agg(n=sl.count("v")).start(out, checkpoint)),
        (
            "key was",
            lambda: other.window("10 seconds").agg(n=sl.count()).start(out, checkpoint),
        ),
        ("the output of another query", lambda: job.start(out, str(tmp_path / "other"))),
        ("is not empty", lambda: job.start(source, str(tmp_path / "third"))),
    ]
    for sentence, call in refused:
        with pytest.raises((ValueError, TypeError), match=re.escape(sentence)):
            call()
    commit = next((tmp_path / "checkpoint/skewless/commits").iterdir())
    damage(commit, "rubbish")
    write(tmp_path / "in", BATCHES[1:2])
    with pytest.raises(Exception, match=r"commits/0\.json is damaged"):
        run_to_end(job, out, checkpoint)


def test_a_second_query_on_a_checkpoint_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    job = (
        sl.stream(read(spark, write(tmp_path / "in", BATCHES[:1])), "k", time="ts")
        .window("10 seconds")
        .agg(n=sl.count())
    )
    query = job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    try:
        query.processAllAvailable()
        with pytest.raises(ValueError, match="another query is running on the checkpoint"):
            job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"))
    finally:
        query.stop()
    job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), available_now=True).awaitTermination(100)


@pytest.mark.parametrize("spark", ["classic"], indirect=True)  # over Connect batches run in another process
def test_a_second_query_is_refused_where_there_are_no_locks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())
    monkeypatch.setattr(checkpoint, "resolve", lambda directory: (local, directory))
    source, out, files = tmp_path / "in", str(tmp_path / "out"), tmp_path / "checkpoint"
    events = read(spark, write(source, BATCHES[:1]))
    job = sl.stream(events, "k", time="ts").window("10 seconds").agg(n=sl.count())
    query = job.start(out, str(files))
    try:
        query.processAllAvailable()
        with pytest.raises(ValueError, match="another query is running on the checkpoint"):
            job.start(out, str(files))
        write(source, BATCHES[1:2])
        query.processAllAvailable()
        damage(files / "skewless/owner", "rubbish")  # as if another one had written its name
        write(source, BATCHES[2:3])
        with pytest.raises(Exception, match="another query is running on the checkpoint"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert Checkpoint(str(files)).numbered("commits") == [0, 1]
    damage(files / "skewless/owner", "missing")
    with pytest.raises(ValueError, match="is the checkpoint of another query"):
        sl.stream(events, "k", time="ts").window("20 seconds").agg(n=sl.count()).start(out, str(files))
    assert not (files / "skewless/owner").exists()
    write(source, BATCHES[3:4])
    run_to_end(job, out, files)
    assert output_of(spark, out) == expected(spark, BATCHES[:4], 10, 10, n=F.count("*"))


@pytest.mark.smoke  # Spark 4.1 over Connect remembers files that a replay has replaced
def test_errors_name_files_that_cannot_be_read_or_written_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    job = (
        sl.stream(read(spark, write(source, BATCHES[:2])), "k", time="ts", partitioner="level", n_workers=3)
        .window("20 seconds", "10 seconds")
        .agg(n=sl.count(), all=sl.collect_list("v"))
    )
    run_to_end(job, str(out), checkpoint)
    write(source, BATCHES[2:4])
    panes = checkpoint / "skewless/panes"
    part = next(path for path in sorted(panes.glob("*/*.parquet"))[::-1] if path.stat().st_size)
    with damaged(part, "cut"), pytest.raises(Exception, match=re.escape(part.name)):
        run_to_end(job, str(out), checkpoint)
    with blocked(out), pytest.raises(Exception, match=re.escape(str(out))):
        run_to_end(job, str(out), checkpoint)
    run_to_end(job, str(out), checkpoint)
    found = Counter(
        (window, key, n, tuple(sorted(values))) for window, key, n, values in output_of(spark, out).elements()
    )
    by_key = expected(spark, BATCHES[:4], 20, 10, n=F.count("*"), all=F.sort_array(F.collect_list("v")))
    assert found == by_key
