"""Refuses to split keys where Spark would not notice a retried task that routes its rows differently."""

from __future__ import annotations

from pyspark.sql import DataFrame

from skewless.arguments import require

_CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
_SORT_SHUFFLE = "org.apache.spark.shuffle.sort.SortShuffleManager"  # also by two short names, in any case


def check_splitting(df: DataFrame) -> None:
    """Raises a ValueError unless Spark notices a retried task that routes its rows differently."""
    conf = df.sparkSession.conf
    manager = str(conf.get("spark.shuffle.manager", "sort"))
    require(
        manager.lower() in ("sort", "tungsten-sort") or manager == _SORT_SHUFFLE,
        f"splitting keys needs Spark's own shuffle, but spark.shuffle.manager is {manager}, which has no checksums: "
        'a retried task may lose or double rows. Take a partitioner that keeps keys whole, such as "kip"',
    )
    off = [name for name in _CHECKSUMS if not _is_on(df, name)]
    require(
        not off,
        f"splitting keys needs {' and '.join(off)} set to true: without, a retried task may lose or double rows",
    )


def _is_on(df: DataFrame, name: str) -> bool:
    """Returns whether a setting is true, by Spark's own default if it is not set."""
    try:  # without a default of ours: Spark would return that instead of its own
        return str(df.sparkSession.conf.get(name)).lower() == "true"
    except Exception:  # a version of Spark that does not know it; Classic and Connect raise different classes
        return False
