"""Balanced verbs for Spark: `import skewless.spark as sl`. The only package that imports pyspark."""

from __future__ import annotations

try:
    import pyspark
except ModuleNotFoundError:
    raise ModuleNotFoundError("skewless.spark needs pyspark 4.1 or newer: pip install 'skewless[spark]'") from None
from skewless.spark.settings import spark_version

if spark_version() < (4, 1):
    raise ImportError(
        f"skewless.spark needs pyspark 4.1 or newer, not {pyspark.__version__}, which has no repartitionById"
    )

from skewless.ingest.sender import send
from skewless.spark.exact import Exact
from skewless.spark.profile import Profile, Watched, profile, watch
from skewless.spark.receive.receive import receive
from skewless.spark.state.read import read_state
from skewless.spark.stream import Stream, stream
from skewless.spark.streaming.query import Query
from skewless.spark.verbs.aggregate import (
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
from skewless.spark.verbs.explain import Explanation, explain
from skewless.spark.verbs.group import Cogrouped, Grouped, group_by
from skewless.spark.verbs.join import join
from skewless.spark.verbs.over import over
from skewless.spark.verbs.repartition import repartition

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
