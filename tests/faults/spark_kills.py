"""Kills executors while routed rows are read: every result must equal that of a run without a kill.

Executors are real processes of `local-cluster`. One of them gets SIGKILL once a task of a stage that reads routed rows
is done and others run. Its share of the shuffle is lost then, and the tasks that wrote it run again. Their input comes
from a shuffle too, in any order, so that they may number and route their rows differently than before. Spark's
order-independent checksum detects that, and what was read before is read again.

The stage that sends rows to the driver is spared (it has one task): Spark cannot take back what such a stage has sent,
and fails the job with an error if rows were routed differently. Input that keeps its order is routed as before.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter, sleep

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import skewless.spark as sl
from tests.faults import harm
from tests.faults.killing import processes, session

ROWS, KEYS, SOURCES, WORKERS, EXECUTORS = 20_000, 30, 4, 6, 2
DELAY = 0.01  # seconds that a group takes in Python, so that a stage runs long enough to be hit
PATIENCE = 120  # seconds to wait for executors to come back
CLUSTER = f"local-cluster[{EXECUTORS},1,1024]"
SETTINGS = {
    "spark.sql.shuffle.partitions": str(WORKERS),
    "spark.sql.adaptive.coalescePartitions.enabled": "false",  # several tasks in every stage, small as it is
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}


@dataclass(frozen=True)
class Kill:
    query: str
    stage: int  # the one that was reading a shuffle
    done: int  # how many of its tasks were done
    tasks: int  # how many it has
    repeated: int  # stages that ran again, at least in part
    seconds: float
    is_equal: bool


def skewed(spark: SparkSession, seed: int, rows: int = ROWS) -> DataFrame:
    """Returns rows that come from a shuffle; half of them have key 0."""
    key = F.when(F.xxhash64("id", F.lit(seed)) % 2 == 0, 0).otherwise(
        F.pmod(F.xxhash64("id", F.lit(-seed)), F.lit(KEYS))
    )
    return spark.range(0, rows, 1, SOURCES).select(key.alias("k"), F.col("id").alias("v")).repartition(SOURCES)


def aggregate() -> sl.ArrowAggregate:
    """Returns an aggregate that computes the number of rows and the sum of their squares, slowly."""
    delay = DELAY

    def partial(rows: pa.Table) -> pa.Table:
        from time import sleep

        sleep(delay)
        return pa.table({"n": [rows.num_rows], "s": [pc.sum(pc.multiply(rows["v"], rows["v"])).as_py()]})

    def merge(states: pa.Table) -> pa.Table:
        return pa.table({"n": [pc.sum(states["n"]).as_py()], "s": [pc.sum(states["s"]).as_py()]})

    return sl.ArrowAggregate(partial, merge, lambda state: state, "n long, s long", "n long, s long")


def aggregated(spark: SparkSession) -> DataFrame:
    return sl.group_by(skewed(spark, 1), "k", n_workers=WORKERS).agg(aggregate())


def exact(spark: SparkSession) -> DataFrame:
    return sl.group_by(skewed(spark, 1), "k", n_workers=WORKERS, partitioner=sl.Exact("pkg")).agg(aggregate())


def joined(spark: SparkSession) -> DataFrame:
    """Joins rows of a hot key on several workers, and aggregates the pairs, slowly."""
    left, right = skewed(spark, 1), skewed(spark, 2, 400).select("k", F.col("v").alias("u"))
    both = sl.join(left, right, "k", n_workers=WORKERS)
    return sl.group_by(both.select(F.pmod("v", F.lit(20)).alias("k"), (F.col("v") + F.col("u")).alias("v")), "k").agg(
        aggregate()
    )


QUERIES: dict[str, Callable[[SparkSession], DataFrame]] = {
    "agg, keys split": aggregated,
    "agg, tuple by tuple": exact,
    "join, keys split": joined,
}


def executors() -> list[int]:
    return processes(os.getpid()).executors


def reading(context: SparkContext, group: str) -> tuple[int, int, int] | None:
    """Returns number, done tasks and all tasks of a stage that reads routed rows, if some are done and others run."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = sorted({int(stage) for job in jobs if job is not None for stage in job.stageIds})
    for number in stages:
        stage = tracker.getStageInfo(number)
        # Before rows are routed they are in SOURCES partitions.
        if stage is not None and stage.numTasks == WORKERS and stage.numActiveTasks and stage.numCompletedTasks:
            return number, stage.numCompletedTasks, stage.numTasks
    return None


def repeated(context: SparkContext, group: str) -> int:
    """Returns how many stages ran again."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(int(stage)) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage is not None and stage.currentAttemptId > 0 for stage in stages)


def collected(df: DataFrame, group: str) -> list[str]:
    """Returns all rows, sorted, from a job of this group."""
    df.sparkSession.sparkContext.setJobGroup(group, group)
    return sorted(map(repr, df.repartition(1).collect()))


def kills(spark: SparkSession, number: int) -> Iterator[Kill]:
    """Runs the queries in turn, each with one kill; a query that ended before a kill was possible runs again."""
    context = spark.sparkContext
    frames = {name: query(spark) for name, query in QUERIES.items()}
    expected = {name: collected(df, f"undisturbed {name}") for name, df in frames.items()}
    with ThreadPoolExecutor(1) as pool:
        for count, name in enumerate(islice(cycle(frames), number)):
            at, attempt = None, 0
            while at is None:
                attempt += 1
                group, began = f"kill {count}.{attempt}", perf_counter()
                _wait(lambda: len(executors()) >= EXECUTORS, "executors did not come back")
                running: Future[list[str]] = pool.submit(collected, frames[name], group)
                while not running.done() and at is None:
                    at = reading(context, group)
                    if at is not None:
                        alive = executors()
                        harm.kill(alive[count % len(alive)])
                    sleep(0.005)
                result = running.result()
                if attempt > 10:
                    raise TimeoutError(f"{name} was done 10 times before an executor could be killed")
            yield Kill(name, *at, repeated(context, group), perf_counter() - began, result == expected[name])


def _wait(until: Callable[[], bool], otherwise: str) -> None:
    began = perf_counter()
    while not until():
        if perf_counter() - began > PATIENCE:
            raise TimeoutError(f"{otherwise} in {PATIENCE} s")
        sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill executors while routed rows are read.")
    parser.add_argument("--kills", type=int, default=20)
    number = parser.parse_args().kills
    spark = session(CLUSTER, SETTINGS)
    shown = Table(title=f"{number} executors killed while a shuffle was read")
    for title in ("query", "stage", "tasks done", "stages run again", "seconds", "result"):
        shown.add_column(title, justify="left" if title in ("query", "result") else "right")
    all_kills = []
    for kill in kills(spark, number):
        all_kills.append(kill)
        result = "equal" if kill.is_equal else "DIFFERENT"
        done = f"{kill.done} of {kill.tasks}"
        shown.add_row(kill.query, str(kill.stage), done, str(kill.repeated), f"{kill.seconds:.1f}", result)
    Console().print(shown)
    equal, again = sum(kill.is_equal for kill in all_kills), sum(kill.repeated > 0 for kill in all_kills)
    print(f"{equal} of {number} results equal; stages ran again after {again} of {number} kills")
    spark.stop()
    sys.exit(0 if equal == number and again else 1)


if __name__ == "__main__":
    main()
