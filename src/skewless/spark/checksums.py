"""Refuses to split keys where Spark would not notice a retried task that routes its rows differently."""

from __future__ import annotations

from pyspark.sql import DataFrame

from skewless.arguments import require
from skewless.spark.settings import is_on

_CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
_SORT_SHUFFLE = "org.apache.spark.shuffle.sort.SortShuffleManager"  # Spark also takes two short names, in any case


def check_splitting(df: DataFrame, what: str = "splitting keys") -> None:
    """Raises a ValueError unless Spark notices a retried task that routes its rows differently.

    what: the feature that needs this, as the subject of the message.
    """
    problem = splitting_problem(df, what)
    require(not problem, problem)


def splitting_problem(df: DataFrame, what: str = "splitting keys") -> str:
    """Returns why Spark would not notice a retried task that routes its rows differently; empty if it would."""
    manager = str(df.sparkSession.conf.get("spark.shuffle.manager", "sort"))
    if manager.lower() not in ("sort", "tungsten-sort") and manager != _SORT_SHUFFLE:
        return (
            f"{what} needs Spark's own shuffle, but spark.shuffle.manager is {manager}, which has no checksums: "
            "a retried task may lose or double rows"
        )
    off = [name for name in _CHECKSUMS if not is_on(df.sparkSession, name)]
    return f"{what} needs {' and '.join(off)} set to true: otherwise a retried task may lose or double rows" * bool(off)
