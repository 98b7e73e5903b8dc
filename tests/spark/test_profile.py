"""Profiles count keys and name the hot ones, from all rows or a sample."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless.histogram import Histogram
from skewless.spark.plans import explained, reads
from skewless.spark.profile import ENOUGH
from tests.spark.frames import rows, skewed

# One group, so that all of these tests share a session: Spark takes long to start.
pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]

SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])


def test_profile_counts_and_names_hot_keys(spark: SparkSession) -> None:
    df = skewed(spark)
    p = sl.profile(df, "k")
    counts = {row["k"]: row["count"] for row in df.groupBy("k").count().collect()}
    assert p.rows == 3000
    assert p.nulls == counts[None]
    assert p.distinct == pytest.approx(len(counts), abs=3)
    assert {key[0]: n for key, n in p.hottest(5)} == dict(sorted(counts.items(), key=lambda pair: -pair[1])[:5])
    assert p.straggler(16) > 3
    assert "the longest takes" in p.describe(16)
    sampled = sl.profile(df, "k", sample=0.5)
    assert sampled.rows == pytest.approx(3000, rel=0.15)


def test_a_sample_gives_nearly_the_same_profile(spark: SparkSession) -> None:
    """Zipf 1.0, by the inverse of its cumulated shares: rank = keys ** u is log-uniform."""
    rank = F.floor(F.pow(F.lit(50_000.0), F.rand(3)))
    df = spark.range(0, 2_000_000, 1, 2).select(rank.alias("k"))
    counted, sampled = sl.profile(df, "k"), sl.profile(df, "k", sample=0.01)
    assert sampled.rows == pytest.approx(2_000_000, rel=0.02)
    assert sampled.histogram.rest > 0
    assert sampled.histogram.total == pytest.approx(sampled.rows)
    for n in (4, 16):
        assert sampled.straggler(n) == pytest.approx(counted.straggler(n), rel=0.05)
    assert sampled.hottest(1)[0][0] == counted.hottest(1)[0][0]
    assert re.search(r"about [\d,]+ rows, at least .* rows, 1.00% of all, measured in [\d.]+ s", sampled.describe(16))
    assert "all rows measured in" in counted.describe(16)


def test_verbs_measure_a_portion_of_much_data(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    much = spark.range(10**9).select("id", F.rand())
    for df in (much, much.join(spark.range(1000), "id")):
        assert reads(df).portion(ENOUGH) == pytest.approx(ENOUGH / 1e9, rel=0.1)
    assert reads(skewed(spark)).portion(ENOUGH) == 1
    df = spark.range(0, 100_000, 1, 2).select((F.col("id") % 40).alias("k"), "id")
    module = sys.modules["skewless.spark.profile"]  # the package has a function of that name
    monkeypatch.setattr(module, "ENOUGH", 10_000)
    found = sl.profile(df, "k", sample=None)
    assert found.sample == pytest.approx(0.1, rel=0.01)
    assert "10.00% of all" in sl.explain(df, "k", n_workers=4).profile
    assert "5.00% of all" in sl.explain(df, "k", n_workers=1).profile  # for few workers, fewer rows are enough
    assert rows(sl.repartition(df, "k", n_workers=4).groupBy("k").count()) == rows(df.groupBy("k").count())
    few = df.where(F.col("id") < 5000)  # fewer than seem to be read: a tenth of them would not be enough to plan by
    assert sl.profile(few, "k", sample=None).sample == 1


def test_whether_hashing_is_good_enough_does_not_depend_on_luck(spark: SparkSession) -> None:
    assert Histogram(np.arange(2, dtype=np.uint64), np.full(2, 1000.0)).hash_straggler(2) == 2
    assert Histogram(np.arange(4000, dtype=np.uint64), np.full(4000, 500.0)).hash_straggler(16) < 1.25
    even = spark.range(0, 9_000_000, 1, 2).select((F.col("id") % 4000).alias("k"), "id")
    assert "xxhash64" not in explained(sl.repartition(even, "k"))
    assert "xxhash64" in explained(sl.repartition(even.select((F.col("k") % 8).alias("k"), "id"), "k"))
    assert "hashing spreads these keys well" in str(sl.explain(even, "k"))


def test_files_with_more_rows_than_they_look_like(spark: SparkSession, tmp_path: Path) -> None:
    """Files so small that their rows seem to be few, though they would be too many for the driver."""
    rows = 2 * ENOUGH + 7
    path = str(tmp_path / "alike")
    spark.range(0, rows, 1, 2).selectExpr("if(id % 3 = 0, 'a', 'b') AS k").write.parquet(path)
    df = spark.read.parquet(path)
    assert reads(df).rows < ENOUGH
    found = sl.profile(df, "k")
    assert (found.rows, found.distinct, found.sample) == (rows, 2, 1)
    assert found.hottest() == [(("b",), rows * 2 // 3), (("a",), rows - rows * 2 // 3)]


def test_a_sample_of_files_is_of_all_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    """The limit on rows that come to the driver is one of sampled rows, not of rows that are read for the sample."""
    rows, path = 5 * ENOUGH, str(tmp_path / "sorted")
    spark.range(0, rows, 1, 1).selectExpr(f"id DIV {rows // 10} AS k").write.parquet(path)
    found = sl.profile(spark.read.parquet(path), "k", sample=0.1)
    assert found.rows == pytest.approx(rows, rel=0.02)
    assert found.histogram.counts == pytest.approx(rows / 10, rel=0.05)
    assert found.histogram.keys.size == 10


def test_what_may_have_been_counted_twice_is_described_as_an_estimate() -> None:
    histogram = Histogram(np.array([7], np.uint64), np.array([60.0]), rest=40.0)
    frame: Any = None  # not needed to describe the counts
    exact = sl.Profile(("k",), 1000, 40, 0, histogram, seconds=0.1, sample=1.0, frame=frame)
    assert exact.describe(4).startswith("1,000 rows, about 40 keys")
    assert replace(exact, exact=False).describe(4).startswith("about 1,000 rows, at least 40 keys")


def test_rows_are_profiled_by_a_job_that_reads_them_anyway(spark: SparkSession) -> None:
    df = skewed(spark).withColumn("hash", F.lit(1))
    watched = sl.watch(df, "k")
    assert watched.rows.columns == df.columns
    assert rows(watched.rows) == rows(df)
    seen, plain = watched.profile(), sl.profile(df, "k")
    assert plain.exact
    assert seen.exact == (SPARK >= (4, 3)), "before, Spark also counts rows of failed task attempts"
    assert (seen.rows, seen.distinct, seen.nulls) == (plain.rows, plain.distinct, plain.nulls)
    assert seen.histogram.keys.tolist() == plain.histogram.keys.tolist()
    assert seen.histogram.counts.tolist() == plain.histogram.counts.tolist()
    assert seen.hottest(3) == plain.hottest(3)
    for empty in (df.limit(0), spark.createDataFrame([], df.schema)):
        nothing = sl.watch(empty, "k")
        assert nothing.rows.collect() == []
        assert nothing.profile().rows == 0
        assert nothing.profile().straggler(4) == 1
