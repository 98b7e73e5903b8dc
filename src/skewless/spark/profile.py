"""Profiles the keys of a DataFrame: how many there are, how often the hot ones occur, how uneven hashing would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from skewless.arguments import require, whole
from skewless.histogram import Histogram
from skewless.spark.keys import Key, Keyed, any_null, column, hashed, hashing, keyed, partition_of, unused
from skewless.spark.plans import Reads, reads
from skewless.spark.settings import shuffle_partitions, spark_version
from skewless.table import RoutingTable

TRACKED = 65_536  # keys that Spark's sketch tracks
KEPT = 4096  # heaviest keys that a profile keeps
ENOUGH = 250_000  # rows to plan by: the loads of 100 workers are then mostly known to 2 %
ENOUGH_PER_WORKER = 5_000  # rows to plan by for few workers: loads are then mostly known to 1.4 %
RARE = 5  # a key that occurs less often in a sample is there by chance, and counts as one of the tail
EXACT_OBSERVATIONS = spark_version() >= (4, 3)


@dataclass(frozen=True, eq=False)
class Profile:
    """The keys of a DataFrame, from one pass of Spark over its rows, or a sample of them.

    >>> sl.profile(df, "user").straggler(64)                                                     # doctest: +SKIP
    """

    keys: tuple[str, ...]  # the names of the key's columns
    rows: int
    distinct: int  # estimated; of a sample, the keys in it
    nulls: int  # rows in which a column of the key is NULL
    histogram: Histogram  # of key hashes
    seconds: float  # that profiling took
    sample: float  # the share of rows that was looked at
    frame: Keyed = field(repr=False)
    exact: bool = True  # False: rows of failed task attempts may have been counted, too

    @property
    def df(self) -> DataFrame:
        """The rows as they were given."""
        return self.frame.source

    def straggler(self, n_workers: int, table: RoutingTable | None = None) -> float:
        """Returns the straggler factor: the load of the longest worker over the mean.

        n_workers: how many workers to hash the keys over.
        table: routes the keys instead; n_workers is then ignored.

        >>> sl.profile(df, "user").straggler(64)                                                 # doctest: +SKIP
        """
        return self.histogram.straggler(table or RoutingTable.hashed(whole("n_workers", n_workers, 1)))

    def hottest(self, most: int = 10) -> list[tuple[tuple[Any, ...], int]]:
        """Returns the hottest keys with their rows. Runs a job: the profile itself has hashes only.

        most: how many keys.

        >>> sl.profile(df, "user").hottest(3)                                                    # doctest: +SKIP
        """
        return [(key.values, key.rows) for key in hottest([self.frame], self.histogram, most)]

    def describe(self, n_workers: int) -> str:
        """Describes the profile for people, with what it cost.

        n_workers: how many workers to hash the keys over.

        >>> print(sl.profile(df, "user").describe(64))                                           # doctest: +SKIP
        """
        shares = self.histogram.counts / max(self.histogram.total, 1.0)
        about, at_least = ("", "about") if self.sample == 1 and self.exact else ("about ", "at least")
        return (
            f"{about}{self.rows:,} rows, {at_least} {self.distinct:,} keys, {self.nulls:,} rows with NULL; "
            f"the hottest key has {shares[0] if shares.size else 0:.1%}; hashed over {n_workers:,} workers, "
            f"the longest takes {self.straggler(n_workers):.2f} times the mean ({self.cost()})"
        )

    def cost(self) -> str:
        """Describes how many rows were looked at, and how long that took.

        >>> sl.profile(df, "user").cost()                                                        # doctest: +SKIP
        'all rows measured in 0.4 s'
        """
        rows = f"{round(self.rows * self.sample):,} rows, {self.sample:.2%} of all,"
        return f"{'all rows' if self.sample == 1 else rows} measured in {self.seconds:.1f} s"


class HotKey(NamedTuple):
    """One of the most frequent keys of some rows."""

    hash: int
    values: tuple[Any, ...]
    rows: int
    partition: int | None  # in a shuffle of plain Spark; None if Spark cannot hash the key


def hottest(frames: Sequence[Keyed], histogram: Histogram, most: int) -> list[HotKey]:
    """Looks up the values of a histogram's hottest keys in these rows, and where plain Spark would send them."""
    hashes = histogram.keys[:most].view(np.int64).tolist()
    n_partitions, matches = shuffle_partitions(frames[0].df.sparkSession), []
    for frame in frames:
        name, where = unused(frame.df, "hash", "partition")
        partition = F.expr(partition_of(frame.df, frame.names, n_partitions)).alias(where)
        hash_of = hashed(frame.df, frame.names).alias(name)
        rows = frame.df.select(*map(column, frame.names), hash_of, partition)
        matches.append(rows.where(column(name).isin(hashes)).dropDuplicates([name]))
    found = {}
    for row in reduce(DataFrame.unionAll, matches).collect():
        *values, hash_of_row, partition_of_row = row
        found[hash_of_row] = tuple(values), partition_of_row
    counts = histogram.counts[:most].astype(int).tolist()
    return [
        HotKey(hash=key, values=found[signed][0], rows=rows, partition=found[signed][1])
        for key, signed, rows in zip(histogram.keys[:most].tolist(), hashes, counts, strict=True)
        if signed in found
    ]


