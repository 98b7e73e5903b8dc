"""What the keys of a DataFrame are like: how many, how often the hot ones come, how uneven hashing them would be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import reduce
from io import StringIO
from math import inf, isinf
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from skewless.arrays import require, whole
from skewless.histogram import Histogram
from skewless.kernels.hash import all_mixed, hasher
from skewless.spark.keys import any_null, column, fields_of, hashed, hashing, unused
from skewless.table import RoutingTable

TRACKED = 65_536  # keys that Spark's sketch tracks
KEPT = 4096  # heaviest of them that are looked at
ENOUGH = 250_000  # rows that are enough to plan by: of 100 workers' loads, most are then known to 2 %
EACH = 5_000  # rows that are enough for a worker, if there are few of them: most loads are known to 1.4 %
WIDTH = 12  # bytes of a column of a row, about
RARE = 5  # a key that came less often into a sample is there by chance: it counts as one of many


@dataclass(frozen=True, eq=False)
class Profile:
    """The keys of a DataFrame, as one pass of Spark over it found them."""

    keys: tuple[str, ...]  # the columns
    rows: int
    distinct: int  # about; in a sample, of that
    nulls: int  # rows in which a column of the key is NULL
    histogram: Histogram  # of key hashes
    seconds: float  # that measuring took
    sample: float  # the share of rows that was looked at
    df: DataFrame = field(repr=False)

    def straggler(self, n_workers: int, table: RoutingTable | None = None) -> float:
        """How many times as long as the mean the longest worker takes: hashed, or by a table."""
        return straggler(self.histogram, table or RoutingTable.hashed(whole("n_workers", n_workers, 1)))

    def hottest(self, most: int = 10) -> list[tuple[tuple[Any, ...], int]]:
        """The hottest keys with their rows. Runs a job: the profile itself knows hashes only."""
        return hottest([(self.df, self.keys)], self.histogram, most)

    def describe(self, n_workers: int) -> str:
        """For people, with what it cost to know."""
        shares = self.histogram.counts / max(self.histogram.total, 1.0)
        about, at_least = ("", "about") if self.sample == 1 else ("about ", "at least")
        return (
            f"{about}{self.rows:,} rows, {at_least} {self.distinct:,} keys, {self.nulls:,} rows with NULL; "
            f"the hottest key has {shares[0] if shares.size else 0:.1%}; hashed over {n_workers:,} workers, "
            f"the longest takes {self.straggler(n_workers):.2f} times the mean ({self.cost()})"
        )

    def cost(self) -> str:
        """What measuring took."""
        looked = f"{round(self.rows * self.sample):,} rows"
        part = "all rows" if self.sample == 1 else f"{looked}, {self.sample:.2%} of all,"
        return f"{part} measured in {self.seconds:.1f} s"


def hottest(
    frames: Sequence[tuple[DataFrame, tuple[str, ...]]], histogram: Histogram, most: int
) -> list[tuple[tuple[Any, ...], int]]:
    """The hottest keys of a histogram by their values, which are looked up in these DataFrames, with their rows."""
    hashes = histogram.keys[:most].view(np.int64).tolist()
    found = []
    for df, keys in frames:
        (name,) = unused(df, "hash")
        rows = df.select(*map(column, keys), hashed(df, keys).alias(name))
        found.append(rows.where(column(name).isin(hashes)).dropDuplicates([name]))
    values = {row[-1]: tuple(row[:-1]) for row in reduce(DataFrame.unionAll, found).collect()}
    counts = zip(hashes, histogram.counts[:most].astype(int).tolist(), strict=True)
    return [(values[hash_], count) for hash_, count in counts if hash_ in values]


def straggler(histogram: Histogram, table: RoutingTable) -> float:
    """How many times as long as the mean the longest worker takes by a table."""
    load = table.loads(histogram.keys, histogram.counts, histogram.rest)
    return float(load.max() / load.mean()) if histogram.total else 1.0


def hash_straggler(histogram: Histogram, n_workers: int) -> float:
    """The same by the worst of several hash functions: Spark's own may suit few keys better, or worse."""
    table, seeds = RoutingTable.hashed(n_workers), range(8)
    mixed = [replace(histogram, keys=all_mixed(hasher(n_workers, seed), histogram.keys)) for seed in seeds]
    return max(straggler(one, table) for one in mixed)


