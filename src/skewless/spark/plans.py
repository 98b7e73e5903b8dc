"""Reads from Spark's plan, without a job: bytes and rows read, task slots, and the tasks that will run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf, isinf
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from skewless.histogram import Histogram
from skewless.table import RoutingTable

SHARE = 2**25  # bytes read for a worker, at most: files are mostly compressed, and Spark advises 64 MiB to shuffle
WIDTH = 12  # bytes of one column of one row, roughly


class Reads(NamedTuple):
    """What a DataFrame reads, by Spark's account; infinite where Spark does not know."""

    bytes: float
    rows: float  # if Spark knows only the bytes, what is likely
    most: float  # rows that the DataFrame can have at most
    grows: bool  # an operator of the plan may return more rows than it gets

    def portion(self, enough: int) -> float:
        """Returns the share of the rows that has this many; 1 if their number is not known."""
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
    size, rows, most, grows = 0.0, 0.0, 0.0, False
    logical = explained(df, "cost").partition("== Physical Plan ==")[0].splitlines()
    nodes = [(match, line) for line in logical if (match := _NODE.match(line))]
    depths = [len(match[1]) for match, _ in nodes]
    for (match, line), depth, following in zip(nodes, depths, [*depths[1:], 0], strict=True):
        _, node, number, unit, counted = match.groups()
        is_leaf = following <= depth
        if not is_leaf:
            most += 0.0 if node in _KEEPING else inf
            grows |= node not in _KEEPING | _FOLDING
            continue
        if unit not in _UNITS:
            return Reads(inf, inf, inf, True)  # EiB: Spark's default for an unknown size
        leaf_size = float(number) * _UNITS[unit]
        left_out = re.search(r"\.\.\. (\d+) more fields", line)
        columns = line.count("#") + int(left_out[1] if left_out else 0)
        size += leaf_size
        rows += float(counted) if counted else leaf_size / (WIDTH * max(columns, 1))
        most += float(counted) if counted and node in _COUNTED else inf
    return Reads(size, rows, most, grows)


def explained(df: DataFrame, mode: str = "simple") -> str:
    """Returns the text that `df.explain` prints, without printing it: other threads may be printing, too."""
    if hasattr(type(df), "_explain_string"):  # Connect
        return str(cast(Any, df)._explain_string(mode=mode))
    classic = cast(Any, df)
    return str(classic._sc._jvm.PythonSQLUtils.explainString(classic._jdf.queryExecution(), mode))


def parallelism(spark: SparkSession, size: float = 0.0) -> int:
    """Returns the default number of workers: the task slots, or more for much data; at most the shuffle partitions.

    Spark has 200 shuffle partitions by default, and merges small ones where it can. Balanced workers need not be many.

    size: bytes that are read; infinite if unknown.
    """
    most = shuffle_partitions(spark)
    if isinf(size) or spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return most  # Spark adds executors only when tasks wait, so the slots of now say little
    slots = task_slots(spark)
    return min(most, max(slots, ceil(size / SHARE))) if slots else most


def shuffle_partitions(spark: SparkSession) -> int:
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 200)


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


def task_loads(spark: SparkSession, histogram: Histogram, size: float, nulls: float = 0.0) -> NDArray[np.float64]:
    """Predicts the loads of the tasks that plain Spark runs for hashed keys, after AQE has merged small partitions.

    size: bytes that are shuffled; infinite if unknown, and then nothing is merged. nulls: rows that all go to one task.
    """
    partitions = RoutingTable.hashed(shuffle_partitions(spark)).loads(histogram.keys, histogram.counts, histogram.rest)
    partitions[0] += nulls
    total = float(partitions.sum())
    if isinf(size) or total == 0 or not _merges(spark):
        return partitions
    least = _bytes(spark, "spark.sql.adaptive.coalescePartitions.minPartitionSize", 2**20)
    advised = _bytes(spark, "spark.sql.adaptive.advisoryPartitionSizeInBytes", 2**26)
    wanted = spark.conf.get("spark.sql.adaptive.coalescePartitions.minPartitionNum", None)
    parallel = spark.conf.get("spark.sql.adaptive.coalescePartitions.parallelismFirst", "true") == "true"
    tasks = int(wanted) if wanted else (task_slots(spark) or 1) if parallel else 1
    target = max(least, min(advised, ceil(size / tasks))) * total / max(size, 1.0)  # in rows
    return _merged(partitions[partitions > 0], target)


def _merges(spark: SparkSession) -> bool:
    names = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled")
    return all(spark.conf.get(name, "true") == "true" for name in names)


def _merged(partitions: NDArray[np.float64], target: float) -> NDArray[np.float64]:
    """Adds up neighbours until the next one would exceed the target, as Spark's ShufflePartitionsUtil does."""
    tasks, load = [], 0.0
    for partition in partitions.tolist():
        if load and load + partition > target:
            tasks.append(load)
            load = 0.0
        load += partition
    return np.array([*tasks, load])


def _bytes(spark: SparkSession, name: str, default: int) -> int:
    """Reads a size such as 64MB or 1048576b."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", str(spark.conf.get(name, str(default))).lower())
    return int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else default
