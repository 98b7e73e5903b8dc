"""Partitioners that users write are followed, like ours, by every verb and all streams that take a partitioner.

The tests compare where rows go with what the user's partitioner decides by itself, without Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import skewless
import skewless.spark as sl
from skewless import Partitioner, RoutingTable
from skewless.cooperation.protocol import exchange
from skewless.histogram import Histogram
from skewless.spark.grids import JoinCosts
from skewless.spark.keys import hashed
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.testing import check_partitioner
from tests.fixtures import jobs
from tests.spark.own import Emptiest, FirstSeen, HeaviestFirst
from tests.spark.places import workers_in_arrow, workers_in_columns

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]
WHOLE = [HeaviestFirst, FirstSeen]
ALL = [*WHOLE, Emptiest]
N = 4
OURS = ("hash", "level", "kip", "auto")
Own = type[Partitioner[Any, Any]]


def rows_of(df: DataFrame) -> Counter[Any]:
    return Counter(tuple(tuple(sorted(v)) if isinstance(v, list) else v for v in row) for row in df.collect())


def events(spark: SparkSession) -> DataFrame:
    return jobs.all_rows(spark, jobs.EVENTS, 600).drop("ts")


def others(spark: SparkSession) -> DataFrame:
    return jobs.all_rows(spark, jobs.OTHERS, 60).drop("at")


def with_worker(df: DataFrame) -> DataFrame:
    return df.withColumn("worker", F.spark_partition_id())


def key_hashes(df: DataFrame) -> dict[str, int]:
    hashes = df.select("k", hashed(df, ["k"]).alias("hash")).distinct().collect()
    return {row["k"]: row["hash"] % 2**64 for row in hashes}


def planned(own: Own, histogram: Histogram, hashes: dict[str, int]) -> dict[str, set[int]]:
    """Returns the workers of each key by the plan that a user's partitioner makes; no plan of ours is the same."""
    keys = np.array([*hashes.values()], np.uint64)
    tables = [p.forecast(histogram) for p in (own(N), *(skewless.partitioner(name, N) for name in OURS))]
    plans = [[set(table.shares(key)) for key in keys.tolist()] for table in tables]
    assert plans[0] not in plans[1:]
    return dict(zip(hashes, plans[0], strict=True))


def decided(own: Own, df: DataFrame) -> set[tuple[str, int, int]]:
    """Returns the key, the value and the worker of each row, as one source for each partition decides together."""
    rows = df.select("k", "v", hashed(df, ["k"]).alias("hash"), F.spark_partition_id().alias("source")).collect()
    by_source = [[row for row in rows if row["source"] == number] for number in sorted({r["source"] for r in rows})]
    keys = [np.array([row["hash"] % 2**64 for row in part], np.uint64) for part in by_source]
    sources = [own(N) for _ in by_source]
    if own.plans_ahead:
        for source, part in zip(sources, keys, strict=True):
            source.observe(part)
        exchange(sources)
    workers = [worker for source, part in zip(sources, keys, strict=True) for worker in source.route(part).tolist()]
    return {
        (row["k"], row["v"], worker) for row, worker in zip([r for p in by_source for r in p], workers, strict=True)
    }


def check_places(places: Iterable[tuple[str, int]], plan: dict[str, set[int]]) -> None:
    """Checks the keys of rows and their workers: all are where the plan says, and most rows of a key on one side."""
    rows = Counter(places)
    assert all(worker in plan[key] for key, worker in rows)
    for key, workers in plan.items():
        if sum(rows[key, worker] for worker in workers) >= 10:
            assert len([worker for worker in workers if rows[key, worker]]) >= min(2, len(workers)), key


@pytest.mark.parametrize("own", ALL)
def test_own_partitioners_keep_the_laws(own: Own) -> None:
    check_partitioner(own)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("own", WHOLE)