def profile(df: DataFrame, *keys: str, sample: float | None = 1.0) -> Profile:
    """The keys of a DataFrame, by one native pass over all of its rows, or a sample of them.

    sample: the share of rows to look at; counts are scaled. All rows are read for it, but few are counted. None: all of
        little data, and a small portion of much, as the verbs do; a portion with too few rows is taken again, larger.
    """
    return profiles([(df, keys)], sample)[0]


def profiles(
    frames: Sequence[tuple[DataFrame, tuple[str, ...]]],
    sample: float | None,
    matching: bool = False,
    n_workers: int | None = None,
    known: Sequence[Reads] | None = None,
) -> list[Profile]:
    """The profiles of several DataFrames by their keys, at once.

    matching: only of keys that match others in a join: rows with NULL are counted, but are not in the histogram.
    n_workers: for which it is to be planned, if that is known: for few, fewer rows are enough.
    known: what is read for each, if that was asked already: it takes Spark a while.
    """
    for df, keys in frames:
        fields_of(df, keys)
    require(sample is None or 0 < sample <= 1, f"sample is more than 0 and at most 1, not {sample}")
    began = perf_counter()
    known = [reads(df) for df, _ in frames] if known is None else known
    enough = ENOUGH if n_workers is None else min(ENOUGH, EACH * n_workers)
    shares = [one.portion(enough) if sample is None else sample for one in known]
    found = _measured(frames, shares, known, matching)
    # Rows are guessed by bytes. A few less will do: to read everything again costs more than it brings.
    again = [
        number
        for number, share in enumerate(shares)
        if sample is None and share < 1 and found[number].rows < enough / 4
    ]
    for number in again:
        shares[number] = min(1.0, shares[number] * enough / max(found[number].rows, 1))
        (found[number],) = _measured([frames[number]], [shares[number]], [known[number]], matching)
    seconds = perf_counter() - began
    return [
        _profile(df, keys, one, share, seconds) for (df, keys), one, share in zip(frames, found, shares, strict=True)
    ]


class Reads(NamedTuple):
    """What a DataFrame is made of, by Spark's account; infinite where it does not know."""

    bytes: float
    rows: float  # if Spark does not know, but the bytes, what is likely
    most: float  # rows that the DataFrame can have
    grows: bool  # some part of the plan may give more rows than it gets

    def portion(self, enough: int) -> float:
        """The share that has so many rows; 1 if it is not known how many there are."""
        return 1.0 if isinf(self.rows) else min(1.0, enough / max(self.rows, 1.0))


# Parts of a plan that give no more rows than they get; and leaves of which Spark has counted the rows.
_KEEPING = {"Project", "Filter", "Sample", "Union", "Sort", "Repartition", "RepartitionByExpression"}
# These give no more than that, either; but how many they may give at most is not what their leaves have.
_FOLDING = {"Aggregate", "Deduplicate", "GlobalLimit", "LocalLimit", "Window", "ArrowEvalPython", "BatchEvalPython"}
_COUNTED = {"InMemoryRelation", "LocalRelation", "Range"}


def reads(df: DataFrame) -> Reads:
    """What is read for a DataFrame: the leaves of its plan. Runs no job."""
    units = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))}
    size, rows, most, grows = 0.0, 0.0, 0.0, False
    known = re.compile(r"^([ :+-]*)(\w+).*Statistics\(sizeInBytes=([\d.E+]+) (\w+)(?:, rowCount=([\d.E+]+))?")
    logical = explained(df, "cost").partition("== Physical Plan ==")[0].splitlines()
    nodes = [(found, line) for line in logical if (found := known.match(line))]
    depths = [len(found[1]) for found, _ in nodes]
    for (found, line), depth, following in zip(nodes, depths, [*depths[1:], 0], strict=True):
        _, node, number, unit, counted = found.groups()
        if following > depth:
            most += 0.0 if node in _KEEPING else inf
            grows |= node not in _KEEPING | _FOLDING
            continue
        if unit not in units:
            return Reads(inf, inf, inf, True)  # EiB: Spark's word for not knowing
        here = float(number) * units[unit]
        left_out = re.search(r"\.\.\. (\d+) more fields", line)
        columns = line.count("#") + int(left_out[1] if left_out else 0)
        size += here
        rows += float(counted) if counted else here / (WIDTH * max(columns, 1))
        most += float(counted) if counted and node in _COUNTED else inf
    return Reads(size, rows, most, grows)