def profile(df: DataFrame, *keys: Key, sample: float | None = 1.0) -> Profile:
    """Profiles the keys of a DataFrame in one native pass over all of its rows, or a sample of them.

    df: the rows.
    keys: what PySpark's groupBy takes: names of columns, nested fields, Columns, or lists of these.
    sample: the share of rows to look at; counts are scaled. All rows are read, but few are counted. None: all of little
        data and a small portion of much, as the verbs do; a portion with too few rows is taken again, larger.

    >>> print(sl.profile(df, "user").describe(64))                                               # doctest: +SKIP
    """
    return profiles([keyed(df, keys)], sample)[0]


def profiles(
    frames: Sequence[Keyed],
    sample: float | None,
    matching: bool = False,
    n_workers: int | None = None,
    sizes: Sequence[Reads] | None = None,
) -> list[Profile]:
    """Profiles several DataFrames at once.

    matching: the keys are those of a join: rows with NULL are counted, but are not in the histogram.
    n_workers: how many workers to plan for; few need fewer rows. None: any number.
    sizes: what each frame reads, if Spark was asked already, which takes a while.
    """
    require(sample is None or 0 < sample <= 1, f"sample is more than 0 and at most 1, not {sample}")
    began = perf_counter()
    sizes = [reads(frame.df) for frame in frames] if sizes is None else sizes
    enough = ENOUGH if n_workers is None else min(ENOUGH, ENOUGH_PER_WORKER * n_workers)
    shares = [size.portion(enough) if sample is None else sample for size in sizes]
    counts = _measured(frames, shares, sizes, matching)
    # Rows are estimated from bytes. A few less are enough: reading everything again costs more than it gains.
    for number, share in enumerate(shares):
        if sample is None and share < 1 and counts[number].rows < enough / 4:
            shares[number] = min(1.0, share * enough / max(counts[number].rows, 1))
            (counts[number],) = _measured([frames[number]], [shares[number]], [sizes[number]], matching)
    seconds = perf_counter() - began
    return [
        _profile(frame, counted, share, seconds) for frame, counted, share in zip(frames, counts, shares, strict=True)
    ]


class Counts(NamedTuple):
    """Counts of rows, or of a sample of them."""

    rows: int
    distinct: int
    nulls: int
    hashes: NDArray[np.int64]  # of the hottest keys
    counts: NDArray[np.int64]