def test_verbs_on_whole_keys(spark: SparkSession, own: Own, exact: bool) -> None:
    df = events(spark)
    if exact and not own.plans_ahead:
        df = df.coalesce(1)  # one source gets all rows; Spark would decide in which order, if there were more tasks

    def by() -> Any:
        return sl.Exact(own(N)) if exact else own(N)

    def in_pandas(rows: Any) -> Any:
        return rows.assign(n=len(rows))

    def in_arrow(rows: pa.Table) -> pa.Table:
        return rows.append_column("n", pa.array([rows.num_rows] * rows.num_rows))

    if exact:
        places = decided(own, df)
    else:
        plan = planned(own, sl.profile(df, "k").histogram, key_hashes(df))
        places = {(key, value, worker) for key, value in df.collect() for worker in plan[key]}
    assert len(places) == 600
    sizes = Counter(key for key, _, _ in places)
    counted = Counter((key, value, sizes[key], worker) for key, value, worker in places)
    schema = "k string, v long, n long"
    assert rows_of(with_worker(sl.repartition(df, "k", partitioner=by()))) == Counter(places)
    groups = sl.group_by(df, "k", partitioner=by())
    assert rows_of(with_worker(groups.applyInPandas(in_pandas, schema))) == counted
    assert rows_of(with_worker(groups.applyInArrow(in_arrow, schema))) == counted
    assert rows_of(with_worker(sl.over(df, "k", partitioner=by(), n=F.count("v")))) == counted
    ranked = sl.over(df, "k", order_by="v", partitioner=by(), so_far=F.sum("v"))
    so_far = F.sum("v").over(Window.partitionBy("k").orderBy("v"))
    assert rows_of(ranked) == rows_of(df.withColumn("so_far", so_far))
    said = sl.explain(df, "k", operator="applyInPandas", partitioner=by())
    assert (said.decision.partitioner, said.n_workers) == (own.name, N)


@pytest.mark.parametrize("own", WHOLE)
def test_cogroups(spark: SparkSession, own: Own) -> None:
    def both(left: Any, right: Any) -> Any:
        import pandas as pd

        key = [*left["k"], *right["k"]][0]
        return pd.DataFrame({"k": [key], "left": [len(left)], "right": [len(right)]})

    df, other = events(spark), others(spark)
    histogram = sl.profile(df, "k").histogram + sl.profile(other, "k").histogram
    plan = planned(own, histogram, key_hashes(df.select("k").union(other.select("k"))))
    pairs = sl.group_by(df, "k", partitioner=own(N)).cogroup(sl.group_by(other, "k", partitioner=own(N)))
    ours = with_worker(pairs.applyInPandas(both, "k string, left long, right long"))
    plain = df.groupBy("k").cogroup(other.groupBy("k")).applyInPandas(both, "k string, left long, right long")
    assert rows_of(ours) == Counter((*row, worker) for row in plain.collect() for worker in plan[row["k"]])
    said = sl.explain(df, "k", operator="cogroup", other=other, partitioner=own(N))
    assert said.decision.partitioner == own.name


@pytest.mark.parametrize("how", ["inner", "full"])
@pytest.mark.parametrize("own", ALL)
def test_joins(spark: SparkSession, own: Own, how: str) -> None:
    df, other = events(spark), others(spark)
    said = sl.explain(df, "k", operator="join", other=other, how=how, partitioner=own(N)).decision
    assert said.partitioner == own.name
    plan = planned(own, JoinCosts.of(said.profiles, how).histogram, key_hashes(df))
    joined = with_worker(sl.join(df, other, "k", how=how, partitioner=own(N))).collect()
    assert Counter(row[:3] for row in joined) == rows_of(df.join(other, "k", how))
    check_places(((row["k"], row["worker"]) for row in joined), plan)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("own", ALL)
def test_aggregates(spark: SparkSession, own: Own, exact: bool) -> None:
    df = events(spark)
    groups = sl.group_by(df, "k", partitioner=sl.Exact(own(N)) if exact else own(N))
    in_arrow = [
        (row["k"], *pair) for row in groups.agg(workers_in_arrow()).collect() for pair in zip(*row[1:], strict=True)
    ]
    in_columns = groups.agg(vs=sl.collect_list("v"), rows=workers_in_columns()).collect()
    assert all(sorted(row["vs"]) == sorted(value for value, _ in row["rows"]) for row in in_columns)
    collected = [(row["k"], *pair) for row in in_columns for pair in row["rows"]]
    if exact:
        assert Counter(in_arrow) == Counter(collected) == Counter(decided(own, df))
    else:
        plan, expected = planned(own, sl.profile(df, "k").histogram, key_hashes(df)), rows_of(df)
        for places in (in_arrow, collected):
            assert Counter((key, value) for key, value, _ in places) == expected
            check_places(((key, worker) for key, _, worker in places), plan)
        for operator in ("ArrowAggregate", "collect_list"):
            said = sl.explain(df, "k", operator=operator, partitioner=own(N))
            assert said.decision.partitioner == own.name


BATCHES = 2  # the second one follows what was learned from the first


def run(job: Any, directory: Path) -> str:
    """Runs the batches, and returns the decision about the last one."""
    for _ in range(BATCHES):
        query = job.start(str(directory / "out"), str(directory / "checkpoint"), available_now=True)
        assert query.awaitTermination(300)
    last: dict[str, Any] = query.recent()[-1]
    assert last["batch"] == BATCHES - 1
    return str(last["decision"])


