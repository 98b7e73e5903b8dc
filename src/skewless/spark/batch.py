"""Rows where a routing table says, and what Spark does with them there: repartition, and window functions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from skewless.arrays import require, whole
from skewless.histogram import Histogram
from skewless.partitioner import Partitioner
from skewless.partitioners import named
from skewless.partitioners.auto import table_for
from skewless.spark import exact
from skewless.spark.exact import Exact, Sourced
from skewless.spark.keys import column, fields_of, hashing, quoted, unused
from skewless.spark.profile import Reads, hash_straggler, profiles, reads
from skewless.spark.route import worker
from skewless.table import RoutingTable

Placing: TypeAlias = str | Partitioner[Any, Any] | RoutingTable
BATCH_COSTS = (1.0, 1.0, 0.0)  # before a batch nothing is anywhere: moves are free
_log = logging.getLogger("skewless")
TINY = 2**20  # bytes: as much as AQE gives a task at least
MILD = 1.25  # times the mean that the longest worker takes: to balance less than that costs more than it brings
WORKER = "worker"  # the name of our column, if the user has none of that name


def placed(
    df: DataFrame,
    keys: tuple[str, ...],
    partitioner: Placing | Exact,
    n_workers: int | None,
    *,
    sample: float | None = None,
    split: bool = False,
    beside: tuple[DataFrame, tuple[str, ...]] | None = None,
) -> RoutingTable | Sourced:
    """What to route by: a table as given, or planned from a profile of the keys; or the partitioner itself.

    sample: the share of rows to plan by, as `profile` takes it.
    split: keys may be split; if not, a partitioner or table that splits them is refused.
    beside: other rows, and their keys, that are to be routed by the same.
    """
    return _planned(df, keys, partitioner, n_workers, sample, split, beside, None)[0]


def _planned(
    df: DataFrame,
    keys: tuple[str, ...],
    partitioner: Placing | Exact,
    n_workers: int | None,
    sample: float | None,
    split: bool,
    beside: tuple[DataFrame, tuple[str, ...]] | None,
    known: list[Reads] | None,
) -> tuple[RoutingTable | Sourced, Histogram | None]:
    """As `placed`; and the histogram that a table was planned by, if it was."""
    fields_of(df, keys)
    workers = parallelism(df) if n_workers is None else whole("n_workers", n_workers, 1)
    histogram = None
    if isinstance(partitioner, RoutingTable):
        given = partitioner.n_workers
        require(n_workers in (None, given), f"the table is for {given} workers, not for {n_workers}")
        require(split or not partitioner.splits_keys, "this table splits keys, but each is needed whole on one worker")
        by = partitioner
    else:
        wanted = partitioner.partitioner if isinstance(partitioner, Exact) else partitioner
        p = chosen(wanted, workers, split, BATCH_COSTS)
        require(n_workers in (None, p.n_workers), f"{p.name} is for {p.n_workers} workers, not for {n_workers}")
        frames = [(df, keys)] if beside is None else [(df, keys), beside]
        if isinstance(partitioner, Exact):
            alone = not split and not exact.agrees(p)
            meet = not alone or beside is None
            require(meet, f"{p.name} places keys in the order of its rows: those of two sides would not meet")
            checksums(df)
            return Sourced(p, exact.learned(p, *frames), alone), None
        found = profiles(frames, sample, n_workers=p.n_workers, known=known)
        histogram = found[0].histogram if beside is None else found[0].histogram + found[1].histogram
        by = table_for(p, histogram, RoutingTable.hashed(p.n_workers))
        _log.info("%s planned %d hot keys for %d workers: %s", p.name, by.keys.size, by.n_workers, found[0].cost())
    if by.splits_keys:
        checksums(df)
    return by, histogram


def needed(
    df: DataFrame,
    keys: tuple[str, ...],
    partitioner: Placing | Exact,
    n_workers: int | None,
    *,
    sample: float | None = None,
    split: bool = False,
    beside: tuple[DataFrame, tuple[str, ...]] | None = None,
) -> RoutingTable | Sourced | None:
    """As `placed`, but None where it is best left to Spark.

    That is so if nobody asks for workers or a partitioner, and there is so little data that Spark would have one task
    do it all, or hashing spreads it well.
    """
    is_free, known = partitioner == "auto" and n_workers is None, None
    if is_free:
        fields_of(df, keys)
        known = [reads(one) for one in (df, *([beside[0]] if beside else []))]
        if tiny(known):
            return None
    by, histogram = _planned(df, keys, partitioner, n_workers, sample, split, beside, known)
    is_mild = is_free and histogram is not None and hash_straggler(histogram, by.n_workers) <= MILD
    return None if is_mild else by


def tiny(known: Sequence[Reads]) -> bool:
    """Whether so little is read that Spark would have one task do it all."""
    return sum(one.bytes for one in known) < TINY


_WHOLE = 'take "auto", "level", "kip" or another that keeps keys whole'
_CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)


def checksums(df: DataFrame) -> None:
    """Refuse to split keys where a retried task that numbers its rows otherwise would go unnoticed."""
    off = [name for name in _CHECKSUMS if df.sparkSession.conf.get(name, "true") == "false"]
    require(not off, f"splitting keys needs {' and '.join(off)}: without, a retried task may lose or double rows")


def chosen(
    partitioner: str | Partitioner[Any, Any], n_workers: int, split: bool, costs: tuple[float, float, float]
) -> Partitioner[Any, Any]:
    """A partitioner as given, or by name; one that splits keys is refused where each is needed whole.

    costs: what "auto" goes by.
    """
    if isinstance(partitioner, str):
        params: dict[str, Any] = {"split": split} if partitioner in ("auto", "level") else {}
        partitioner = named(partitioner)(n_workers, **params | ({"costs": costs} if partitioner == "auto" else {}))
    require(split or not partitioner.splits_keys, f"{partitioner.name} splits keys, but each is needed whole: {_WHOLE}")
    return partitioner


def parallelism(df: DataFrame) -> int:
    """The number of workers of a session: its shuffle partitions."""
    return int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)


def repartition(
    df: DataFrame,
    *keys: str,
    n_workers: int | None = None,
    partitioner: Placing | Exact = "auto",
    sample: float | None = None,
    into: str | None = None,
) -> DataFrame:
    """The same rows in n_workers partitions, each key whole in one of them, and all about the same size.

    n_workers: by default the session's shuffle partitions; then less than 1 MiB is left to Spark, which merges them.
    partitioner: a name, an instance, a RoutingTable or an Exact; by default what costs least.
    sample: the share of rows to look at first, to plan by; by default all of little data, a small portion of much.
    into: the name of a column for the number of the partition; by default there is none.
    """
    require(into is None or into not in df.columns, f"there is a column {into!r} already")
    if into is not None:
        return routed(df, keys, placed(df, keys, partitioner, n_workers, sample=sample), into)
    by = needed(df, keys, partitioner, n_workers, sample=sample)
    if by is None:
        return df.repartition(*map(column, keys))
    if isinstance(by, RoutingTable):
        # The expression itself, not a column of it: rows stay as narrow as they are.
        return df.repartitionById(by.n_workers, worker(by, hashing(df, keys)))
    (name,) = unused(df, WORKER)
    return routed(df, keys, by, name).drop(name)


def routed(df: DataFrame, keys: tuple[str, ...], by: RoutingTable | Sourced, into: str) -> DataFrame:
    """The rows on their workers, with the number of the worker in a new column.

    After this, grouping, joining or windowing on that column and the key sends no row anywhere again.
    """
    if isinstance(by, Sourced):
        return exact.routed(df, keys, by, into)
    key = hashing(df, keys)
    if by.splits_keys:
        # A column: in an expression, every mention of it would count on its own the rows that get as far as there.
        (ordinal,) = unused(df, "ordinal")
        rows = df.select("*", F.monotonically_increasing_id().alias(ordinal))
        rows = rows.select("*", worker(by, key, quoted(ordinal)).alias(into)).drop(ordinal)
    else:
        rows = df.select("*", worker(by, key).alias(into))
    return rows.repartitionById(by.n_workers, column(into))


def over(
    df: DataFrame,
    *keys: str,
    order_by: str | Column | list[str | Column] | None = None,
    n_workers: int | None = None,
    partitioner: Placing | Exact = "auto",
    sample: float | None = None,
    **columns: Column,
) -> DataFrame:
    """Window functions over each key, whole, on balanced workers; the functions become columns by their names.

    order_by: the order of rows of a key, as in Spark's Window.orderBy.
    n_workers, partitioner, sample: as in `repartition`.
    """
    require(bool(columns), "over needs at least 1 window function, such as rn=F.row_number()")
    by, (name,) = needed(df, keys, partitioner, n_workers, sample=sample), unused(df, WORKER)
    rows = df if by is None else routed(df, keys, by, name)
    window = Window.partitionBy(*map(column, keys if by is None else (name, *keys)))
    if order_by is not None:
        window = window.orderBy(*(order_by if isinstance(order_by, list) else [order_by]))
    return rows.select("*", *(function.over(window).alias(into) for into, function in columns.items())).drop(name)
