"""What `explain` says is what a verb does; and its predictions are of the tasks that really run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import RoutingTable
from skewless.spark.keys import hashed
from skewless.spark.plans import explained, reads, task_slots
from tests.spark.frames import skewed

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("spark")]

EXAMPLES = int(os.environ.get("EXAMPLES", "16"))
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


def counting() -> sl.ArrowAggregate:
    def count(rows: pa.Table) -> pa.Table:
        return pa.table({"n": [rows.num_rows]})

    return sl.ArrowAggregate(count, count, lambda state: state, "n long", "n long")


# What a verb makes of df by a partitioner and a number of workers.
VERBS: dict[str, Callable[..., DataFrame]] = {
    "repartition": lambda df, **how: sl.repartition(df, "k", **how).select(F.spark_partition_id().alias("task")),
    "applyInArrow": lambda df, **how: sl.group_by(df, "k", **how).applyInArrow(task_of_group(), TASK),
    "cogroup": lambda df, **how: (
        sl.group_by(df, "k", **how).cogroup(sl.group_by(df, "k")).applyInArrow(task_of_pair(), TASK)
    ),
    "over": lambda df, **how: sl.over(df, "k", n=F.count("v"), **how).select(F.spark_partition_id().alias("task")),
    "agg": lambda df, **how: sl.group_by(df, "k", **how).agg(n=sl.count()),
    "collect_list": lambda df, **how: sl.group_by(df, "k", **how).agg(all=sl.collect_list("v")),
    "ArrowAggregate": lambda df, **how: sl.group_by(df, "k", **how).agg(counting()),
    "join": lambda df, **how: sl.join(df, df.withColumnRenamed("v", "w"), "k", **how),
}
OTHERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "join": lambda df: df.withColumnRenamed("v", "w"),
    "cogroup": lambda df: df,
}
TELLS_TASKS = ("repartition", "applyInArrow", "cogroup", "over")  # whose results say which task had a row


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


FRAMES = st.builds(
    Frame,
    n=st.sampled_from([0, 50, 3000, 140_000]),  # the last is more than 1 MiB by Spark's account
    keys=st.sampled_from([1, 3, 40, 3000]),
    hot=st.sampled_from([0, 30, 90]),
    width=st.sampled_from([0, 20]),
    nulls=st.booleans(),
)
ASKED: list[dict[str, Any]] = [
    {},
    {"n_workers": 5},
    {"partitioner": "kip"},
    {"partitioner": "level", "n_workers": 3},
    {"partitioner": RoutingTable.hashed(6)},
    {"partitioner": sl.Exact("kip"), "n_workers": 3},
    {"sample": 0.5, "n_workers": 4},
    {"how": "left", "n_workers": 4},
    {"into": "number"},
]
ONLY = {"how": ("join",), "into": ("repartition",)}  # parameters that only these verbs have


@settings(max_examples=EXAMPLES)
@given(frame=FRAMES, operator=st.sampled_from(list(VERBS)), asked=st.sampled_from(ASKED))
def test_explain_says_what_the_verb_does(
    spark: SparkSession, frame: Frame, operator: Any, asked: dict[str, Any]
) -> None:
    if asked.get("partitioner") == "level" and operator in TELLS_TASKS:
        asked = {**asked, "partitioner": "kip"}  # level splits keys by default, where these need them whole
    asked = {name: value for name, value in asked.items() if operator in ONLY.get(name, (operator,))}
    if operator == "join":  # decides itself how many rows to look at, and takes no Exact
        asked = {name: value for name, value in asked.items() if name != "sample" and not isinstance(value, sl.Exact)}
    df = frame.rows(spark)
    other = OTHERS[operator](df) if operator in OTHERS else None
    said = sl.explain(df, "k", operator=operator, other=other, **asked)
    done = VERBS[operator](df, **asked)
    exchanges = re.findall(r"shufflepartitionidpassthrough\(.*, (\d+)\), ", explained(done))
    assert bool(exchanges) == (said.decision.routing is not None)
    assert {int(workers) for workers in exchanges} <= {said.n_workers}
    assert ("leave it to Spark" in str(said)) == (said.decision.routing is None)
    if frame.n and operator in TELLS_TASKS and isinstance(said.decision.routing, RoutingTable):
        # The rows are where the table of the decision says, and the longest task is as long as was predicted.
        keys = df.select(hashed(df, ["k"])).toArrow().column(0).to_numpy().view(np.uint64)
        planned = np.bincount(said.decision.routing.route(keys), minlength=said.n_workers)
        planned *= 2 if operator == "cogroup" else 1
        tasks = {row["task"]: row["count"] for row in done.groupBy("task").count().collect()}
        assert tasks == {worker: rows for worker, rows in enumerate(planned.tolist()) if rows}
        sampled = said.decision.profiles[0].sample < 1  # then the prediction is an estimate
        assert said.after == pytest.approx(planned.max() / planned.mean(), rel=0.05 if sampled else 1e-6)


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
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    try:
        unmerged = sl.explain(df, "k", operator="applyInArrow")
    finally:
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")
    assert unmerged.before < 2


def test_predictions_of_plain_spark_go_by_its_own_hash_function(spark: SparkSession) -> None:
    """With a few keys, another hash function would predict other tasks than those that run."""
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "False")  # in any case, as Spark reads it
    try:
        for keys in (3, 5):
            key = F.concat(F.lit("key "), F.sqrt(F.col("id") % (keys * keys)).cast("int"))
            df = spark.range(20_000).select(key.alias("k"), "id")
            said = sl.explain(df, "k", operator="applyInArrow", n_workers=7)
            rows = df.groupBy("k").applyInArrow(task_of_group(), TASK).groupBy("task").count().collect()
            assert said.before == pytest.approx(max(row["count"] for row in rows) * 7 / 20_000)
    finally:
        spark.conf.unset("spark.sql.adaptive.coalescePartitions.enabled")


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
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        key = F.when(F.col("id") % 2 == 0, 0).otherwise(F.col("id") % 1000)
        facts = spark.range(60_000).select(key.alias("k"), (F.col("id") % 5).alias("d"), F.col("id").alias("Broadcast"))
        facts = facts.join(F.broadcast(spark.range(5).withColumnRenamed("id", "d")), "d")
        right = spark.range(1000).withColumnRenamed("id", "k")
        said = sl.explain(facts, "k", operator="join", other=right, n_workers=4)
        assert not said.is_left_to_spark
        small = F.broadcast(right)
        assert "broadcasts" in sl.explain(facts, "k", operator="join", other=small, n_workers=4).reason
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


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
    spark.conf.set(name, "false")
    try:
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
    finally:
        spark.conf.unset(name)
