"""`explain` says what a verb would do, and why."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from tests.spark.frames import skewed

# One group, so that all of these tests share a session: Spark takes long to start.
pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]


def test_explain_says_what_and_why(spark: SparkSession) -> None:
    whole = sl.explain(skewed(spark, exponent=0.6), "k", n_workers=8)
    assert whole.chosen == "level"
    assert whole.after < whole.before
    assert whole.split == 0
    assert whole.hot[0][0] == ("key 0",)
    assert "balance by level" in str(whole)
    df = skewed(spark, exponent=1.5)
    parts = sl.explain(df, "k", operator="ArrowAggregate", n_workers=8)
    assert parts.split >= 1
    assert parts.after < 1.05 < parts.before
    assert sl.explain(df, "k", operator="collect_list", n_workers=8).split == parts.split
    beside = sl.explain(df.limit(0), "k", operator="cogroup", other=df, n_workers=8)
    assert beside.hot == parts.hot
    assert beside.before == parts.before
    plain = sl.explain(df, "k", operator="agg", n_workers=8)
    assert plain.chosen == "hash"
    assert "leave it to Spark" in str(plain)
    even = spark.range(20_000).select((F.col("id") % 5000).alias("k"))
    assert sl.explain(even, "k", n_workers=4).chosen == "hash"
