"""What the keys of a DataFrame are like: how many, how often the hot ones come, how uneven hashing them would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from skewless.arrays import require, whole
from skewless.histogram import Histogram
from skewless.spark.keys import any_null, column, fields_of, hashed, unused
from skewless.table import RoutingTable

TRACKED = 65_536  # keys that Spark's sketch tracks
KEPT = 4096  # heaviest of them that are looked at


@dataclass(frozen=True, eq=False)
class Profile:
    """The keys of a DataFrame, as one pass of Spark over it found them."""

    keys: tuple[str, ...]  # the columns
    rows: int
    distinct: int  # about
    nulls: int  # rows in which a column of the key is NULL
    histogram: Histogram  # of key hashes
    seconds: float  # that measuring took
    df: DataFrame = field(repr=False)

    def straggler(self, n_workers: int, table: RoutingTable | None = None) -> float:
        """How many times as long as the mean the longest worker takes: hashed, or by a table."""
        table = table or RoutingTable.hashed(whole("n_workers", n_workers, 1))
        load = table.loads(self.histogram.keys, self.histogram.counts, self.histogram.rest)
        return float(load.max() / load.mean()) if self.rows else 1.0

    def hottest(self, most: int = 10) -> list[tuple[tuple[Any, ...], int]]:
        """The hottest keys with their rows. Runs a job: the profile itself knows hashes only."""
        hashes = self.histogram.keys[:most].view(np.int64).tolist()
        (name,) = unused(self.df, "hash")
        found = self.df.select(*map(column, self.keys), hashed(self.df, self.keys).alias(name))
        found = found.where(column(name).isin(hashes)).dropDuplicates([name])
        values = {row[-1]: tuple(row[:-1]) for row in found.collect()}
        counts = dict(zip(hashes, self.histogram.counts[:most].astype(int).tolist(), strict=True))
        return [(values[hash_], counts[hash_]) for hash_ in hashes if hash_ in values]

    def describe(self, n_workers: int) -> str:
        """For people."""
        shares = self.histogram.counts / max(self.histogram.total, 1.0)
        return (
            f"{self.rows:,} rows, about {self.distinct:,} keys, {self.nulls:,} rows with NULL; "
            f"the hottest key has {shares[0] if shares.size else 0:.1%}; hashed over {n_workers:,} workers, "
            f"the longest takes {self.straggler(n_workers):.2f} times the mean (measured in {self.seconds:.1f} s)"
        )


def profile(df: DataFrame, *keys: str, sample: float = 1.0) -> Profile:
    """The keys of a DataFrame, by one native pass over all of its rows, or a sample of them.

    sample: the share of rows to look at; counts are scaled.
    """
    fields_of(df, keys)
    require(0 < sample <= 1, f"sample is more than 0 and at most 1, not {sample}")
    began = perf_counter()
    some = df if sample == 1 else df.sample(fraction=sample, seed=1)
    hashes = some.select(hashed(df, keys).alias("hash"), any_null(keys).alias("is_null"))
    found = hashes.agg(*measures("hash", column("is_null"))).collect()[0].asDict()
    return profiled(df, keys, found, sample, perf_counter() - began)


@dataclass(frozen=True, eq=False)
class Watched:
    """Rows that are profiled while something else reads them; what `watch` gives."""

    rows: DataFrame
    keys: tuple[str, ...]
    df: DataFrame = field(repr=False)
    observation: Observation = field(repr=False)

    def profile(self) -> Profile:
        """The profile of the rows, after the first action that reads them all; it waits for that."""
        return profiled(self.df, self.keys, observed(self.observation))


def watch(df: DataFrame, *keys: str) -> Watched:
    """The same rows, which are profiled by the first job that reads them, for next to nothing.

    >>> watched = watch(df, "k")                                                                 # doctest: +SKIP
    >>> watched.rows.write.parquet("out")                                                        # doctest: +SKIP
    >>> watched.profile().straggler(64)                                                          # doctest: +SKIP
    """
    observation, (name,) = Observation(), unused(df, "hash")
    rows = df.select("*", hashed(df, keys).alias(name)).observe(observation, *measures(name, any_null(keys)))
    return Watched(rows.select(*map(column, df.columns)), tuple(keys), df, observation)


def measures(hashes: str, is_null: Column) -> list[Column]:
    """Aggregates of the rows from which `profiled` makes a profile: of a pass of its own, or of `df.observe`.

    hashes: the column of key hashes. A column, because aggregates would not compile an expression.
    """
    return [
        F.count(F.lit(1)).alias("rows"),
        F.approx_count_distinct(column(hashes), 0.02).alias("distinct"),
        F.count_if(is_null).alias("nulls"),
        F.call_function("approx_top_k", column(hashes), F.lit(KEPT), F.lit(TRACKED)).alias("top"),
    ]


def profiled(
    df: DataFrame, keys: Sequence[str], found: Mapping[str, Any], sample: float = 1.0, seconds: float = 0.0
) -> Profile:
    """The profile of rows, of which `measures` found this; nothing was found where there were no rows.

    sample: the share of rows that was looked at.
    """
    rows, nulls = found.get("rows", 0), found.get("nulls", 0)
    top = found.get("top") or ()
    hashes = np.array([item for item, _ in top], np.int64).view(np.uint64)
    counts = np.array([count for _, count in top], np.float64)
    order = np.lexsort((hashes, -counts))
    rest = max(0.0, rows - float(counts.sum()))
    histogram = Histogram(hashes[order], counts[order] / sample, rest / sample)
    scaled = [round(number / sample) for number in (rows, nulls)]
    return Profile(tuple(keys), scaled[0], found.get("distinct", 0), scaled[1], histogram, seconds, df)


def observed(observation: Observation) -> dict[str, Any]:
    """What was observed, once the first action on the rows is done; nothing if Spark found that there are no rows."""
    try:
        return observation.get
    except Exception as failure:
        # Classic cannot convert the empty row that it then has; Connect gives no metrics.
        if "toPyRow" in str(failure):
            return {}
        raise
