"""Balanced verbs for Spark: `import skewless.spark as sl`. The only package that imports pyspark."""

from __future__ import annotations

try:
    import pyspark
except ModuleNotFoundError:
    raise ModuleNotFoundError("skewless.spark needs pyspark 4.1 or newer: pip install 'skewless[spark]'") from None
if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 1):
    raise ImportError(
        f"skewless.spark needs pyspark 4.1 or newer, not {pyspark.__version__}: it has no repartitionById"
    )

from skewless.sender import send
from skewless.spark.aggregate import (
    Aggregate,
    ArrowAggregate,
    approx_count_distinct,
    approx_quantile,
    approx_top_k,
    collect_list,
    count,
    max,
    mean,
    min,
    sum,
    variance,
)
from skewless.spark.batch import over, repartition
from skewless.spark.exact import Exact
from skewless.spark.explain import Explanation, explain
from skewless.spark.group import Cogrouped, Grouped, group_by
from skewless.spark.join import join
from skewless.spark.profile import Profile, Watched, profile, watch
from skewless.spark.query import Query
from skewless.spark.receiver import receive
from skewless.spark.state import read_state
from skewless.spark.stream import Stream, stream

__all__ = [
    "Aggregate",
    "ArrowAggregate",
    "Cogrouped",
    "Exact",
    "Explanation",
    "Grouped",
    "Profile",
    "Query",
    "Stream",
    "Watched",
    "approx_count_distinct",
    "approx_quantile",
    "approx_top_k",
    "collect_list",
    "count",
    "explain",
    "group_by",
    "join",
    "max",
    "mean",
    "min",
    "over",
    "profile",
    "read_state",
    "receive",
    "repartition",
    "send",
    "stream",
    "sum",
    "variance",
    "watch",
]
