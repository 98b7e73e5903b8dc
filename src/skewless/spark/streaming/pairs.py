"""The job of an interval join: `sl.stream(...).join(sl.stream(...), "-5 seconds", "10 seconds")`."""

from __future__ import annotations

import logging
from dataclasses import replace

from skewless.arguments import require
from skewless.spark.checksums import splitting_problem
from skewless.spark.keys import fields_of
from skewless.spark.plans import parallelism
from skewless.spark.streaming.interval_join import Intervals, both_sides
from skewless.spark.streaming.job import Job
from skewless.spark.streaming.rows import KeyedRows
from skewless.spark.streaming.times import duration

_log = logging.getLogger("skewless")


def interval_job(left: KeyedRows, right: KeyedRows | object, earliest: str, latest: str) -> Job:
    """Checks and resolves the parameters of `Stream.join`.

    earliest, latest: the least and the greatest time from a left row to a right row that it matches.
    """
    if not isinstance(right, KeyedRows):
        raise ValueError(f"join takes another sl.stream(...), not {type(right).__name__}")
    right = _named_alike(left, right)
    if left.time is None or right.time is None:
        raise ValueError('both streams need the time of rows: sl.stream(..., time="ts")')
    schemas = [side.key.schema(side.df).simpleString() for side in (left, right)]
    require(left.keys == right.keys, f"both streams must have the same key, not {schemas[0]} and {schemas[1]}")
    kinds = [[field.dataType for field in fields_of(side.df, side.keys)] for side in (left, right)]
    require(kinds[0] == kinds[1], f"both streams must have a key of one type, not {schemas[0]} and {schemas[1]}")
    shared = sorted((set(left.df.columns) & set(right.df.columns)) - set(left.keys))
    require(not shared, f"both streams have columns {', '.join(shared)}: rename them in one")
    by_default = left.partitioner == right.partitioner == "auto"
    require(by_default, "a join routes its keys itself: leave the partitioner out")
    require(left.statistics == right.statistics == "last", "a join plans by its last batch: leave statistics out")
    least, most = duration("earliest", earliest, signed=True), duration("latest", latest, signed=True)
    require(least <= most, f"earliest is at most latest, not {earliest} and {latest}")
    same = right.n_workers in (None, left.n_workers)
    require(same, f"give n_workers to the left stream: the right one has {right.n_workers}, not {left.n_workers}")
    n_workers = left.n_workers or parallelism(left.df.sparkSession)
    if not isinstance(n_workers, int):
        raise ValueError(f"n_workers of a join is a number, not {n_workers}")
    problem = splitting_problem(left.df, "spreading the rows of hot keys in a join")
    if problem:
        _log.warning("the join is left to Spark: %s", problem)
    operator = Intervals(
        key=left.key,
        times=(left.time, right.time),
        schemas=(left.df.schema, right.df.schema),
        least=least,
        most=most,
        n_workers=n_workers,
        problem=problem,
    )
    return Job(replace(left, df=both_sides(left.df, right.df)), operator, split=True)


def _named_alike(left: KeyedRows, right: KeyedRows) -> KeyedRows:
    """Returns the right side with its key named as on the left one, if they differ only in case."""
    pairs = [*zip(left.keys, right.keys, strict=False)]
    same = len(left.keys) == len(right.keys) and all(mine.lower() == theirs.lower() for mine, theirs in pairs)
    if left.keys == right.keys or not same:
        return right
    names = {theirs: mine for mine, theirs in pairs}
    return replace(right, df=right.df.withColumnsRenamed(names), key=left.key)
