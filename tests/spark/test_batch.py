"""Verbs on real Spark, classic and over Connect: what comes out is what plain Spark gives, where it should be."""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from math import inf, isinf
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import RoutingTable, streams
from skewless.histogram import Histogram
from skewless.kernels.place import key_places
from skewless.spark.batch import routed
from skewless.spark.keys import hashed
from skewless.spark.parallelism import parallelism
from skewless.spark.profile import ENOUGH, explained, hash_straggler, reads
from skewless.spark.route import numbered, packed, perfect, placing, sharing, worker

# In one process, whatever the number of those: a Spark takes long to start.
pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("spark")]

NAN = float("nan")
KEYS: dict[str, tuple[str, list[Any]]] = {
    "strings": ("string", ["", "a", "b", None, "ä", "a", "a"]),
    "longs": ("bigint", [0, 1, -1, 2**63 - 1, None, 1, 1]),
    "ints": ("int", [0, 1, -1, 2**31 - 1, None, 1, 1]),
    "doubles": ("double", [0.0, -0.0, NAN, NAN, 1.5, None, -0.0]),
    "decimals": ("decimal(20,2)", [Decimal("1.10"), Decimal("1.1"), None, Decimal("-5"), Decimal("1.10"), Decimal(0)]),
    "dates": ("date", [dt.date(2020, 1, 1), None, dt.date(1969, 12, 31), dt.date(2020, 1, 1)]),
    "times": ("timestamp", [dt.datetime(2020, 1, 1, 5), None, dt.datetime(2020, 1, 1, 5)]),
    "booleans": ("boolean", [True, False, None, True]),
    "binaries": ("binary", [b"", b"x", None, b"x"]),
    "structs": ("struct<a:int,b:string>", [(1, "x"), (1, None), None, (None, None), (1, "x")]),
    "arrays": ("array<double>", [[0.0], [-0.0], [], None, [1.0, NAN], [NAN, 1.0], [1.0, NAN]]),
    "maps": ("map<string,int>", [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {}, None, {"a": 2}]),
}


