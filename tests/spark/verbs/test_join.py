"""Joins on real Spark, classic and over Connect: what comes out is what plain Spark gives, and hot keys are spread."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import RoutingTable
from skewless.partitioners.level import Level
from skewless.spark.keys import hashed
from skewless.spark.plans import explained
from tests.spark.changing import setting
from tests.spark.frames import frame, rows, skewed

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]
HOW = ["inner", "left", "right", "full", "semi", "anti"]


@pytest.fixture
def unbroadcast(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    yield
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def side(spark: SparkSession, hot: dict[str | None, int], cold: int, name: str, seed: int) -> DataFrame:
    """Returns rows with hot keys, by their numbers of rows, and cold keys; both sides have a column v."""
    keys: list[str | None] = [key for key, n in hot.items() for _ in range(n)]
    keys += [f"cold {key}" for key in np.random.default_rng(seed).integers(0, 40, cold).tolist()]
    data = pd.DataFrame({"v": np.arange(len(keys)), "k": keys, "j": np.arange(len(keys)) % 2, name: 1})
    return spark.createDataFrame(data, f"v long, k string, j long, {name} int").repartition(3)


HOT: dict[str, tuple[dict[str | None, int], dict[str | None, int]]] = {
    "left": ({"a": 400, "only left": 300, None: 200}, {"a": 3, "b": 2, None: 5}),
    "right": ({"a": 3, "b": 2, None: 5}, {"a": 400, "only right": 300, None: 200}),
    "both": ({"a": 60, "b": 50, "only left": 900, None: 40}, {"a": 50, "b": 60, "only right": 900, None: 40}),
    "few": ({"a": 9, "b": 8, "only left": 9}, {"a": 8, "b": 9, "only right": 9}),  # too few for every cell of a grid
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("hot", HOT)
def test_joins_are_those_of_spark(spark: SparkSession, unbroadcast: None, hot: str, how: str) -> None:
    """Keys of two columns that only one side has, hot ones too; NULLs on both; names of our own that users have."""
    left, right = (
        side(spark, keys, 5 if hot == "few" else 80, name, seed)
        for seed, (keys, name) in enumerate(zip(HOT[hot], ("worker", "left_matches"), strict=True))
    )
    ours, plain = sl.join(left, right, ["k", "j"], how, n_workers=6), left.join(right, ["k", "j"], how)
    assert ours.columns == plain.columns
    assert rows(ours) == rows(plain)


@pytest.mark.parametrize("how", ["left", "full", "anti"])
def test_joins_with_nothing_and_with_itself(spark: SparkSession, unbroadcast: None, how: str) -> None:
    df = side(spark, {"a": 50, None: 9}, 20, "w", 0).withColumnRenamed("k", "a.k")
    for left, right in ((df.limit(0), df), (df, df.limit(0)), (df, df)):
        assert rows(sl.join(left, right, ["a.k"], how, n_workers=3)) == rows(left.join(right, ["a.k"], how))


@pytest.mark.parametrize("how", ["left", "full", "anti"])
def test_nulls_are_spread_where_no_key_is_hot(spark: SparkSession, unbroadcast: None, how: str) -> None:
    keys = [f"key {n}" for n in range(400)]
    data = pd.DataFrame({"k": [*keys, *[None] * 1200], "v": np.arange(1600)})
    left = spark.createDataFrame(data, "k string, v long").repartition(3)
    right = spark.createDataFrame(pd.DataFrame({"k": [*keys[200:], "other"], "w": 1}), "k string, w int")
    ours, plain = sl.join(left, right, "k", how, n_workers=4), left.join(right, "k", how)
    assert rows(ours) == rows(plain)
    assert "shufflepartitionidpassthrough" in explained(ours)


def twin(key: tuple[str, int], other: str) -> tuple[str, int]:
    """Returns another key with the same hash: undoes the last steps of XXH64 to find its number."""
    whole, primes = 2**64, (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x27D4EB2F165667C5)

    def turned(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) % whole

    def begun(text: str) -> int:
        return (xxhash.xxh64_intdigest(text.encode(), 42) + primes[2] + 8) % whole

    middle = begun(key[0]) ^ turned(key[1] * primes[1] % whole, 31) * primes[0] % whole
    found = turned((middle ^ begun(other)) * pow(primes[0], -1, whole) % whole, 33) * pow(primes[1], -1, whole) % whole
    return other, found - whole if found >= whole // 2 else found


@pytest.mark.parametrize("how", ["right", "full", "semi"])
def test_keys_with_the_hash_of_a_hot_one_are_other_keys(spark: SparkSession, unbroadcast: None, how: str) -> None:
    hot = ("hot", 5)
    both, lefts, rights = (twin(hot, name) for name in ("both", "left", "right"))
    left, right = (
        spark.createDataFrame([(*key, n) for key in keys for n in range(times)], f"k string, j long, {name} long")
        for keys, times, name in (((hot, both, lefts), 40, "v"), ((hot, both, rights), 30, "w"))
    )
    assert left.union(right).select(hashed(left, ["k", "j"])).distinct().count() == 1
    assert rows(sl.join(left, right, ["k", "j"], how, n_workers=4)) == rows(left.join(right, ["k", "j"], how))


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_a_hot_key_is_joined_by_several_workers(spark: SparkSession, unbroadcast: None, how: str) -> None:
    """Each side has a hot key of its own, and they share one."""
    left = side(spark, {"a": 60, "b": 3000}, 50, "w", 0).select("k", "v")
    right = side(spark, {"a": 100, "b": 1, "c": 3000}, 50, "w", 1).select("k", F.col("v").alias("u"))
    loads = frame(sl.join(left, right, "k", how, n_workers=8).groupBy(F.spark_partition_id()).count())["count"]
    assert len(loads) == 8
    assert loads.max() < 1.5 * loads.mean()


@pytest.mark.parametrize("how", ["semi", "anti"])
def test_one_row_of_a_hot_key_is_enough_to_know_it(spark: SparkSession, unbroadcast: None, how: str) -> None:
    left = side(spark, {"a": 30}, 200, "w", 0)
    right = side(spark, {"a": 3000, "b": 9}, 200, "w", 1)
    found = sl.join(left, right, "k", how, n_workers=4)
    assert rows(found) == rows(left.join(right, "k", how))
    assert "Aggregate" in explained(found)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("hot", ["right", "both"])
def test_joins_by_any_partitioner_are_those_of_spark(
    spark: SparkSession, unbroadcast: None, hot: str, how: str
) -> None:
    """Whole keys and split ones, planned, distilled and given."""
    left, right = (
        side(spark, keys, 30, name, seed) for seed, (keys, name) in enumerate(zip(HOT[hot], "wu", strict=True))
    )
    plain = rows(left.join(right, "k", how))
    hashes = sl.profile(left.unionByName(right, True), "k").histogram.keys
    shared = RoutingTable.distill(hashes.repeat(60), np.arange(60 * hashes.size, dtype=np.int32) % 3, 5)
    assert shared.splits_keys
    for partitioner in ("kip", "pkg", Level(4), RoutingTable.hashed(3), shared):
        ours = sl.join(left, right, "k", how, partitioner=partitioner, n_workers=4 if partitioner == "pkg" else None)
        assert "shufflepartitionidpassthrough" in explained(ours)
        assert rows(ours) == plain


def test_a_join_goes_by_the_shares_of_a_table(spark: SparkSession, unbroadcast: None) -> None:
    left = side(spark, {"a": 8000}, 0, "w", 0).select("k", "v")
    right = side(spark, {"a": 1}, 0, "u", 1).select("k", "u")
    key = sl.profile(left, "k").histogram.keys
    shares = np.array([0.5, 0.3, 0.2])
    table = RoutingTable.hashed(4).with_hot_keys(key, np.array([0, 3]), np.array([3, 0, 1], np.int32), shares)
    found = sl.join(left, right, "k", partitioner=table)
    loads = frame(found.select(F.spark_partition_id().alias("p")).groupBy("p").count()).set_index("p")["count"]
    assert loads.sum() == 8000
    for worker, share in zip((3, 0, 1), shares, strict=True):
        assert abs(loads[worker] / 8000 - share) < 0.03  # five deviations


def test_explain_says_what_a_join_does(spark: SparkSession, unbroadcast: None) -> None:
    left, right = side(spark, {"a": 4000, None: 60}, 900, "w", 0), side(spark, {"a": 3}, 900, "u", 1)
    found = sl.explain(left, "k", operator="join", other=right, how="left", n_workers=8)
    assert (found.chosen, found.split) == ("grids", 1)
    assert found.after < 1.3 < 2 < found.before
    assert found.hot[0] == (("a",), 4003)
    assert "balance by grids, 1 key split" in str(found)
    little = sl.explain(left, "k", operator="join", other=right)
    assert little.chosen == "hash"
    assert "so little data" in little.reason
    even = spark.range(4000).select((F.col("id") % 1000).alias("k"))
    assert "no key is hot enough" in sl.explain(even, "k", operator="join", other=even, n_workers=4).reason
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
    assert "broadcasts one side" in sl.explain(left, "k", operator="join", other=right, n_workers=8).reason


def test_joins_refuse_what_they_cannot_do(spark: SparkSession) -> None:
    df = skewed(spark)
    with pytest.raises(ValueError, match="how is one of inner, left, right, full, semi, anti, not 'cross'"):
        sl.join(df, df, "k", "cross")
    with pytest.raises(ValueError, match="the same types"):
        sl.join(df, df.select(F.col("v").alias("k")), "k")
    with pytest.raises(ValueError, match="a join takes no Exact"):
        sl.join(df, df, "k", partitioner=sl.Exact("pkg"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the table is for 3 workers, not for 4"):
        sl.join(df, df, "k", partitioner=RoutingTable.hashed(3), n_workers=4)
    with pytest.raises(ValueError, match="join takes two DataFrames: give the right one as `other`"):
        sl.explain(df, "k", operator="join")
    with pytest.raises(ValueError, match="over takes one DataFrame: `other` is for cogroup and join"):
        sl.explain(df, "k", operator="over", other=df)


def test_nulls_that_are_placed_at_random_need_the_shuffle_checksum(spark: SparkSession, unbroadcast: None) -> None:
    df, name = skewed(spark), "spark.sql.shuffle.orderIndependentChecksum.enabled"
    with setting(spark, name, "false"):
        with pytest.raises(ValueError, match="a retried task may lose or double rows"):
            sl.join(df, df, "k", "left", partitioner=RoutingTable.hashed(3))
        ids = spark.range(9).withColumnRenamed("id", "k")  # never NULL
        assert sl.join(ids, ids, "k", partitioner=RoutingTable.hashed(3)).count() == 9