def explained(df: DataFrame, mode: str | None = None) -> str:
    """Spark's plan; it is printed only, on Classic and over Connect."""
    with redirect_stdout(StringIO()) as printed:
        df.explain(mode=mode)
    return printed.getvalue()


class Counts(NamedTuple):
    """What was found in rows, or in a sample of them."""

    rows: int
    distinct: int
    nulls: int
    hashes: NDArray[np.int64]  # of the hottest keys
    counts: NDArray[np.int64]


def _measured(
    frames: Sequence[tuple[DataFrame, tuple[str, ...]]],
    shares: Sequence[float],
    known: Sequence[Reads],
    matching: bool,
) -> list[Counts]:
    """What there is in each, or in a sample. One job does it, in which Spark works on all of them at the same time.

    If they are few, the hashes come here to be counted: Spark takes twice as long for its sketches of them. Where it
    cannot be sure that they are few, no more than some come; if there are more, it is Spark who counts after all.
    """
    few = 2 * ENOUGH * len(frames)
    is_sure = sum(one.most * share for one, share in zip(known, shares, strict=True)) <= few
    likely = sum(inf if one.grows else one.rows * share for one, share in zip(known, shares, strict=True))
    if is_sure or likely <= few / 2:
        together = reduce(DataFrame.unionAll, _hashes(frames, shares, None if is_sure else few))
        hash_of, is_null, part_of = (values.to_numpy() for values in together.toArrow())
        sizes = np.bincount(part_of)
        if is_sure or (sizes < few // (np.arange(sizes.size) // len(frames) + 1)).all():
            each = [part_of % len(frames) == number for number in range(len(frames))]
            return [_counted(hash_of[own & ~(is_null & matching)], is_null[own]) for own in each]
    hashes = _hashes(frames, shares)
    if matching:
        counted = F.when(~column("is_null"), column("hash")).alias("hash")
        hashes = [rows.select(counted, column("is_null")) for rows in hashes]
    told = measures("hash", column("is_null"))
    numbered = [rows.agg(*told, F.lit(number).alias("number")) for number, rows in enumerate(hashes)]
    rows = sorted(reduce(DataFrame.unionAll, numbered).collect(), key=lambda row: row["number"])
    return [_parsed(row.asDict()) for row in rows]


def _hashes(
    frames: Sequence[tuple[DataFrame, tuple[str, ...]]], shares: Sequence[float], most: int | None = None
) -> list[DataFrame]:
    """Of a sample of each: the hash of the key, whether a column of it is NULL, and the part that the row is from.

    Parts are the tasks of the first frame, of the second and so on: number t of frame f is t times the frames, and f.

    most: task t stops after 1 / (t + 1) of so many rows, which does for all where tasks have the same. With `limit`,
        all rows would have to come together in one task first, and it would take a third longer.
    """
    found = []
    for number, ((df, keys), share) in enumerate(zip(frames, shares, strict=True)):
        # As df.sample, which takes a third longer: rows by the hash of their number.
        below = max(1, round(share * 2**32))
        wanted = [f"shiftrightunsigned(xxhash64(monotonically_increasing_id()), 32) < {below}L"] if share < 1 else []
        if most is not None:
            # This one numbers the rows that come so far. In its upper bits is the task, in the others the row.
            row = f"(monotonically_increasing_id() & {2**33 - 1}L)"
            wanted.append(f"{row} < {most}L DIV (spark_partition_id() + 1)")
        rows = df.where(" AND ".join(wanted)) if wanted else df
        part = f"spark_partition_id() * {len(frames)} + {number} AS part"
        found.append(rows.selectExpr(f"{hashing(df, keys)} AS hash", f"{any_null(keys)} AS is_null", part))
    return found


def _counted(hashes: NDArray[np.int64], is_null: NDArray[np.bool_]) -> Counts:
    keys, counts = np.unique(hashes, return_counts=True)
    hottest = np.argsort(-counts, kind="stable")[:KEPT]
    return Counts(hashes.size, keys.size, int(is_null.sum()), keys[hottest], counts[hottest])


@dataclass(frozen=True, eq=False)
class Watched:
    """Rows that are profiled while something else reads them; what `watch` gives."""

    rows: DataFrame
    keys: tuple[str, ...]
    df: DataFrame = field(repr=False)
    observation: Observation = field(repr=False)

    def profile(self) -> Profile:
        """The profile of the rows, after the first action that reads them all; it waits for that."""
        return _profile(self.df, self.keys, _parsed(observed(self.observation)), sample=1.0, seconds=0.0)


def watch(df: DataFrame, *keys: str) -> Watched:
    """The same rows, which are profiled by the first job that reads them, for next to nothing.

    >>> watched = watch(df, "k")                                                                 # doctest: +SKIP
    >>> watched.rows.write.parquet("out")                                                        # doctest: +SKIP
    >>> watched.profile().straggler(64)                                                          # doctest: +SKIP
    """
    observation, (name,) = Observation(), unused(df, "hash")
    rows = df.select("*", hashed(df, keys).alias(name)).observe(observation, *measures(name, F.expr(any_null(keys))))
    return Watched(rows.select(*map(column, df.columns)), tuple(keys), df, observation)


def measures(hashes: str, is_null: Column) -> list[Column]:
    """Aggregates of the rows from which a profile is made: of a pass of its own, or of `df.observe`.

    hashes: the column of key hashes. A column, because aggregates would not compile an expression.
    """
    return [*frequencies(hashes), distinct(hashes).alias("distinct"), F.count_if(is_null).alias("nulls")]


def frequencies(hashes: str) -> list[Column]:
    """The aggregates from which `histogram` is made; rows with NULL for a hash do not count."""
    top = F.call_function("approx_top_k", column(hashes), F.lit(KEPT), F.lit(TRACKED))
    return [F.count(column(hashes)).alias("rows"), top.alias("top")]


def distinct(hashes: str) -> Column:
    """About how many hashes there are."""
    # Not approx_count_distinct: as exact as this, its buffer has hundreds of columns, which are slow to compile.
    return F.hll_sketch_estimate(F.hll_sketch_agg(column(hashes), F.lit(12)))


def histogram(found: Mapping[str, Any], sample: float = 1.0) -> Histogram:
    """The histogram of rows, of which `frequencies` found this; nothing was found where there were no rows.

    sample: the share of rows that was looked at.
    """
    return _histogram(_parsed(found), sample)


def _parsed(found: Mapping[str, Any]) -> Counts:
    # Rows that were not to be counted have NULL for a hash, which Spark counts, too.
    top = [(item, count) for item, count in found.get("top") or () if item is not None]
    hashes, counts = np.array(top, np.int64).reshape(-1, 2).T
    return Counts(found.get("rows", 0), found.get("distinct", 0), found.get("nulls", 0), hashes, counts)


def _histogram(found: Counts, sample: float) -> Histogram:
    kept = found.counts >= (0 if sample == 1 else RARE)
    hashes, counts = found.hashes[kept].view(np.uint64), found.counts[kept].astype(np.float64)
    order = np.lexsort((hashes, -counts))
    rest = max(0.0, found.rows - float(counts.sum()))
    return Histogram(hashes[order], counts[order] / sample, rest / sample)


def _profile(df: DataFrame, keys: Sequence[str], found: Counts, sample: float, seconds: float) -> Profile:
    rows, nulls = (round(number / sample) for number in (found.rows, found.nulls))
    return Profile(tuple(keys), rows, found.distinct, nulls, _histogram(found, sample), seconds, sample, df)


def observed(observation: Observation) -> dict[str, Any]:
    """What was observed, once the first action on the rows is done; nothing if Spark found that there are no rows."""
    try:
        return observation.get
    except Exception as failure:
        # Classic cannot convert the empty row that it then has; Connect gives no metrics.
        if "toPyRow" in str(failure):
            return {}
        raise