def _measured(frames: Sequence[Keyed], shares: Sequence[float], sizes: Sequence[Reads], matching: bool) -> list[Counts]:
    """Counts the keys of samples of all frames in one job.

    If the rows are few, their hashes come to the driver to be counted: Spark's sketches take twice as long. Where Spark
    only estimates that they are few, each task stops at a limit; if a task reaches it, Spark counts the rows after all.
    """
    few = 2 * ENOUGH * len(frames)
    is_sure = sum(size.most * share for size, share in zip(sizes, shares, strict=True)) <= few
    likely = sum(inf if size.grows else size.rows * share for size, share in zip(sizes, shares, strict=True))
    if is_sure or likely <= few / 2:
        together = reduce(DataFrame.unionAll, _hashes(frames, shares, None if is_sure else few))
        hash_of, is_null, part_of = (values.to_numpy() for values in together.toArrow())
        sizes_of_parts = np.bincount(part_of)
        limits = few // (np.arange(sizes_of_parts.size) // len(frames) + 1)
        if is_sure or (sizes_of_parts < limits).all():
            own = [part_of % len(frames) == number for number in range(len(frames))]
            return [_counted(hash_of[rows & ~(is_null & matching)], is_null[rows]) for rows in own]
    hashes = _hashes(frames, shares)
    if matching:
        counted = F.when(~column("is_null"), column("hash")).alias("hash")
        hashes = [rows.select(counted, column("is_null")) for rows in hashes]
    aggregates = measures("hash", column("is_null"))
    numbered = [rows.agg(*aggregates, F.lit(number).alias("number")) for number, rows in enumerate(hashes)]
    results = sorted(reduce(DataFrame.unionAll, numbered).collect(), key=lambda row: row["number"])
    return [_parsed(row.asDict()) for row in results]


def _hashes(frames: Sequence[Keyed], shares: Sequence[float], most: int | None = None) -> list[DataFrame]:
    """Returns, for a sample of each frame: the hash of the key, whether it has a NULL, and the part a row is from.

    A part is a task of a frame: task t of frame f is part t * len(frames) + f.

    most: task t stops after 1 / (t + 1) of this many rows, which suffices for all where tasks have equally many.
        `limit` would bring all rows together in one task first, and take a third longer.
    """
    samples = []
    for number, (frame, share) in enumerate(zip(frames, shares, strict=True)):
        # df.sample takes a third longer than choosing rows by the hash of their number.
        below = max(1, round(share * 2**32))
        filters = [f"shiftrightunsigned(xxhash64(monotonically_increasing_id()), 32) < {below}L"] if share < 1 else []
        if most is not None:
            # Here it numbers the rows that passed the filter before: the task in its upper bits, the row in the others.
            row = f"(monotonically_increasing_id() & {2**33 - 1}L)"
            filters.append(f"{row} < {most}L DIV (spark_partition_id() + 1)")
        rows = frame.df.where(" AND ".join(filters)) if filters else frame.df
        key, is_null = hashing(frame.df, frame.names), any_null(frame.names)
        part = f"spark_partition_id() * {len(frames)} + {number} AS part"
        samples.append(rows.selectExpr(f"{key} AS hash", f"{is_null} AS is_null", part))
    return samples


def _counted(hashes: NDArray[np.int64], is_null: NDArray[np.bool_]) -> Counts:
    keys, counts = np.unique(hashes, return_counts=True)
    hottest = np.argsort(-counts, kind="stable")[:KEPT]
    return Counts(hashes.size, keys.size, int(is_null.sum()), keys[hottest], counts[hottest])


@dataclass(frozen=True, eq=False)
class Watched:
    """Rows that are profiled while another job reads them; what `watch` returns.

    >>> sl.watch(df, "user").rows.write.parquet("out")                                           # doctest: +SKIP
    """

    rows: DataFrame
    frame: Keyed = field(repr=False)
    observation: Observation = field(repr=False)

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the key's columns."""
        return self.frame.shown

    @property
    def df(self) -> DataFrame:
        """The rows as they were given."""
        return self.frame.source

    def profile(self) -> Profile:
        """Returns the profile of the rows; waits for the first action that reads them all.

        Before Spark 4.3, rows of failed task attempts are counted, too: the profile is then not `exact`.

        >>> watched.profile().straggler(64)                                                      # doctest: +SKIP
        """
        return replace(_profile(self.frame, _parsed(observed(self.observation)), 1.0, 0.0), exact=EXACT_OBSERVATIONS)


