"""Reads from Spark's query plan, without a job: bytes and rows read, task slots, and the tasks that will run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import ceil, inf, isinf
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from skewless.histogram import Histogram
from skewless.spark.settings import in_bytes, is_on, shuffle_partitions
from skewless.table import RoutingTable

SHARE = 2**25  # the most bytes read for a worker: files are mostly compressed, and Spark advises 64 MiB to shuffle
WIDTH = 12  # bytes of one column of one row, roughly


class Reads(NamedTuple):
    """What a DataFrame reads, by Spark's account; infinite where Spark does not know."""

    bytes: float
    rows: float  # estimated if Spark knows only the bytes
    most: float  # rows that the DataFrame can have at most
    grows: bool  # an operator of the plan may return more rows than it gets
    joins: bool = False  # only joins may do so; those of small tables seldom return much more

    def portion(self, enough: int) -> float:
        """Returns the share of the rows that gives `enough` rows; 1 if their number is unknown."""
        return 1.0 if isinf(self.rows) else min(1.0, enough / max(self.rows, 1.0))


# Operators that return at most the rows they get.
_KEEPING = {"Project", "Filter", "Sample", "Union", "Sort", "Repartition", "RepartitionByExpression"}
# So do these, but the number of rows of their leaves is no bound for what they return.
_FOLDING = {"Aggregate", "Deduplicate", "GlobalLimit", "LocalLimit", "Window", "ArrowEvalPython", "BatchEvalPython"}
_COUNTED = {"InMemoryRelation", "LocalRelation", "Range"}  # leaves whose rows Spark has counted
_NODE = re.compile(r"^([ :+-]*)(\w+).*Statistics\(sizeInBytes=([\d.E+]+) (\w+)(?:, rowCount=([\d.E+]+))?")
_UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))}


def reads(df: DataFrame) -> Reads:
    """Adds up what the leaves of a DataFrame's plan read. Runs no job."""
    size, rows, most, growing = 0.0, 0.0, 0.0, set()
    logical = explained(df, "cost").partition("== Physical Plan ==")[0].splitlines()
    nodes = [(match, line) for line in logical if (match := _NODE.match(line))]
    depths = [len(match[1]) for match, _ in nodes]
    for (match, line), depth, following in zip(nodes, depths, [*depths[1:], 0], strict=True):
        _, node, number, unit, counted = match.groups()
        is_leaf = following <= depth
        if not is_leaf:
            most += 0.0 if node in _KEEPING else inf
            growing |= {node} - _KEEPING - _FOLDING
            continue
        if unit not in _UNITS:
            return Reads(inf, inf, inf, True)  # EiB: Spark's default for an unknown size
        leaf_size = float(number) * _UNITS[unit]
        left_out = re.search(r"\.\.\. (\d+) more fields", line)
        columns = line.count("#") + int(left_out[1] if left_out else 0)
        size += leaf_size
        rows += float(counted) if counted else leaf_size / (WIDTH * max(columns, 1))
        most += float(counted) if counted and node in _COUNTED else inf
    return Reads(size, rows, most, bool(growing), growing == {"Join"})


def explained(df: DataFrame, mode: str = "simple") -> str:
    """Returns the text that `df.explain` prints, without printing it: other threads may be printing, too."""
    if hasattr(type(df), "_explain_string"):  # Connect
        return str(cast(Any, df)._explain_string(mode=mode))
    classic = cast(Any, df)
    return str(classic._sc._jvm.PythonSQLUtils.explainString(classic._jdf.queryExecution(), mode))


def parallelism(spark: SparkSession, size: float = 0.0) -> int:
    """Returns the default number of workers: the task slots, or more for much data; at most the shuffle partitions.

    Spark has 200 shuffle partitions by default, and merges small ones where it can. Balanced work needs fewer.

    size: bytes that are read; infinite if unknown.
    """
    most = shuffle_partitions(spark)
    if isinf(size) or is_on(spark, "spark.dynamicAllocation.enabled", "false"):
        return most  # Spark adds executors only when tasks wait, so the current slots say little
    slots = task_slots(spark)
    return min(most, max(slots, ceil(size / SHARE))) if slots else most


@dataclass(frozen=True)
class Session:
    """A Spark session as a key of caches: `foreachBatch` gets a new Python object of the same session in each batch."""

    id: str
    spark: SparkSession = field(compare=False)

    @classmethod
    def of(cls, spark: SparkSession) -> Session:
        session = cast(Any, spark)
        is_connect = hasattr(type(spark), "session_id")
        return cls(str(session.session_id if is_connect else session._jsparkSession.sessionUUID()), spark)


def task_slots(spark: SparkSession) -> int:
    """Returns how many tasks Spark runs at a time, asked once per session; 0 if its plan does not say."""
    return _task_slots(Session.of(spark))


