"""Rows where a routing table says, and what Spark does with them there: repartition, and window functions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
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
from skewless.spark.keys import fields_of, hashing, quoted, unused
from skewless.spark.parallelism import parallelism
from skewless.spark.profile import Reads, hash_straggler, profiles, reads
from skewless.spark.route import bound_for, numbered, sharing, worker
from skewless.table import RoutingTable

Placing: TypeAlias = str | Partitioner[Any, Any] | RoutingTable
BATCH_COSTS = (1.0, 1.0, 0.0)  # before a batch nothing is anywhere: moves are free
_log = logging.getLogger("skewless")
TINY = 2**20  # bytes: as much as AQE gives a task at least
SMALL = 2**26  # bytes: as much as Spark advises to give a task; it is done soon, if it is native work
MILD = 1.25  # times the mean that the longest worker takes: to balance less than that costs more than it brings
LITTLE = "Spark is done with so little data soon; if its rows are much work, say n_workers"
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
    native: bool = False,
    always: bool = False,
) -> RoutingTable | Sourced | None:
    """What to route by: a table as given, or planned from a profile of the keys; or the partitioner itself.

    None where it is best left to Spark: if nobody asks for workers or a partitioner, and there is little data, or
    hashing spreads it well.

    sample: the share of rows to plan by, as `profile` takes it.
    split: keys may be split; if not, a partitioner or table that splits them is refused.
    beside: other rows, and their keys, that are to be routed by the same.
    native: as `little` takes it.
    always: leave nothing to Spark.
    """
    fields_of(df, keys)
    if isinstance(partitioner, RoutingTable):
        workers_for(df, partitioner, n_workers)
        require(split or not partitioner.splits_keys, "this table splits keys, but each is needed whole on one worker")
        return _checked(df, partitioner)
    frames = [(df, keys)] if beside is None else [(df, keys), beside]
    wanted = partitioner.partitioner if isinstance(partitioner, Exact) else partitioner
    known = [reads(one) for one, _ in frames] if isinstance(wanted, str) and n_workers is None else None
    may_leave = partitioner == "auto" and known is not None and not always
    if may_leave and little(known or (), native):
        return None
    workers = workers_for(df, wanted, n_workers, known or ())
    p = chosen(wanted, workers, split, BATCH_COSTS)
    if isinstance(partitioner, Exact):
        alone = not split and not exact.agrees(p)
        meet = not alone or beside is None
        require(meet, f"{p.name} places keys in the order of its rows: those of two sides would not meet")
        checksums(df)
        return Sourced(p, exact.learned(p, *frames), alone)
    found = profiles(frames, sample, n_workers=workers, known=known)
    histogram = found[0].histogram if beside is None else found[0].histogram + found[1].histogram
    if may_leave and mild(histogram, workers):
        return None
    table = table_for(p, histogram, RoutingTable.hashed(workers))
    _log.info("%s planned %d hot keys for %d workers: %s", p.name, table.keys.size, workers, found[0].cost())
    return _checked(df, table)


def mild(histogram: Histogram, n_workers: int) -> bool:
    """Whether hashing spreads keys well enough."""
    return hash_straggler(histogram, n_workers) <= MILD


def little(known: Sequence[Reads], native: bool) -> bool:
    """Whether so little is read that to measure it brings nothing.

    native: it is Spark's own work that is done with the rows. Python functions may take any time for a row: of these,
        we only leave what Spark would have one task do.
    """
    return sum(one.bytes for one in known) < (SMALL if native else TINY)


_WHOLE = 'take "auto", "level", "kip" or another that keeps keys whole'
_CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)


def checksums(df: DataFrame) -> None:
    """Refuse to split keys where a retried task that numbers its rows otherwise would go unnoticed."""
    off = [name for name in _CHECKSUMS if df.sparkSession.conf.get(name, "true") == "false"]
    require(not off, f"splitting keys needs {' and '.join(off)}: without, a retried task may lose or double rows")


def _checked(df: DataFrame, table: RoutingTable) -> RoutingTable:
    if table.splits_keys:
        checksums(df)
    return table


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


def workers_for(df: DataFrame, by: Placing, n_workers: int | None, known: Sequence[Reads] = ()) -> int:
    """The number of workers: as many as a table or partitioner is for, as many as are asked for, or as many as the
    session has for what is read.
    """
    if not isinstance(by, str):
        name = "the table" if isinstance(by, RoutingTable) else by.name
        require(n_workers in (None, by.n_workers), f"{name} is for {by.n_workers} workers, not for {n_workers}")
        return by.n_workers
    if n_workers is not None:
        return whole("n_workers", n_workers, 1)
    return parallelism(df.sparkSession, sum(inf if one.grows else one.bytes for one in known))


def repartition(
    df: DataFrame,
    *keys: str,
    n_workers: int | None = None,
    partitioner: Placing | Exact = "auto",
    sample: float | None = None,
    into: str | None = None,
) -> DataFrame:
    """The same rows in n_workers partitions, each key whole in one of them, and all about the same size.

    n_workers: by default as many as Spark runs tasks at a time, or more for much data; then less than 64 MiB is left to
        Spark: say how many if each row is much work.
    partitioner: a name, an instance, a RoutingTable or an Exact; by default what costs least.
    sample: the share of rows to look at first, to plan by; by default all of little data, a small portion of much.
    into: the name of a column for the number of the partition; by default there is none.
    """
    require(into is None or into not in df.columns, f"there is a column {into!r} already")
    by = placed(df, keys, partitioner, n_workers, sample=sample, native=True, always=into is not None)
    if by is None:
        return df.repartition(*map(quoted, keys))
    if into is not None:
        return routed(df, keys, by, into)
    if isinstance(by, RoutingTable):
        # The expression itself, not a column of it: rows stay as narrow as they are.
        return df.repartitionById(by.n_workers, F.expr(bound_for(by, hashing(df, keys))))
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
        ordinal, number = unused(df, "ordinal", "number", besides=[into])
        known = F.expr(numbered(by, key)).alias(number)
        rows = df.select("*", F.monotonically_increasing_id().alias(ordinal), known)
        share = F.expr(sharing(by, quoted(number), quoted(ordinal)))
        rows = rows.select("*", share.alias(into)).drop(ordinal, number)
    else:
        rows = df.select("*", worker(by, key).alias(into))
    return rows.repartitionById(by.n_workers, quoted(into))


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

    As in Spark's withColumns, a column that is there already is replaced.

    order_by: the order of rows of a key, as in Spark's Window.orderBy.
    n_workers, partitioner, sample: as in `repartition`.
    """
    require(bool(columns), "over needs at least 1 window function, such as rn=F.row_number()")
    by = placed(df, keys, partitioner, n_workers, sample=sample, native=True)
    (name,) = unused(df, WORKER, besides=columns)
    window = Window.partitionBy(*map(quoted, keys if by is None else (name, *keys)))
    if order_by is not None:
        window = window.orderBy(*(order_by if isinstance(order_by, list) else [order_by]))
    made = {into: function.over(window) for into, function in columns.items()}
    return df.withColumns(made) if by is None else routed(df, keys, by, name).withColumns(made).drop(name)