def watch(df: DataFrame, *keys: Key) -> Watched:
    """Returns the same rows, which the first job that reads them profiles at almost no cost.

    df: the rows.
    keys: what PySpark's groupBy takes: names of columns, nested fields, Columns, or lists of these.

    >>> watched = sl.watch(df, "user")                                                           # doctest: +SKIP
    >>> watched.rows.write.parquet("out")                                                        # doctest: +SKIP
    >>> watched.profile().straggler(64)                                                          # doctest: +SKIP
    """
    frame, observation = keyed(df, keys), Observation()
    (name,) = unused(frame.df, "hash")
    hashes = frame.df.select("*", hashed(frame.df, frame.names).alias(name))
    rows = hashes.observe(observation, *measures(name, F.expr(any_null(frame.names))))
    return Watched(rows.select(*map(column, df.columns)), frame, observation)


def measures(hashes: str, is_null: Column) -> list[Column]:
    """Returns the aggregates that a profile is made from, for a pass of its own or for `df.observe`.

    hashes: the column of key hashes; a column, because Spark would not compile an expression in these aggregates.
    """
    return [*frequencies(hashes), distinct(hashes).alias("distinct"), F.count_if(is_null).alias("nulls")]


def frequencies(hashes: str) -> list[Column]:
    """Returns the aggregates that `histogram` is made from; rows whose hash is NULL do not count."""
    top = F.call_function("approx_top_k", column(hashes), F.lit(KEPT), F.lit(TRACKED))
    return [F.count(column(hashes)).alias("rows"), top.alias("top")]


def distinct(hashes: str) -> Column:
    """Returns an aggregate that estimates the number of different hashes."""
    # Not approx_count_distinct: at this accuracy its buffer has hundreds of columns, which are slow to compile.
    return F.hll_sketch_estimate(F.hll_sketch_agg(column(hashes), F.lit(12)))


def histogram(counted: Mapping[str, Any], sample: float = 1.0) -> Histogram:
    """Makes a histogram from the results of `frequencies`, which are empty where there were no rows.

    sample: the share of rows that was counted.
    """
    return _histogram(_parsed(counted), sample)


def _parsed(counted: Mapping[str, Any]) -> Counts:
    # Rows that must not count have NULL for a hash, which Spark's sketch counts, too.
    top = [(item, count) for item, count in counted.get("top") or () if item is not None]
    hashes, counts = np.array(top, np.int64).reshape(-1, 2).T
    return Counts(counted.get("rows", 0), counted.get("distinct", 0), counted.get("nulls", 0), hashes, counts)


def _histogram(counted: Counts, sample: float) -> Histogram:
    frequent = counted.counts >= (0 if sample == 1 else RARE)
    hashes, counts = counted.hashes[frequent].view(np.uint64), counted.counts[frequent].astype(np.float64)
    order = np.lexsort((hashes, -counts))
    rest = max(0.0, counted.rows - float(counts.sum()))
    return Histogram(hashes[order], counts[order] / sample, rest / sample)


def _profile(frame: Keyed, counted: Counts, sample: float, seconds: float) -> Profile:
    rows, nulls = (round(number / sample) for number in (counted.rows, counted.nulls))
    return Profile(frame.shown, rows, counted.distinct, nulls, _histogram(counted, sample), seconds, sample, frame)


def observed(observation: Observation) -> dict[str, Any]:
    """Returns what was observed, once the first action on the rows is done; nothing if Spark ran no task for it."""
    try:
        return observation.get
    except Exception as failure:
        # Classic cannot convert the empty row that it then has; Connect gives no metrics.
        if "toPyRow" in str(failure):
            return {}
        raise