@lru_cache(maxsize=64)
def _task_slots(session: Session) -> int:
    # Spark splits a range into as many parts as it runs tasks at a time; over Connect, only the plan says how many.
    splits = re.search(r"splits=(?:Some\()?(\d+)", explained(session.spark.range(1)))
    return int(splits[1]) if splits else 0


@dataclass(frozen=True, eq=False)
class Inputs:
    """What Spark says of the DataFrames that a verb gets; it is asked at most once, and only where that matters."""

    frames: tuple[DataFrame, ...]
    rows: tuple[int, ...] = ()  # of each DataFrame, once they have been counted

    @property
    def spark(self) -> SparkSession:
        return self.frames[0].sparkSession

    @cached_property
    def reads(self) -> tuple[Reads, ...]:
        """What each DataFrame reads."""
        return tuple(map(reads, self.frames))

    @cached_property
    def size(self) -> float:
        """Bytes of all DataFrames together, as counted or, before, as read; infinite if unknown."""
        if self.rows:
            return sum(WIDTH * len(df.columns) * rows for df, rows in zip(self.frames, self.rows, strict=True))
        return sum(inf if frame.grows else frame.bytes for frame in self.reads)

    @property
    def likely_size(self) -> float:
        """Bytes that are likely to be processed; infinite if an operator other than a join may multiply rows."""
        return sum(inf if frame.grows and not frame.joins else frame.bytes for frame in self.reads)

    @cached_property
    def workers(self) -> int:
        """The number of workers if the user gives none."""
        return parallelism(self.spark, self.size)

    def counted(self, rows: Iterable[int]) -> Inputs:
        """Returns the same with the rows of each DataFrame, if what they read does not tell how many there are."""
        return replace(self, rows=tuple(rows)) if isinf(self.size) else self

    @property
    def slots(self) -> int:
        """How many tasks Spark runs at a time; 0 if its plan does not say."""
        return task_slots(self.spark)

    def task_loads(self, histogram: Histogram, known: Mapping[int, int], nulls: float = 0.0) -> NDArray[np.float64]:
        """Predicts the loads of the tasks that plain Spark runs; see `task_loads`."""
        return task_loads(self.spark, histogram, self.size, known, nulls)


def broadcasts(join: DataFrame) -> bool:
    """Returns whether Spark broadcasts one side of a join; other joins below it do not matter."""
    first = re.search(r"^[ :+*()\d-]*(\w*Join|CartesianProduct)\b", explained(join), re.MULTILINE)
    return first is not None and first[1].startswith("Broadcast")


def task_loads(
    spark: SparkSession, histogram: Histogram, size: float, known: Mapping[int, int], nulls: float = 0.0
) -> NDArray[np.float64]:
    """Predicts the loads of the tasks that plain Spark runs for hashed keys, after AQE has merged small partitions.

    size: bytes that are shuffled; infinite if unknown, and then nothing is merged.
    known: the partitions of some keys in Spark's own shuffle; for all others, another hash function stands in.
    nulls: rows that all go to one task.
    """
    stand_in = RoutingTable.hashed(shuffle_partitions(spark))
    is_known = np.array([key in known for key in histogram.keys.tolist()], bool)
    partitions = stand_in.loads(histogram.keys[~is_known], histogram.counts[~is_known], histogram.rest)
    where = [known[key] for key in histogram.keys[is_known].tolist()]
    np.add.at(partitions, where, histogram.counts[is_known])
    partitions[0] += nulls
    total = float(partitions.sum())
    if isinf(size) or total == 0 or not _merges(spark):
        return partitions
    least = in_bytes(spark, "spark.sql.adaptive.coalescePartitions.minPartitionSize", 2**20)
    advised = in_bytes(spark, "spark.sql.adaptive.advisoryPartitionSizeInBytes", 2**26)
    wanted = spark.conf.get("spark.sql.adaptive.coalescePartitions.minPartitionNum", None)
    parallel = is_on(spark, "spark.sql.adaptive.coalescePartitions.parallelismFirst", "true")
    tasks = int(wanted) if wanted else (task_slots(spark) or 1) if parallel else 1
    target = max(least, min(advised, ceil(size / tasks))) * total / max(size, 1.0)  # in rows
    return _merged(partitions[partitions > 0], target)


def _merges(spark: SparkSession) -> bool:
    names = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled")
    return all(is_on(spark, name, "true") for name in names)


def _merged(partitions: NDArray[np.float64], target: float) -> NDArray[np.float64]:
    """Adds up neighbours until the next one would exceed the target, as Spark's ShufflePartitionsUtil does."""
    tasks, load = [], 0.0
    for partition in partitions.tolist():
        if load and load + partition > target:
            tasks.append(load)
            load = 0.0
        load += partition
    return np.array([*tasks, load])
