"""The native expression sends every row where the table says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import RoutingTable, streams
from skewless.kernels.position import key_positions
from skewless.spark.keys import hashed
from skewless.spark.plans import explained
from skewless.spark.route import number_sql, packed, perfect, position_sql, routed, splitting_sql, worker
from tests.spark.frames import frame, skewed

# One group, so that all of these tests share a session: Spark takes long to start.
pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("hot", [0, 1, 30])
def test_the_native_expression_is_the_table(spark: SparkSession, hot: int, split: bool) -> None:
    df = skewed(spark).select("k", F.monotonically_increasing_id().alias("ordinal"))
    keys = frame(df.select(hashed(df, ["k"])).distinct()).iloc[:, 0].to_numpy().view(np.uint64)
    parts = 3 - np.arange(hot) % 3 if split else np.ones(hot, np.int64)  # every third key stays whole
    starts = np.append(0, np.cumsum(parts))
    workers = (np.arange(starts[-1]) % 5).astype(np.int32)
    weights = 1.0 + (np.arange(starts[-1]) % 4).astype(np.float64)
    table = RoutingTable.hashed(5).with_hot_keys(np.sort(keys)[:hot], starts, workers, weights)
    assert table.splits_keys == (split and hot > 0)
    hashes = df.select(hashed(df, ["k"]).alias("h"), "ordinal").withColumn("number", F.expr(number_sql(table, "h")))
    by_table = F.expr(splitting_sql(table, "number", "ordinal")) if table.splits_keys else worker(table, "h")
    data = frame(hashes.select("h", "ordinal", by_table))
    expected = table.route(data["h"].to_numpy().view(np.uint64), data["ordinal"].to_numpy().astype(np.uint64))
    assert data.iloc[:, 2].tolist() == expected.tolist()


def test_rows_of_split_keys_go_where_the_table_says(spark: SparkSession) -> None:
    """By their ordinals, which an expression may use only once: at a second place, Spark would count rows again."""
    df = skewed(spark, exponent=2.0).withColumn("ordinal", F.col("v")).cache()
    numbered = frame(df.select("v", hashed(df, ["k"]).alias("h"), F.monotonically_increasing_id().alias("id")))
    keys = np.unique(numbered["h"].to_numpy().view(np.uint64))
    weights = np.tile([1.0, 2.0, 5.0], keys.size)
    workers = np.tile(np.array([0, 1, 2], np.int32), keys.size)
    table = RoutingTable.hashed(4).with_hot_keys(keys, 3 * np.arange(keys.size + 1), workers, weights)
    expected = table.route(numbered["h"].to_numpy().view(np.uint64), numbered["id"].to_numpy().astype(np.uint64))
    found = routed(df, ("k",), table, "w")
    assert found.columns == [*df.columns, "w"]
    placed = frame(found.select("v", "w", F.spark_partition_id().alias("p")))
    assert (placed["w"] == placed["p"]).all()
    assert dict(zip(placed["v"], placed["w"], strict=True)) == dict(zip(numbered["v"], expected, strict=True))
    df.unpersist()


@pytest.mark.parametrize("n", [0, 1, 2, 50, 3000])
def test_only_hot_keys_are_found_in_slots(spark: SparkSession, n: int) -> None:
    """Whatever is looked for: other keys, 0, all ones, and keys that differ from a hot one in a bit, or by its slot."""
    keys = np.sort(streams.as_keys(np.arange(n)))
    values = np.arange(n) % 7
    slots = perfect(keys, values, 7)
    alike = [keys[:20] ^ np.uint64(1 << bit) for bit in range(64)]
    corners = np.array([0, 2**64 - 1, 2**64 - slots.entries.size], np.uint64)
    others = np.concatenate((streams.as_keys(np.arange(n, n + 20_000)), *alike, corners))
    for probes, there in ((keys, True), (np.setdiff1d(others, keys), False)):
        rows = spark.createDataFrame(pd.DataFrame({"h": probes.view(np.int64)}), "h long").cache()
        data = frame(rows.select("h", F.expr(slots.lookup("h")).alias("found")))
        assert (data["found"] >= 14).all() if not there else data["found"].tolist() == values.tolist()
        rows.unpersist()


def test_keys_that_are_no_hashes_are_refused() -> None:
    with pytest.raises(ValueError, match="are not hashes"):
        perfect(np.uint64(1) << np.arange(64, dtype=np.uint64), np.zeros(64, np.int64), 1)


@pytest.mark.parametrize("largest", [0, 15, 16, 255, 256, 65_535, 65_536, 2**31 - 1])
def test_packed_numbers_are_unpacked_as_they_were(spark: SparkSession, largest: int) -> None:
    values = np.append(streams.as_keys(np.arange(36)) % np.uint64(largest + 1), largest).astype(np.int64)
    found = frame(spark.range(values.size).select("id", F.expr(packed(values, "id")))).sort_values("id")
    assert found.iloc[:, 1].tolist() == values.tolist()


def test_positions_are_those_of_the_store(spark: SparkSession) -> None:
    """Of any key, also one whose halves are as large as can be: Spark would refuse what overflows."""
    corners = np.array([0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 2**32, 2**64 - 1], np.uint64)
    keys = np.concatenate((corners, streams.as_keys(np.arange(1000))))
    rows = spark.createDataFrame(pd.DataFrame({"h": keys.view(np.int64)}), "h long")
    data = frame(
        rows.select("h", F.expr(position_sql("h")).alias("position"), worker(RoutingTable.hashed(1000), "h").alias("w"))
    )
    found = data["h"].to_numpy().view(np.uint64)
    assert np.sort(found).tolist() == np.sort(keys).tolist()
    assert data["position"].to_numpy().view(np.uint64).tolist() == key_positions(found).tolist()
    assert data["w"].tolist() == RoutingTable.hashed(1000).route(found).tolist()


def test_a_table_with_hosts_of_its_own_routes_natively(spark: SparkSession) -> None:
    df = skewed(spark).select(hashed(skewed(spark), ["k"]).alias("h"))
    plain = RoutingTable.hashed(300)
    table = replace(plain, hosts=plain.hosts[::-1].copy())
    hot = table.with_hot_keys(streams.as_keys(np.array(["key 1"])), np.arange(2), np.array([299], np.int32), np.ones(1))
    for case in (plain, table, hot):
        data = frame(df.select("h", worker(case, "h")))
        assert data.iloc[:, 1].tolist() == case.route(data["h"].to_numpy().view(np.uint64)).tolist()


def test_many_hot_keys_are_routed_by_and_not_printed(spark: SparkSession) -> None:
    """Some of them are on the workers of their hosts."""
    df = spark.range(6000).withColumn("k", (F.col("id") % 3000).cast("string"))
    keys = np.sort(streams.as_keys(np.arange(2000).astype(str)))
    workers = (np.arange(keys.size) % 8).astype(np.int32)
    table = RoutingTable.hashed(8).with_hot_keys(keys, np.arange(keys.size + 1), workers, np.ones(keys.size))
    assert 0 < (table.hosts[table.host_of(keys)] == workers).sum() < keys.size
    found = sl.repartition(df, "k", partitioner=table)
    data = frame(found.select(hashed(df, ["k"]).alias("h"), F.spark_partition_id().alias("p")))
    assert data["p"].tolist() == table.route(data["h"].to_numpy().view(np.uint64)).tolist()
    plan = explained(found)
    assert "xxhash64" in plan
    assert len(plan) < 2000
