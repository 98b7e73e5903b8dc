"""The job of an interval join: `sl.stream(...).join(sl.stream(...), "-5 seconds", "10 seconds")`."""

from __future__ import annotations

from dataclasses import replace

from skewless.arguments import require
from skewless.spark.checksums import check_splitting
from skewless.spark.keys import fields_of
from skewless.spark.plans import parallelism
from skewless.spark.streaming.interval_join import Intervals, both_sides
from skewless.spark.streaming.job import Job
from skewless.spark.streaming.rows import KeyedRows
from skewless.spark.streaming.times import duration


def interval_job(left: KeyedRows, right: KeyedRows | object, earliest: str, latest: str) -> Job:
    """Checks and resolves the parameters of `Stream.join`.

    earliest, latest: the least and the greatest time from a left row to a right row that it matches.
    """
    if not isinstance(right, KeyedRows):
        raise ValueError(f"join takes another sl.stream(...), not {type(right).__name__}")
    if left.time is None or right.time is None:
        raise ValueError('both streams need the time of rows: sl.stream(..., time="ts")')
    keys = [[(field.name, field.dataType) for field in fields_of(side.df, side.keys)] for side in (left, right)]
    require(keys[0] == keys[1], f"both streams must have the same key, not {keys[0]} and {keys[1]}")
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
    operator = Intervals(
        key=left.key,
        times=(left.time, right.time),
        schemas=(left.df.schema, right.df.schema),
        least=least,
        most=most,
        n_workers=n_workers,
    )
    check_splitting(left.df, "spreading the rows of hot keys in a join")
    return Job(replace(left, df=both_sides(left.df, right.df)), operator, split=True)
