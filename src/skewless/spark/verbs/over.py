"""Window functions over whole keys, on balanced workers."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec

from skewless.arguments import require
from skewless.spark.decision import decide
from skewless.spark.exact import Exact
from skewless.spark.keys import Key, keyed, quoted, unused
from skewless.spark.request import PartitionerLike, Request
from skewless.spark.route import WORKER, routed


def over(
    df: DataFrame,
    *keys: Key,
    order_by: str | Column | list[str | Column] | None = None,
    n_workers: int | None = None,
    partitioner: PartitionerLike | Exact = "auto",
    sample: float | None = None,
    **columns: Column,
) -> DataFrame:
    """Adds columns of window functions over all rows of each key, on balanced workers.

    As in Spark's withColumns, a column of the same name is replaced.

    df: the rows.
    keys: what PySpark's groupBy takes: names of columns, nested fields, Columns, or lists of these.
    order_by: the order of a key's rows, as Spark's Window.orderBy takes it.
    n_workers, partitioner, sample: as in `repartition`.
    columns: window functions without a window, by the names of their columns.

    >>> sl.over(df, "user", order_by="ts", rn=F.row_number())                                    # doctest: +SKIP
    """
    require(bool(columns), "over needs at least 1 window function, such as rn=F.row_number()")
    rows = keyed(df, keys)
    routing = decide(Request("over", (rows,), partitioner, n_workers, sample)).by_key
    if routing is None:
        return df.withColumns(_windowed(Window.partitionBy(*rows.by), order_by, columns))
    (name,) = unused(rows.df, WORKER, besides=columns)
    window = Window.partitionBy(*map(quoted, (name, *rows.names)))
    sent = routed(rows.df, rows.names, routing, name)
    return sent.withColumns(_windowed(window, order_by, columns)).drop(name, *rows.added)


def _windowed(
    window: WindowSpec, order_by: str | Column | list[str | Column] | None, columns: dict[str, Column]
) -> dict[str, Column]:
    if order_by is not None:
        window = window.orderBy(*(order_by if isinstance(order_by, list) else [order_by]))
    return {name: function.over(window) for name, function in columns.items()}
