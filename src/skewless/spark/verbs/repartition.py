"""Repartitions rows so that each key is whole in one partition and all partitions are about the same size."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from skewless.arguments import require
from skewless.spark.decision import decide
from skewless.spark.exact import Exact
from skewless.spark.keys import Key, hashing, keyed, unused
from skewless.spark.request import PartitionerLike, Request
from skewless.spark.route import WORKER, partition_sql, routed
from skewless.table import RoutingTable


def repartition(
    df: DataFrame,
    *keys: Key,
    n_workers: int | None = None,
    partitioner: PartitionerLike | Exact = "auto",
    sample: float | None = None,
    into: str | None = None,
) -> DataFrame:
    """Returns the same rows in n_workers partitions of about the same size, each key whole in one of them.

    df: the rows.
    keys: what PySpark's groupBy takes: names of columns, nested fields, Columns, or lists of these.
    n_workers: the number of partitions; by default as many as Spark runs tasks at a time, or more for much data.
        Without a number, less than 64 MiB is left to Spark: give one if each row is much work.
    partitioner: a name, an instance, a RoutingTable or an Exact; by default what costs least.
    sample: the share of rows to plan by; by default all of little data, a small portion of much.
    into: the name of a new column for the number of the partition; by default there is none.

    >>> sl.repartition(df, "user", n_workers=64)                                                 # doctest: +SKIP
    >>> sl.repartition(df, "country", "city", into="worker")                                     # doctest: +SKIP
    """
    taken = into is not None and into.lower() in map(str.lower, df.columns)
    require(not taken, f"into is the name of a new column, but there is a column {into!r} already: take another name")
    rows = keyed(df, keys)
    routing = decide(Request("repartition", (rows,), partitioner, n_workers, sample, numbered=into is not None)).by_key
    if routing is None:
        return df.repartition(*rows.by)
    if into is None and isinstance(routing, RoutingTable):
        # By an expression, so that rows need no further column.
        partitioned = rows.df.repartitionById(
            routing.n_workers, F.expr(partition_sql(routing, hashing(rows.df, rows.names)))
        )
        return partitioned.drop(*rows.added)
    (name,) = unused(rows.df, WORKER) if into is None else (into,)
    partitioned = routed(rows.df, rows.names, routing, name).drop(*rows.added)
    return partitioned.drop(name) if into is None else partitioned