@pytest.mark.parametrize(
    ("spark", "own", "exact"),
    [
        ("classic", HeaviestFirst, False),
        ("classic", FirstSeen, True),
        ("classic", Emptiest, False),
        ("connect", HeaviestFirst, True),
    ],
    indirect=["spark"],
)
def test_windows_of_a_stream(spark: SparkSession, own: Own, exact: bool, tmp_path: Path) -> None:
    by = sl.Exact(own(N)) if exact else own(N)
    stream = sl.stream(jobs.source(spark, jobs.EVENTS), "k", time="ts", partitioner=by)
    decision = run(stream.window("10 seconds").agg(jobs.counts_and_largest()), tmp_path)
    learned = (
        "2 sources route each row; they agreed after the last batch" if exact else "#1"
    )  # a plan names the hottest key
    assert decision.startswith(own.name)
    assert learned in decision
    expected = jobs.in_windows(spark, BATCHES * jobs.ROWS, "10 seconds", None, n=F.count("v"), largest=F.max("v"))
    found = spark.read.parquet(str(tmp_path / "out")).select(expected.columns)
    assert rows_of(found) == rows_of(expected)


OUTPUT = "k string, n long, s long, worker int"


def in_arrow(stream: sl.Stream) -> Any:
    def add(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
        from pyspark import TaskContext

        task = TaskContext.get()
        n, total = state.get if state.exists else (0, 0)
        state.update((n + rows.num_rows, total + pc.sum(rows["v"]).as_py()))
        worker = pa.array([-1 if task is None else task.partitionId()], pa.int32())
        return pa.table({"k": [key[0]], "n": [state.get[0]], "s": [state.get[1]], "worker": worker})

    return stream.applyInArrowWithState(add, OUTPUT, "n long, s long")


def in_pandas(stream: sl.Stream) -> Any:
    def add(key: tuple[Any, ...], rows: Any, state: Any) -> Any:
        import pandas as pd
        from pyspark import TaskContext

        task = TaskContext.get()
        n, total = state.get if state.exists else (0, 0)
        state.update((n + len(rows), total + int(rows["v"].sum())))
        worker = -1 if task is None else task.partitionId()
        return pd.DataFrame({"k": [key[0]], "n": [state.get[0]], "s": [state.get[1]], "worker": [worker]})

    return stream.applyInPandasWithState(add, OUTPUT, "n long, s long")


def in_processor(stream: sl.Stream) -> Any:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Adding(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.sums = handle.getValueState("sums", "n long, s long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            import pandas as pd
            from pyspark import TaskContext

            task, frame = TaskContext.get(), pd.concat(list(rows))
            n, total = self.sums.get() if self.sums.exists() else (0, 0)
            sums = n + len(frame), total + int(frame["v"].sum())
            self.sums.update(sums)
            worker = -1 if task is None else task.partitionId()
            yield pd.DataFrame({"k": [key[0]], "n": [sums[0]], "s": [sums[1]], "worker": [worker]})

        def close(self) -> None:
            pass

    return stream.transformWithStateInPandas(Adding(), OUTPUT, "None")


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
@pytest.mark.parametrize(
    ("own", "verb"), [(HeaviestFirst, in_arrow), (FirstSeen, in_processor), (HeaviestFirst, in_pandas)]
)
def test_keyed_state_of_a_stream(
    spark: SparkSession, own: Own, verb: Callable[[sl.Stream], Any], tmp_path: Path
) -> None:
    decision = run(verb(sl.stream(jobs.source(spark, jobs.EVENTS), "k", partitioner=own(N))), tmp_path)
    assert decision.startswith(own.name)
    assert "#1" in decision
    found = spark.read.parquet(str(tmp_path / "out"))
    assert rows_of(found.select("k", "n", "s")) == rows_of(jobs.of_state(spark, BATCHES))
    saved: Any = Checkpoint(str(tmp_path / "checkpoint")).read(f"tables/{BATCHES - 1}.json")
    assert saved["by"].startswith(own.__name__)
    table, hashes = RoutingTable.from_json(saved["table"]), key_hashes(jobs.all_rows(spark, jobs.EVENTS, 600))
    last = found.where(F.col("batch_id") == BATCHES - 1).select("k", "worker").collect()
    assert {row["k"]: {row["worker"]} for row in last} == {
        row["k"]: set(table.shares(hashes[row["k"]])) for row in last
    }


def test_keyed_state_refuses_one_that_splits_keys(spark: SparkSession, tmp_path: Path) -> None:
    stream = sl.stream(jobs.source(spark, jobs.EVENTS), "k", partitioner=Emptiest(N))
    job = stream.applyInArrowWithState(lambda _key, rows, _state: rows, "k string", "n long")
    with pytest.raises(ValueError, match="emptiest"):
        job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), available_now=True)
