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
from skewless.spark.exact import Sourced
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

    def rows(self, spark: SparkSession) -> DataFrame:
        key = F.when(F.col("id") % 100 < self.hot, F.lit(0)).otherwise(F.xxhash64("id") % self.keys)
        text = F.repeat(F.lit("x"), self.width) if self.width else F.lit("")
        return spark.range(self.n, numPartitions=3).select(key.alias("k"), F.col("id").alias("v"), text.alias("t"))


FRAMES = st.builds(
    Frame,
    n=st.sampled_from([0, 50, 3000, 140_000]),  # the last is more than 1 MiB by Spark's account
    keys=st.sampled_from([1, 3, 40, 3000]),
    hot=st.sampled_from([0, 30, 90]),
    width=st.sampled_from([0, 20]),
)
ASKED: list[dict[str, Any]] = [{}, {"n_workers": 5}, {"partitioner": "kip"}, {"partitioner": "level", "n_workers": 3}]


@settings(max_examples=EXAMPLES)
@given(frame=FRAMES, operator=st.sampled_from(list(VERBS)), asked=st.sampled_from(ASKED))
def test_explain_says_what_the_verb_does(
    spark: SparkSession, frame: Frame, operator: Any, asked: dict[str, Any]
) -> None:
    if asked.get("partitioner") == "level" and operator in TELLS_TASKS:
        asked = {**asked, "partitioner": "kip"}  # level splits keys by default, where these need them whole
    df = frame.rows(spark)
    other = OTHERS[operator](df) if operator in OTHERS else None
    said = sl.explain(df, "k", operator=operator, other=other, **asked)
    done = VERBS[operator](df, **asked)
    exchanges = re.findall(r"shufflepartitionidpassthrough\(.*, (\d+)\), ", explained(done))
    assert bool(exchanges) == (said.decision.routing is not None)
    assert {int(workers) for workers in exchanges} <= {said.n_workers}
    assert ("leave it to Spark" in str(said)) == (said.decision.routing is None)
    assert not isinstance(said.decision.routing, Sourced)
    if frame.n and operator in TELLS_TASKS and isinstance(said.decision.routing, RoutingTable):
        # The rows are where the very table says, and the longest task is as long as was predicted.
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


def test_what_spark_does_as_well_is_left_to_it(spark: SparkSession) -> None:
    """Little data, and much of it with even keys; but not some large keys, nor what somebody asks for."""
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
        ("n is an sl.Aggregate", lambda: sl.group_by(df, "k").agg(**{"n": count})),
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
    df = skewed(spark, exponent=2.0)
    name = "spark.sql.shuffle.orderIndependentChecksum.enabled"
    spark.conf.set(name, "false")
    try:
        with pytest.raises(ValueError, match="a retried task may lose or double rows"):
            sl.group_by(df, "k", n_workers=6).agg(all=sl.collect_list("v"))
    finally:
        spark.conf.unset(name)
