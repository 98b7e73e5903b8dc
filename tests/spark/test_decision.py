"""What `explain` says is what a verb does; and its predictions are of the tasks that really run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import RoutingTable
from skewless.spark.decision import Routing
from skewless.spark.grids import Grids
from skewless.spark.keys import hashed
from skewless.spark.plans import explained, reads, task_slots
from tests.spark.changing import setting
from tests.spark.frames import skewed
from tests.spark.places import workers_in_arrow, workers_in_columns

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]

EXAMPLES = int(os.environ.get("EXAMPLES", "1"))  # of each operator with each set of parameters
TASK = "task int"


# Functions inside others: Spark pickles these by value, and workers over Connect cannot import the tests.


def task_of_group() -> Callable[[pa.Table], pa.Table]:
    """Returns a function that returns the task of each row of a group."""

    def task_of(rows: pa.Table) -> pa.Table:
        from pyspark import TaskContext

        task = TaskContext.get()
        number = -1 if task is None else task.partitionId()
        return pa.table({"task": pa.array([number] * rows.num_rows, pa.int32())})

    return task_of


def task_of_pair() -> Callable[[pa.Table, pa.Table], pa.Table]:
    task_of = task_of_group()

    def both(left: pa.Table, right: pa.Table) -> pa.Table:
        return task_of(pa.concat_tables([left.select(["k"]), right.select(["k"])]))

    return both


def task_of_frame() -> Callable[[Any], Any]:
    """Returns what `task_of_group` does, for pandas."""

    def task_of(rows: Any) -> Any:
        import pandas as pd
        from pyspark import TaskContext

        task = TaskContext.get()
        return pd.DataFrame({"task": [-1 if task is None else task.partitionId()] * len(rows)}, dtype="int32")

    return task_of


def right_side(df: DataFrame, sorted_by_key: bool) -> DataFrame:
    """Returns some of the rows, to join with all: two hot sides would make too many pairs.

    sorted_by_key: asks Spark for a sort-merge join; it would broadcast this side otherwise.
    """
    some = df.where("v < 100").select("k", F.col("v").alias("w"))
    return some.hint("merge") if sorted_by_key else some


def right_of(operator: str, df: DataFrame, asked: dict[str, Any]) -> DataFrame | None:
    return {"cogroup": df, "join": right_side(df, "n_workers" in asked)}.get(operator)


# What a verb makes of df by a partitioner and a number of workers.
VERBS: dict[str, Callable[..., DataFrame]] = {
    "repartition": lambda df, **how: sl.repartition(df, "k", **how).select(F.spark_partition_id().alias("task")),
    "applyInPandas": lambda df, **how: sl.group_by(df, "k", **how).applyInPandas(task_of_frame(), TASK),
    "applyInArrow": lambda df, **how: sl.group_by(df, "k", **how).applyInArrow(task_of_group(), TASK),
    "cogroup": lambda df, **how: (
        sl.group_by(df, "k", **how).cogroup(sl.group_by(df, "k")).applyInArrow(task_of_pair(), TASK)
    ),
    "over": lambda df, **how: sl.over(df, "k", n=F.count("v"), **how).select(F.spark_partition_id().alias("task")),
    "agg": lambda df, **how: sl.group_by(df, "k", **how).agg(n=sl.count()),
    "collect_list": lambda df, **how: sl.group_by(df, "k", **how).agg(rows=workers_in_columns()),
    "ArrowAggregate": lambda df, **how: sl.group_by(df, "k", **how).agg(workers_in_arrow()),
    "join": lambda df, **how: sl.join(df, right_side(df, "n_workers" in how), "k", **how),
}
TELLS_TASKS = ("repartition", "applyInPandas", "applyInArrow", "cogroup", "over")  # results say which task had a row
# For operators that may split keys: the workers that rows of each key were on, from the result.
WORKERS_OF_KEYS: dict[str, Callable[[DataFrame], Column]] = {
    "collect_list": lambda _: F.explode("rows.worker"),
    "ArrowAggregate": lambda _: F.explode("tasks"),
    "join": lambda _: F.spark_partition_id(),
}


@dataclass(frozen=True)
class Frame:
    """Rows to make: some percent have key 0, the others one of `keys` keys; each has a text of some bytes."""

    n: int
    keys: int
    hot: int  # percent
    width: int
    nulls: bool  # a tenth of the rows has no key

    def rows(self, spark: SparkSession) -> DataFrame:
        # With a seed of its own: rows are sampled by the hash of their number, which may be the id.
        key = F.when(F.col("id") % 100 < self.hot, F.lit(0)).otherwise(F.xxhash64("id", F.lit(7)) % self.keys)
        key = F.when(F.col("id") % 10 > 0, key) if self.nulls else key
        text = F.repeat(F.lit("x"), self.width) if self.width else F.lit("")
        return spark.range(self.n, numPartitions=3).select(key.alias("k"), F.col("id").alias("v"), text.alias("t"))

    @classmethod
    def drawn(cls, random: Random) -> Frame:
        return cls(
            n=random.choice([0, 50, 3000, 3000, 3000, 3000, 140_000]),  # the last is more than 1 MiB by Spark's account
            keys=random.choice([1, 3, 40, 3000]),
            hot=random.choice([0, 30, 90]),
            width=random.choice([0, 20]),
            nulls=random.choice([False, True]),
        )


ASKED: dict[str, dict[str, Any]] = {
    "default": {},
    "workers": {"n_workers": 5},
    "kip": {"partitioner": "kip"},
    "level": {"partitioner": "level", "n_workers": 3},
    "table": {"partitioner": RoutingTable.hashed(6)},
    "exact": {"partitioner": sl.Exact("kip"), "n_workers": 3},
    "sample": {"sample": 0.5, "n_workers": 4},
    "left": {"how": "left", "n_workers": 4},
    "into": {"into": "number"},
}
SPLITTING = ("workers", "level", "sample", "left")  # split a hot key, where the operator lets them
ONLY = {"how": ("join",), "into": ("repartition",)}  # parameters that only these verbs have


def takes(operator: str, asked: dict[str, Any]) -> bool:
    if operator == "join" and ("sample" in asked or isinstance(asked.get("partitioner"), sl.Exact)):
        return False  # it decides itself how many rows to look at, and takes no Exact
    return all(operator in ONLY.get(name, (operator,)) for name in asked)


def cases() -> list[Any]:
    """Returns all that each operator can be asked for, with frames at random, in turn on both kinds of sessions."""
    random, found = Random(1), []
    pairs = [(operator, name) for operator in VERBS for name, asked in ASKED.items() if takes(operator, asked)]
    for number, (operator, name) in enumerate(pairs):
        for example in range(EXAMPLES):
            frame, kind = Frame.drawn(random), ("classic", "connect")[(number + example) % 2]
            if name == "default":  # less would be left to Spark
                frame = replace(frame, n=140_000)
            if name == "sample":  # one of few rows would say little
                frame = replace(frame, n=max(frame.n, 3000))
            if operator in WORKERS_OF_KEYS and name in SPLITTING:
                frame = replace(frame, n=3000, hot=90)
            found.append(pytest.param(kind, operator, name, frame, id=f"{kind}-{operator}-{name}-{example}"))
    return found


@pytest.mark.parametrize(("spark", "operator", "name", "frame"), cases(), indirect=["spark"])
def test_explain_says_what_the_verb_does(spark: SparkSession, operator: Any, name: str, frame: Frame) -> None:
    df, asked = frame.rows(spark), ASKED[name]
    said = sl.explain(df, "k", operator=operator, other=right_of(operator, df, asked), **asked)
    routing = said.decision.routing
    done = VERBS[operator](df, **asked)
    exchanges = re.findall(r"shufflepartitionidpassthrough\(.*, (\d+)\), ", explained(done))
    assert bool(exchanges) == (routing is not None)
    assert {int(workers) for workers in exchanges} <= {said.n_workers}
    assert ("leave it to Spark" in str(said)) == (routing is None)
    if frame.n and operator in TELLS_TASKS and isinstance(routing, RoutingTable):
        # The rows are where the table of the decision says, and the longest task is as long as was predicted.
        keys = df.select(hashed(df, ["k"])).toArrow().column(0).to_numpy().view(np.uint64)
        planned = np.bincount(routing.route(keys), minlength=said.n_workers)
        planned *= 2 if operator == "cogroup" else 1
        tasks = {row["task"]: row["count"] for row in done.groupBy("task").count().collect()}
        assert tasks == {worker: rows for worker, rows in enumerate(planned.tolist()) if rows}
        sampled = said.decision.profiles[0].sample < 1  # then the prediction is an estimate
        assert said.after == pytest.approx(planned.max() / planned.mean(), rel=0.05 if sampled else 1e-6)
    if operator in WORKERS_OF_KEYS and routing is not None:
        # The keys with rows on several workers are those that are split.
        placed = done.where("k IS NOT NULL" if operator == "join" else "true")  # rows with a NULL match nothing
        placed = placed.select(hashed(placed, ["k"]).alias("key"), WORKERS_OF_KEYS[operator](placed).alias("worker"))
        workers: dict[int, dict[int, int]] = {}
        for key, worker, rows in placed.groupBy("key", "worker").count().collect():
            workers.setdefault(key % 2**64, {})[worker] = rows
        split = split_keys(routing)
        assert len(split) == said.split
        assert {key for key, rows in workers.items() if len(rows) > 1} == split & workers.keys()
        assert {worker for rows in workers.values() for worker in rows} <= set(range(said.n_workers))
        assert split or name not in SPLITTING


def split_keys(routing: Routing) -> set[int]:
    if isinstance(routing, Grids):
        return set(routing.keys[routing.rows * routing.columns > 1].tolist())
    table = routing if isinstance(routing, RoutingTable) else RoutingTable.hashed(routing.n_workers)
    return set(table.keys[np.diff(table.starts) > 1].tolist())


def test_predictions_are_of_the_tasks_that_run(spark: SparkSession) -> None:
    """AQE merges 100 small groups into one task: all other slots wait for it, whatever the hash of keys."""
    df = spark.range(100).select((F.col("id") * 7 % 101).alias("k"), F.repeat(F.lit("x"), 800).alias("v"))
    said = sl.explain(df, "k", operator="applyInArrow")
    tasks = sl.group_by(df, "k").applyInArrow(task_of_group(), TASK).distinct().count()
    assert tasks == 1
    assert said.before == said.after == task_slots(spark) == said.n_workers
    spread = sl.explain(df, "k", operator="applyInArrow", n_workers=4)
    assert spread.before == 4
    assert spread.after == 1
    with setting(spark, "spark.sql.adaptive.coalescePartitions.enabled", "false"):
        unmerged = sl.explain(df, "k", operator="applyInArrow")
    assert unmerged.before < 2


def test_predictions_of_plain_spark_go_by_its_own_hash_function(spark: SparkSession) -> None:
    """With a few keys, another hash function would predict other tasks than those that run."""
    with setting(spark, "spark.sql.adaptive.coalescePartitions.enabled", "False"):  # in any case, as Spark reads it
        for keys in (3, 5):
            key = F.concat(F.lit("key "), F.sqrt(F.col("id") % (keys * keys)).cast("int"))
            df = spark.range(20_000).select(key.alias("k"), "id")
            said = sl.explain(df, "k", operator="applyInArrow", n_workers=7)
            rows = df.groupBy("k").applyInArrow(task_of_group(), TASK).groupBy("task").count().collect()
            assert said.before == pytest.approx(max(row["count"] for row in rows) * 7 / 20_000)


def test_no_task_waits_where_spark_needs_no_rows_of_a_key_together(spark: SparkSession) -> None:
    df = skewed(spark)
    combined = sl.explain(df, "k", operator="agg", n_workers=8)
    assert (combined.before, combined.after) == (1, 1)
    few = df.select("k").distinct().withColumn("w", F.lit(1))
    broadcast = sl.explain(df, "k", operator="join", other=few, n_workers=8)
    assert "broadcasts" in broadcast.reason
    assert (broadcast.before, broadcast.after) == (1, 1)


def test_a_broadcast_below_a_join_does_not_leave_it_to_spark(spark: SparkSession) -> None:
    """Only what Spark does with the join itself counts, not a broadcast in its inputs, nor a column of that name."""
    with setting(spark, "spark.sql.autoBroadcastJoinThreshold", "-1"):
        key = F.when(F.col("id") % 2 == 0, 0).otherwise(F.col("id") % 1000)
        facts = spark.range(60_000).select(key.alias("k"), (F.col("id") % 5).alias("d"), F.col("id").alias("Broadcast"))
        facts = facts.join(F.broadcast(spark.range(5).withColumnRenamed("id", "d")), "d")
        right = spark.range(1000).withColumnRenamed("id", "k")
        said = sl.explain(facts, "k", operator="join", other=right, n_workers=4)
        assert not said.is_left_to_spark
        small = F.broadcast(right)
        assert "broadcasts" in sl.explain(facts, "k", operator="join", other=small, n_workers=4).reason


def test_partitions_that_spark_merges_are_not_good_enough_for_a_python_function(spark: SparkSession) -> None:
    """The keys are even, but AQE makes one task of most partitions, and the other slot would wait for it."""
    df = spark.range(140_000).select((F.col("id") % 4000).alias("k"), "id")
    assert "so little data" not in sl.explain(df, "k").reason
    assert sl.explain(df, "k").before > 1.25
    assert "shufflepartitionidpassthrough" in explained(sl.group_by(df, "k").applyInArrow(task_of_group(), TASK))


def test_few_bytes_that_become_many_rows_are_not_little(spark: SparkSession) -> None:
    df = spark.range(10).select((F.col("id") % 2).alias("k"), F.explode(F.sequence(F.lit(1), F.lit(9000))).alias("v"))
    said = sl.explain(df, "k")
    assert "so little data" not in said.reason
    assert not said.is_left_to_spark  # with two keys, hashing is not good enough for any number of workers


def test_explain_knows_that_a_column_for_the_worker_needs_a_table(spark: SparkSession) -> None:
    df = skewed(spark)
    assert sl.explain(df, "k", operator="repartition").is_left_to_spark
    said = sl.explain(df, "k", operator="repartition", into="worker_number")
    assert not said.is_left_to_spark
    numbered = sl.repartition(df, "k", into="worker_number")
    assert numbered.select("worker_number").distinct().count() <= said.n_workers
    with pytest.raises(ValueError, match="into is a parameter of repartition, not of over"):
        sl.explain(df, "k", operator="over", into="worker_number")


def test_predictions_for_a_join_follow_the_shares_of_a_table(spark: SparkSession) -> None:
    df = spark.range(1000).select(F.lit(1).alias("k"), "id")
    keys = df.limit(1).select(hashed(df, ["k"])).toArrow().column(0).to_numpy().view(np.uint64)
    workers = np.repeat(np.arange(3, dtype=np.int32), (50, 30, 20))
    table = RoutingTable.distill(np.repeat(keys, 100), workers, 4)
    few = spark.range(1).select(F.lit(1).alias("k"), F.lit(2).alias("w"))
    said = sl.explain(df, "k", operator="join", other=few, partitioner=table)
    assert said.after == pytest.approx(2, rel=0.01)


def test_parameters_are_checked_before_any_job_runs(spark: SparkSession) -> None:
    never = spark.range(9).select(F.raise_error(F.lit("a job ran")).cast("long").alias("k"))
    for name, sentence in (("best", "there is no partitioner 'best'"), ("pkg", "each is needed whole")):
        with pytest.raises(ValueError, match=sentence):
            sl.repartition(never, "k", partitioner=name)
        with pytest.raises(ValueError, match=sentence):
            sl.group_by(never, "k", partitioner=sl.Exact(name)).applyInArrow(task_of_group(), TASK)
    with pytest.raises(ValueError, match="there is no partitioner 'best'"):
        sl.group_by(never, "k", partitioner="best").agg(n=sl.count())


def test_little_data_is_left_to_spark_unless_workers_are_asked_for(spark: SparkSession) -> None:
    df = skewed(spark)
    assert reads(df).bytes < 2**20
    plain, asked = sl.group_by(df, "k"), sl.group_by(df, "k", n_workers=4)

    def first(rows: pa.Table) -> pa.Table:
        return rows.slice(0, 1)

    def both(left: pa.Table, right: pa.Table) -> pa.Table:
        return left.slice(0, right.num_rows)

    for groups, is_ours in ((plain, False), (asked, True)):
        for found in (groups.applyInArrow(first, df.schema), groups.cogroup(groups).applyInArrow(both, df.schema)):
            assert ("xxhash64" in explained(found)) == is_ours
        assert ("give n_workers" in str(sl.explain(df, "k", n_workers=groups.n_workers))) != is_ours
        moved = sl.repartition(df, "k", n_workers=groups.n_workers)
        assert ("xxhash64" in explained(moved)) == is_ours


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_what_spark_does_as_well_is_left_to_it(spark: SparkSession) -> None:
    """Little data, and much data with even keys; but not much data with few keys, nor what a user asks for."""
    tiny, some, much = (spark.range(n).withColumnRenamed("id", "v") for n in (9, 200_000, 9_000_000))
    operator: Any
    even, few = F.col("v") % 4000, F.col("v") % 3

    def ours(found: DataFrame) -> bool:
        return "shufflepartitionidpassthrough" in explained(found)

    for rows, key, are_ours in (
        (tiny, few, (False, False, False)),
        (some, even, (False, False, False)),
        (some, few, (False, False, True)),  # Python may take any time for a row
        (much, even, (False, False, False)),
        (much, few, (True, True, True)),
    ):
        df = rows.withColumn("k", key)
        ranked, groups = sl.over(df, "k", n=F.count("v")), sl.group_by(df, "k")
        made = ranked, groups.agg(all=sl.collect_list("v")), groups.applyInArrow(lambda table: table, df.schema)
        assert tuple(map(ours, made)) == are_ours
        for operator, is_little in (("over", rows is not much), ("applyInArrow", rows is tiny)):
            assert ("so little data" in sl.explain(df, "k", operator=operator).reason) == is_little
        plain = df.withColumn("n", F.count("v").over(Window.partitionBy("k")))
        if rows is not much:
            assert ranked.exceptAll(plain).isEmpty()
        elif key is few:
            assert ranked.groupBy("k", "n").count().exceptAll(plain.groupBy("k", "n").count()).isEmpty()
    df = tiny.withColumn("k", few)
    plain = df.withColumn("n", F.count("v").over(Window.partitionBy("k")))
    for asked in (sl.over(df, "k", n=F.count("v"), n_workers=3), sl.over(df, "k", n=F.count("v"), partitioner="kip")):
        assert ours(asked)
        assert asked.exceptAll(plain).isEmpty()


def test_nothing_is_left_behind(spark: SparkSession) -> None:
    df = skewed(spark)
    before = spark.catalog.listTables()
    sl.group_by(df, "k").agg(n=sl.count()).collect()
    sl.repartition(df, "k").collect()
    assert spark.catalog.listTables() == before
    assert not df.is_cached


def test_bad_input_gets_a_sentence(spark: SparkSession) -> None:
    df = skewed(spark)
    count: Any = F.count("v")
    wrong: list[tuple[str, Any]] = [
        ("there is no column 'x'; there are k, v, worker", lambda: sl.repartition(df, "x")),
        ("a key has at least 1 column", lambda: sl.repartition(df)),
        ("pkg splits keys, but each is needed whole", lambda: sl.repartition(df, "k", partitioner="pkg")),
        ("there is no partitioner 'best'", lambda: sl.repartition(df, "k", partitioner="best")),
        ("n_workers is at least 1, not 0", lambda: sl.repartition(df, "k", n_workers=0)),
        ("there is a column 'v' already", lambda: sl.repartition(df, "k", into="v")),
        ("for 3 workers, not for 4", lambda: sl.repartition(df, "k", n_workers=4, partitioner=RoutingTable.hashed(3))),
        ("sample is more than 0 and at most 1, not 2", lambda: sl.profile(df, "k", sample=2)),
        ("agg needs at least 1 aggregate", lambda: sl.group_by(df, "k").agg()),
        ("n must be an sl.Aggregate", lambda: sl.group_by(df, "k").agg(**{"n": count})),
        ("k is a column of the key already", lambda: sl.group_by(df, "k").agg(k=sl.count())),
        ("over needs at least 1 window function", lambda: sl.over(df, "k")),
    ]
    for sentence, act in wrong:
        with pytest.raises(ValueError, match=sentence):
            act()
    collated = df.select(F.collate("k", "UNICODE_CI").alias("k"))
    with pytest.raises(ValueError, match="collation UNICODE_CI has no native hash"):
        sl.repartition(collated, "k")


def test_split_keys_need_the_shuffle_checksum(spark: SparkSession) -> None:
    """Without it, a partitioner that splits keys is refused; "auto" keeps keys whole, and leaves joins to Spark."""
    df, name = skewed(spark, exponent=2.0), "spark.sql.shuffle.orderIndependentChecksum.enabled"
    with setting(spark, name, "false"):
        with pytest.raises(ValueError, match="a retried task may lose or double rows"):
            sl.group_by(df, "k", partitioner="level", n_workers=6).agg(all=sl.collect_list("v"))
        assert sl.explain(df, "k", operator="collect_list", n_workers=6).split == 0
        collected = sl.group_by(df, "k", n_workers=6).agg(all=sl.collect_list("v"))
        assert collected.count() == df.select("k").distinct().count()
        other = df.withColumnRenamed("v", "w").hint("merge")  # no broadcast
        joined = sl.explain(df, "k", operator="join", other=other, n_workers=6)
        assert joined.is_left_to_spark
        assert "a retried task may lose or double rows" in joined.reason
        whole = sl.repartition(df, "k", partitioner=sl.Exact("kip"), n_workers=6)  # splits nothing
        assert whole.count() == df.count()