def canonical(value: Any) -> Any:
    """Values of rows so that equal ones compare equal, NaN too."""
    if isinstance(value, float):
        return "nan" if np.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return sorted((canonical(k), canonical(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return [canonical(each) for each in value]
    return value


def frame(df: DataFrame) -> Any:
    return df.toPandas()


def rows(df: DataFrame) -> list[str]:
    return sorted(repr([canonical(value) for value in row]) for row in df.collect())


def skewed(spark: SparkSession, n: int = 3000, keys: int = 50, exponent: float = 1.5) -> DataFrame:
    """Some keys are hot, one is NULL; `worker` is the user's own column."""
    ranks = streams.zipf(n, keys, exponent).astype(np.int64)
    data = pd.DataFrame({"k": [None if rank == 3 else f"key {rank}" for rank in ranks], "v": np.arange(n)})
    return spark.createDataFrame(data, "k string, v long").withColumn("worker", F.col("v") % 3).repartition(4)


@pytest.mark.parametrize("kind", KEYS)
def test_keys_that_spark_groups_together_have_one_hash(spark: SparkSession, kind: str) -> None:
    ddl, values = KEYS[kind]
    df = spark.createDataFrame([(value,) for value in values], f"k {ddl}")
    hashes = df.groupBy("k").agg(F.collect_set(hashed(df, ["k"])).alias("h")).collect()
    assert all(len(row["h"]) == 1 for row in hashes)


@pytest.mark.parametrize("kind", KEYS)
def test_grouped_functions_see_each_key_of_any_type_whole_and_once(spark: SparkSession, kind: str) -> None:
    ddl, values = KEYS[kind]
    df = spark.createDataFrame([(value, n) for n, value in enumerate(values * 3)], f"k {ddl}, v int").repartition(3)

    def counted(table: pa.Table) -> pa.Table:
        return pa.table({"n": [table.num_rows], "s": [pc.sum(table["v"]).as_py()]})

    plain = df.groupBy("k").applyInArrow(counted, "n long, s long")
    assert rows(sl.group_by(df, "k").applyInArrow(counted, "n long, s long")) == rows(plain)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("hot", [0, 1, 30])
def test_the_native_expression_is_the_table(spark: SparkSession, hot: int, split: bool) -> None:
    df = skewed(spark).select("k", F.monotonically_increasing_id().alias("ordinal"))
    keys = frame(df.select(hashed(df, ["k"])).distinct()).iloc[:, 0].to_numpy().view(np.uint64)
    parts = 3 - np.arange(hot) % 3 if split else np.ones(hot, np.int64)  # every third key stays whole
    starts = np.append(0, np.cumsum(parts))
    workers = (np.arange(starts[-1]) % 5).astype(np.int32)
    weights = 1.0 + (np.arange(starts[-1]) % 4).astype(np.float64)
    table = RoutingTable.hashed(5).placing(np.sort(keys)[:hot], starts, workers, weights)
    assert table.splits_keys == (split and hot > 0)
    known = df.select(hashed(df, ["k"]).alias("h"), "ordinal").withColumn("number", F.expr(numbered(table, "h")))
    place = F.expr(sharing(table, "number", "ordinal")) if table.splits_keys else worker(table, "h")
    data = frame(known.select("h", "ordinal", place))
    expected = table.route(data["h"].to_numpy().view(np.uint64), data["ordinal"].to_numpy().astype(np.uint64))
    assert data.iloc[:, 2].tolist() == expected.tolist()


def test_rows_of_split_keys_go_where_the_table_says(spark: SparkSession) -> None:
    """By their ordinals, which Spark would count anew wherever an expression has them."""
    df = skewed(spark, exponent=2.0).withColumn("ordinal", F.col("v")).cache()
    numbered = frame(df.select("v", hashed(df, ["k"]).alias("h"), F.monotonically_increasing_id().alias("id")))
    keys = np.unique(numbered["h"].to_numpy().view(np.uint64))
    weights = np.tile([1.0, 2.0, 5.0], keys.size)
    places = np.tile(np.array([0, 1, 2], np.int32), keys.size)
    table = RoutingTable.hashed(4).placing(keys, 3 * np.arange(keys.size + 1), places, weights)
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
        data = frame(rows.select("h", F.expr(slots.found("h")).alias("found")))
        assert (data["found"] >= 14).all() if not there else data["found"].tolist() == values.tolist()
        rows.unpersist()


def test_keys_that_are_no_hashes_are_refused() -> None:
    with pytest.raises(ValueError, match="are not hashes"):
        perfect(np.uint64(1) << np.arange(64, dtype=np.uint64), np.zeros(64, np.int64), 1)


@pytest.mark.parametrize("largest", [0, 15, 16, 255, 256, 65_535, 65_536, 2**31 - 1])
def test_packed_numbers_are_what_they_were(spark: SparkSession, largest: int) -> None:
    values = np.append(streams.as_keys(np.arange(36)) % np.uint64(largest + 1), largest).astype(np.int64)
    found = frame(spark.range(values.size).select("id", F.expr(packed(values, "id")))).sort_values("id")
    assert found.iloc[:, 1].tolist() == values.tolist()


def test_places_are_those_of_the_store(spark: SparkSession) -> None:
    """Of any key, also one whose halves are as large as can be: Spark would refuse what overflows."""
    corners = np.array([0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 2**32, 2**64 - 1], np.uint64)
    keys = np.concatenate((corners, streams.as_keys(np.arange(1000))))
    rows = spark.createDataFrame(pd.DataFrame({"h": keys.view(np.int64)}), "h long")
    data = frame(
        rows.select("h", F.expr(placing("h")).alias("place"), worker(RoutingTable.hashed(1000), "h").alias("w"))
    )
    found = data["h"].to_numpy().view(np.uint64)
    assert np.sort(found).tolist() == np.sort(keys).tolist()
    assert data["place"].to_numpy().view(np.uint64).tolist() == key_places(found).tolist()
    assert data["w"].tolist() == RoutingTable.hashed(1000).route(found).tolist()


def test_a_table_with_hosts_of_its_own_routes_natively(spark: SparkSession) -> None:
    df = skewed(spark).select(hashed(skewed(spark), ["k"]).alias("h"))
    plain = RoutingTable.hashed(300)
    table = replace(plain, hosts=plain.hosts[::-1].copy())
    hot = table.placing(streams.as_keys(np.array(["key 1"])), np.arange(2), np.array([299], np.int32), np.ones(1))
    for one in (plain, table, hot):
        data = frame(df.select("h", worker(one, "h")))
        assert data.iloc[:, 1].tolist() == one.route(data["h"].to_numpy().view(np.uint64)).tolist()


def test_many_hot_keys_are_routed_by_and_not_printed(spark: SparkSession) -> None:
    """Some of them are where their hosts are anyhow."""
    df = spark.range(6000).withColumn("k", (F.col("id") % 3000).cast("string"))
    keys = np.sort(streams.as_keys(np.arange(2000).astype(str)))
    places = (np.arange(keys.size) % 8).astype(np.int32)
    table = RoutingTable.hashed(8).placing(keys, np.arange(keys.size + 1), places, np.ones(keys.size))
    assert 0 < (table.hosts[table.host_of(keys)] == places).sum() < keys.size
    found = sl.repartition(df, "k", partitioner=table)
    data = frame(found.select(hashed(df, ["k"]).alias("h"), F.spark_partition_id().alias("p")))
    assert data["p"].tolist() == table.route(data["h"].to_numpy().view(np.uint64)).tolist()
    plan = explained(found)
    assert "xxhash64" in plan
    assert len(plan) < 2000


def test_repartition_keeps_rows_and_keys_and_balances(spark: SparkSession) -> None:
    df = skewed(spark, 20_000, 500, 0.9)
    balanced = sl.repartition(df, "k", n_workers=8)
    assert balanced.columns == df.columns
    assert rows(balanced) == rows(df)
    where = balanced.select("k", F.spark_partition_id().alias("p")).distinct().collect()
    assert len(where) == df.select("k").distinct().count()
    sizes = frame(balanced.groupBy(F.spark_partition_id()).count())["count"]
    assert len(sizes) == 8
    largest = df.groupBy("k").count().agg(F.max("count")).first()
    assert largest is not None
    assert sizes.max() <= 1.05 * max(sizes.mean(), largest[0])


def test_a_given_table_and_a_new_column(spark: SparkSession) -> None:
    df = skewed(spark)
    table = RoutingTable.hashed(3)
    data = sl.repartition(df, "k", partitioner=table, into="w").select("w", F.spark_partition_id()).distinct().collect()
    assert {tuple(row) for row in data} == {(0, 0), (1, 1), (2, 2)}


@pytest.mark.parametrize("takes_key", [False, True])
def test_apply_in_pandas_is_as_in_spark(spark: SparkSession, takes_key: bool) -> None:
    df = skewed(spark)

    def of_rows(some: Any) -> Any:
        return pd.DataFrame({"k": [some["k"].iloc[0]], "s": [some["v"].sum()], "c": [",".join(some.columns)]})

    def of_key(key: tuple[Any, ...], some: Any) -> Any:
        return of_rows(some).assign(k=key[0], c=str(len(key)))

    func, schema = of_key if takes_key else of_rows, "k string, s long, c string"
    assert rows(sl.group_by(df, "k").applyInPandas(func, schema)) == rows(df.groupBy("k").applyInPandas(func, schema))


def test_several_key_columns_with_odd_names(spark: SparkSession) -> None:
    df = skewed(spark).withColumn("a b-c", F.col("v") % 2).withColumnRenamed("k", "Key")

    def counted(table: pa.Table) -> pa.Table:
        return pa.table({"n": [table.num_rows]})

    plain = df.groupBy("Key", F.col("`a b-c`")).applyInArrow(counted, "n long")
    assert rows(sl.group_by(df, "Key", "a b-c").applyInArrow(counted, "n long")) == rows(plain)


def test_names_with_dots_are_columns_not_fields(spark: SparkSession) -> None:
    df = skewed(spark).withColumnRenamed("k", "a.b")
    assert rows(sl.repartition(df, "a.b")) == rows(df)
    assert rows(sl.group_by(df, "a.b").agg(n=sl.count())) == rows(df.groupBy("`a.b`").count())


def hinted() -> dict[str, Callable[..., Any]]:
    """Functions inside another, which need not be imported where they run."""

    def frames(groups: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in groups:
            yield frame.head(1)

    def keyed_frames(key: tuple[Any, ...], groups: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in groups:
            yield frame.assign(k=f"{key[0]} again")

    def batches(groups: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in groups:
            yield batch.slice(0, 1)

    def keyed_batches(key: tuple[Any, ...], groups: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in groups:
            yield batch.set_column(0, "k", pa.array([f"{key[0].as_py()} again"] * batch.num_rows))

    def frame(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        return rows.assign(k=f"{key[0]} again")

    return {function.__name__: function for function in (frames, keyed_frames, batches, keyed_batches, frame)}


@pytest.mark.parametrize("name", hinted())
def test_grouped_functions_get_what_their_type_hints_say(spark: SparkSession, name: str) -> None:
    df, verb = skewed(spark).select("k", "v"), "applyInArrow" if "batches" in name else "applyInPandas"
    ours, plain = (
        getattr(groups, verb)(hinted()[name], df.schema).groupBy("k").count()
        for groups in (sl.group_by(df, "k", n_workers=3), df.groupBy("k"))
    )
    assert rows(ours) == rows(plain)


def test_tasks_of_grouped_functions_do_not_wait_for_their_rows(spark: SparkSession) -> None:
    def told(rows: pd.DataFrame) -> pd.DataFrame:
        import gc

        return pd.DataFrame({"tasks": [getattr(gc, "tasks hastened by skewless", 0)]})

    found = sl.group_by(skewed(spark), "k", n_workers=3).applyInPandas(told, "tasks int").collect()
    assert all(row.tasks > 0 for row in found)


def test_cogroup_meets_equal_keys(spark: SparkSession) -> None:
    left, right = skewed(spark, 1500), skewed(spark, 800, 80, 0.5).select("k", F.col("v").alias("u"))

    def joined(key: tuple[Any, ...], one: Any, other: Any) -> Any:
        return pd.DataFrame({"k": [key[0]], "n": [len(one)], "m": [len(other)], "s": [other["u"].sum()]})

    schema = "k string, n long, m long, s long"
    plain = left.groupBy("k").cogroup(right.groupBy("k")).applyInPandas(joined, schema)
    assert rows(sl.group_by(left, "k").cogroup(sl.group_by(right, "k")).applyInPandas(joined, schema)) == rows(plain)


def test_window_functions(spark: SparkSession) -> None:
    df = skewed(spark)
    plain = df.withColumn("rn", F.row_number().over(Window.partitionBy("k").orderBy("v")))
    assert rows(sl.over(df, "k", order_by="v", rn=F.row_number())) == rows(plain)
    every = Window.partitionBy("k")
    assert rows(sl.over(df, "k", total=F.sum("v"))) == rows(df.withColumn("total", F.sum("v").over(every)))
    own = df.withColumn("v", F.sum("v").over(every)).withColumn("Worker", F.count("k").over(every))
    for n_workers in (None, 4):  # names that are there, and the one that we would take
        found = sl.over(df, "k", v=F.sum("v"), Worker=F.count("k"), n_workers=n_workers)
        assert (found.columns, rows(found)) == (own.columns, rows(own))


def test_aggregates_are_those_of_spark(spark: SparkSession) -> None:
    df = skewed(spark).withColumn("v", F.when(F.col("v") % 5 > 0, F.col("v")))
    ours = sl.group_by(df, "k").agg(
        n=sl.count(), m=sl.count("v"), s=sl.sum("v"), low=sl.min("v"), high=sl.max("v"), mean=sl.mean("v")
    )
    plain = df.groupBy("k").agg(F.count("*"), F.count("v"), F.sum("v"), F.min("v"), F.max("v"), F.avg("v"))
    assert rows(ours) == rows(plain)


def test_growing_aggregates_split_hot_keys_and_merge_them(spark: SparkSession) -> None:
    df = skewed(spark, exponent=2.0)
    ours = sl.group_by(df, "k", n_workers=6).agg(all=sl.collect_list("v"), n=sl.count())
    plain = df.groupBy("k").agg(F.collect_list("v").alias("all"), F.count("*").alias("n"))
    in_order = [each.select("k", F.sort_array("all"), "n") for each in (ours, plain)]
    assert rows(in_order[0]) == rows(in_order[1])


def middle() -> sl.ArrowAggregate:
    """The mean of the squares, by a state of sum and count."""

    def partial(table: pa.Table) -> pa.Table:
        return pa.table({"s": [pc.sum(pc.multiply(table["v"], table["v"])).as_py()], "n": [table.num_rows], "m": [0]})

    def merge(states: pa.Table) -> pa.Table:
        return pa.table({"s": [pc.sum(states["s"]).as_py()], "n": [pc.sum(states["n"]).as_py()], "m": [1]})

    def finish(state: pa.Table) -> pa.Table:
        return pa.table({"mean": pc.divide(pc.cast(state["s"], pa.float64()), state["n"]), "merged": state["m"]})

    return sl.ArrowAggregate(partial, merge, finish, "s long, n long, m long", "mean double, merged long")


def test_python_aggregates_split_hot_keys_only(spark: SparkSession) -> None:
    df = skewed(spark, exponent=1.5)
    ours = frame(sl.group_by(df, "k", n_workers=8).agg(middle())).set_index("k")
    plain = frame(df.groupBy("k").agg(F.avg(F.col("v") * F.col("v")).alias("mean"))).set_index("k")
    assert ours["mean"].to_dict() == pytest.approx(plain["mean"].to_dict())
    assert ours["merged"].sum() >= 1
    assert ours.loc["key 0", "merged"] == 1
    assert (ours["merged"] == 0).sum() > 30


def test_empty_and_tiny_frames(spark: SparkSession) -> None:
    for n in (0, 1):
        df = skewed(spark).limit(n)
        assert rows(sl.repartition(df, "k")) == rows(df)
        assert len(rows(sl.group_by(df, "k").agg(n=sl.count()))) == n
        assert len(rows(sl.group_by(df, "k").agg(middle()))) == n
        assert sl.profile(df, "k").rows == n
        assert sl.explain(df, "k").chosen == "hash"


def test_python_aggregates_fit_their_schemas_or_say_why_not(spark: SparkSession) -> None:
    df = spark.range(10).select((F.col("id") % 2).alias("k"), "id")

    def of(partial: Any) -> DataFrame:
        merged = sl.ArrowAggregate(partial, lambda states: states.slice(0, 1), lambda state: state, "n long", "n long")
        return sl.group_by(df, "k", n_workers=2).agg(merged)

    def small(some: pa.Table) -> pa.Table:
        of_key = some["k"][0].as_py()
        return pa.table({"n": pa.array([some.num_rows], pa.int8() if of_key else pa.int32())})

    assert rows(of(small)) == rows(df.groupBy("k").count())
    for partial, said in (
        (lambda _: None, "returns a pyarrow Table, not NoneType"),
        (lambda _: pa.table({"m": [1]}), "has columns \\['m'\\], not \\['n'\\]"),
        (lambda _: pa.table({"n": ["many"]}), "many"),
    ):
        with pytest.raises(Exception, match=said):
            of(partial).collect()


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


def test_a_sample_tells_nearly_the_same(spark: SparkSession) -> None:
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


def test_what_is_read_is_known_before_it_is_read(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(0, 100_000, 1, 2).select("id", F.concat(F.lit("key "), F.col("id") % 40).alias("k"))
    assert reads(df)[:3] == pytest.approx((800_000, 100_000, 100_000), rel=0.01)
    many = reads(df.select(F.explode(F.sequence(F.lit(1), "id"))))
    assert isinf(many.most)
    assert many.grows
    assert not reads(df.where("id > 3").groupBy("k").count()).grows
    df.write.parquet(f"{tmp_path}/rows")
    there = spark.read.parquet(f"{tmp_path}/rows")
    size = sum(place.stat().st_size for place in (tmp_path / "rows").glob("*.parquet"))
    assert reads(there.where("k = 'key 1'")).bytes == pytest.approx(size, rel=0.1)
    assert 1e4 < reads(there).rows < 1e6  # not known to Spark, but likely
    cached = there.cache()
    try:
        cached.count()
        assert reads(cached.groupBy("k").count()).rows == pytest.approx(100_000, rel=0.01)
        assert reads(cached).bytes > 100_000
        assert reads(cached.where("k = 'key 1'").union(cached)).most == 200_000
        assert isinf(reads(there.where("true").groupBy("k").count()).most + reads(cached.join(df, "id")).most)
        assert reads(cached.join(df, "id")).rows == pytest.approx(200_000, rel=0.01)
    finally:
        cached.unpersist()


def test_whether_hashing_is_good_enough_does_not_depend_on_luck(spark: SparkSession) -> None:
    assert hash_straggler(Histogram(np.arange(2, dtype=np.uint64), np.full(2, 1000.0)), 2) == 2
    assert hash_straggler(Histogram(np.arange(4000, dtype=np.uint64), np.full(4000, 500.0)), 16) < 1.25
    even = spark.range(0, 9_000_000, 1, 2).select((F.col("id") % 4000).alias("k"), "id")
    assert "xxhash64" not in explained(sl.repartition(even, "k"))
    assert "xxhash64" in explained(sl.repartition(even.select((F.col("k") % 8).alias("k"), "id"), "k"))
    assert "hashing spreads these keys well" in str(sl.explain(even, "k"))


def test_files_with_more_rows_than_they_look_like(spark: SparkSession, tmp_path: Path) -> None:
    """Next to nothing on the disk: what is few by that would be too much for the driver."""
    rows = 2 * ENOUGH + 7
    place = str(tmp_path / "alike")
    spark.range(0, rows, 1, 2).selectExpr("if(id % 3 = 0, 'a', 'b') AS k").write.parquet(place)
    df = spark.read.parquet(place)
    assert reads(df).rows < ENOUGH
    found = sl.profile(df, "k")
    assert (found.rows, found.distinct, found.sample) == (rows, 2, 1)
    assert found.hottest() == [(("b",), rows * 2 // 3), (("a",), rows - rows * 2 // 3)]


def test_a_sample_of_files_is_of_all_their_rows(spark: SparkSession, tmp_path: Path) -> None:
    """How many may come to the driver counts those of the sample, not those that are read for it."""
    rows, place = 5 * ENOUGH, str(tmp_path / "sorted")
    spark.range(0, rows, 1, 1).selectExpr(f"id DIV {rows // 10} AS k").write.parquet(place)
    found = sl.profile(spark.read.parquet(place), "k", sample=0.1)
    assert found.rows == pytest.approx(rows, rel=0.02)
    assert found.histogram.counts == pytest.approx(rows / 10, rel=0.05)
    assert found.histogram.keys.size == 10


def test_workers_by_default(spark: SparkSession) -> None:
    """Two task slots, seven shuffle partitions."""
    assert [parallelism(spark, size) for size in (0, 2**26, 2**26 + 1, 2**40, inf)] == [2, 2, 3, 7, 7]
    df = skewed(spark)
    assert sl.repartition(df, "k", partitioner="level").select(F.spark_partition_id()).distinct().count() == 2
    assert sl.explain(df, "k").n_workers == 2
    many = df.select(F.explode(F.array_repeat("k", 1000)).alias("k"))
    assert sl.explain(many, "k").n_workers == 7  # who knows how much that is


def test_little_data_is_left_to_spark_unless_workers_are_asked_for(spark: SparkSession) -> None:
    df = skewed(spark)
    assert reads(df).bytes < 2**20
    plain, asked = sl.group_by(df, "k"), sl.group_by(df, "k", n_workers=4)

    def first(rows: pa.Table) -> pa.Table:
        return rows.slice(0, 1)

    def both(left: pa.Table, right: pa.Table) -> pa.Table:
        return left.slice(0, right.num_rows)

    for groups, is_ours in ((plain, False), (asked, True)):
        for found in (groups.applyInArrow(first, df.schema), groups.cogroup(groups).applyInArrow(both, df.schema)):
            assert ("xxhash64" in explained(found)) == is_ours
        assert ("say n_workers" in str(sl.explain(df, "k", n_workers=groups.n_workers))) != is_ours
        moved = sl.repartition(df, "k", n_workers=groups.n_workers)
        assert ("xxhash64" in explained(moved)) == is_ours


def test_rows_are_profiled_by_a_job_that_reads_them_anyway(spark: SparkSession) -> None:
    df = skewed(spark).withColumn("hash", F.lit(1))
    watched = sl.watch(df, "k")
    assert watched.rows.columns == df.columns
    assert rows(watched.rows) == rows(df)
    seen, plain = watched.profile(), sl.profile(df, "k")
    assert (seen.rows, seen.distinct, seen.nulls) == (plain.rows, plain.distinct, plain.nulls)
    assert seen.histogram.keys.tolist() == plain.histogram.keys.tolist()
    assert seen.histogram.counts.tolist() == plain.histogram.counts.tolist()
    assert seen.hottest(3) == plain.hottest(3)
    for empty in (df.limit(0), spark.createDataFrame([], df.schema)):
        nothing = sl.watch(empty, "k")
        assert nothing.rows.collect() == []
        assert nothing.profile().rows == 0
        assert nothing.profile().straggler(4) == 1


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


def test_what_spark_does_as_well_is_left_to_it(spark: SparkSession) -> None:
    """Little data, and much of it with even keys; but not some large keys, nor what somebody asks for."""
    tiny, some, much = (spark.range(n).withColumnRenamed("id", "v") for n in (9, 200_000, 9_000_000))
    operator: Any
    even, few = F.col("v") % 4000, F.col("v") % 3

    def ours(found: DataFrame) -> bool:
        return "shufflepartitionidpassthrough" in explained(found)

    for rows, key, are_ours in (
        (tiny, few, (False, False, False)),
        (some, even, (False, False, False)),
        (some, few, (False, False, True)),  # Python may take any time for a row
        (much, even, (False, False, False)),
        (much, few, (True, True, True)),
    ):
        df = rows.withColumn("k", key)
        ranked, groups = sl.over(df, "k", n=F.count("v")), sl.group_by(df, "k")
        made = ranked, groups.agg(all=sl.collect_list("v")), groups.applyInArrow(lambda table: table, df.schema)
        assert tuple(map(ours, made)) == are_ours
        for operator, is_little in (("over", rows is not much), ("applyInArrow", rows is tiny)):
            assert ("so little data" in sl.explain(df, "k", operator=operator).reason) == is_little
        plain = df.withColumn("n", F.count("v").over(Window.partitionBy("k")))
        if rows is not much:
            assert ranked.exceptAll(plain).isEmpty()
        elif key is few:
            assert ranked.groupBy("k", "n").count().exceptAll(plain.groupBy("k", "n").count()).isEmpty()
    df = tiny.withColumn("k", few)
    plain = df.withColumn("n", F.count("v").over(Window.partitionBy("k")))
    for asked in (sl.over(df, "k", n=F.count("v"), n_workers=3), sl.over(df, "k", n=F.count("v"), partitioner="kip")):
        assert ours(asked)
        assert asked.exceptAll(plain).isEmpty()


def test_nothing_is_left_behind(spark: SparkSession) -> None:
    df = skewed(spark)
    before = spark.catalog.listTables()
    sl.group_by(df, "k").agg(n=sl.count()).collect()
    sl.repartition(df, "k").collect()
    assert spark.catalog.listTables() == before
    assert not df.is_cached


def test_bad_input_gets_a_sentence(spark: SparkSession) -> None:
    df = skewed(spark)
    count: Any = F.count("v")
    wrong: list[tuple[str, Any]] = [
        ("there is no column 'x'; there are k, v, worker", lambda: sl.repartition(df, "x")),
        ("a key has at least 1 column", lambda: sl.repartition(df)),
        ("pkg splits keys, but each is needed whole", lambda: sl.repartition(df, "k", partitioner="pkg")),
        ("there is no partitioner 'best'", lambda: sl.repartition(df, "k", partitioner="best")),
        ("n_workers is at least 1, not 0", lambda: sl.repartition(df, "k", n_workers=0)),
        ("there is a column 'v' already", lambda: sl.repartition(df, "k", into="v")),
        ("for 3 workers, not for 4", lambda: sl.repartition(df, "k", n_workers=4, partitioner=RoutingTable.hashed(3))),
        ("sample is more than 0 and at most 1, not 2", lambda: sl.profile(df, "k", sample=2)),
        ("agg needs at least 1 aggregate", lambda: sl.group_by(df, "k").agg()),
        ("n is an sl.Aggregate", lambda: sl.group_by(df, "k").agg(**{"n": count})),
        ("k is a column of the key already", lambda: sl.group_by(df, "k").agg(k=sl.count())),
        ("over needs at least 1 window function", lambda: sl.over(df, "k")),
    ]
    for sentence, act in wrong:
        with pytest.raises(ValueError, match=sentence):
            act()
    collated = df.select(F.collate("k", "UNICODE_CI").alias("k"))
    with pytest.raises(ValueError, match="collation UNICODE_CI has no native hash"):
        sl.repartition(collated, "k")


def test_split_keys_need_the_shuffle_checksum(spark: SparkSession) -> None:
    df = skewed(spark, exponent=2.0)
    name = "spark.sql.shuffle.orderIndependentChecksum.enabled"
    spark.conf.set(name, "false")
    try:
        with pytest.raises(ValueError, match="a retried task may lose or double rows"):
            sl.group_by(df, "k", n_workers=6).agg(all=sl.collect_list("v"))
    finally:
        spark.conf.unset(name)
