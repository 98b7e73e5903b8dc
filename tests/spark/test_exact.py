"""Rows routed tuple by tuple: what each source decides on Spark is what its partitioner decides in numpy."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless
import skewless.spark as sl
from skewless.arrays import Keys, from_bytes
from skewless.cooperation.protocol import exchange
from skewless.partitioner import Partitioner
from skewless.partitioners import ALL, described, rebuilt
from skewless.spark import exact
from skewless.spark.exact import NO_SOURCES, Exact, Sourced, Sources
from skewless.spark.keys import hashed, keyed
from tests.spark.changing import setting
from tests.spark.frames import frame, middle, rows, skewed
from tests.variants import VARIANTS

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]

SOURCES, WORKERS = 3, 5


def parted(spark: SparkSession, start: int = 0, most: int = 9000) -> DataFrame:
    """Returns rows with hot keys, in the order of v; those from `most` on are left out, perhaps whole partitions."""
    key = F.floor(F.pow(F.rand(1), 4) * 40)
    rows = spark.range(start, start + 3000, 1, SOURCES).select(key.alias("k"), F.col("id").alias("v"))
    return rows.where(F.col("v") < most)


Batch = tuple[DataFrame, list[Keys]]


@pytest.fixture(scope="module")
def batches(spark: SparkSession) -> list[Batch]:
    """Returns three batches with the key hashes of each partition; the second has no rows for the last source."""
    frames = [parted(spark), parted(spark, 3000, 5000), parted(spark, 6000)]
    hashes = []
    for df in frames:
        data = frame(df.select(F.spark_partition_id().alias("p"), "v", hashed(df, ["k"]).alias("h"))).sort_values("v")
        hashes.append([data["h"][data["p"] == number].to_numpy().view(np.uint64) for number in range(SOURCES)])
    assert [keys.size for keys in hashes[1]] == [1000, 1000, 0]
    return list(zip(frames, hashes, strict=True))


def decided(df: DataFrame) -> list[int]:
    """Returns the workers in the order of v; checks that each row is in the partition of its worker."""
    data = frame(df.select("v", "w", F.spark_partition_id().alias("p"))).sort_values("v")
    assert (data["w"] == data["p"]).all()
    found: list[int] = data["w"].tolist()
    return found


def sources(p: Partitioner[Any, Any]) -> list[Partitioner[Any, Any]]:
    return [deepcopy(p) for _ in range(SOURCES)]


@pytest.mark.parametrize("name", [cls.name for cls in ALL if cls.plans_ahead])
def test_planners_see_all_rows_first(batches: list[Batch], name: str) -> None:
    (df, hashes), p = batches[0], skewless.partitioner(name, WORKERS, seed=7)
    alone = sources(p)
    for source, keys in zip(alone, hashes, strict=True):
        source.observe(keys)
    exchange(alone)
    expected = [w for source, keys in zip(alone, hashes, strict=True) for w in source.route(keys).tolist()]
    assert decided(exact.routed(df, ["k"], Sourced(p, exact.learned(p, keyed(df, ["k"]))), "w")) == expected
    assert len(set(expected)) == WORKERS


@pytest.mark.parametrize("name", [*(cls.name for cls in ALL if not cls.plans_ahead), "kip", "off_greedy"])
def test_each_partition_is_a_source_and_they_cooperate(batches: list[Batch], name: str) -> None:
    p = skewless.partitioner(name, WORKERS, seed=7)
    alone, known = sources(p), NO_SOURCES
    for df, hashes in batches:
        expected = []
        for source, keys in zip(alone, hashes, strict=True):
            expected += source.route(keys).tolist()
            if p.plans_ahead:
                source.observe(keys)
        now = exact.passed(df, ["k"], Sourced(p, known), "w")
        assert now.rows.columns == ["k", "v", "w"]
        assert decided(now.rows) == expected
        exchange(alone)
        known = exact.agreed(p, now.left())
    assert sorted(known.snapshots) == [0, 1, 2]
    more = skewless.streams.zipf(2000, 50, 1.0)
    for number, source in enumerate(alone):
        own: Any = from_bytes(type(p.fresh()), known.snapshots[number])
        assert deepcopy(p).restore(own).route(more).tolist() == source.route(more).tolist()


def test_a_pass_without_rows_changes_nothing(spark: SparkSession) -> None:
    p = skewless.partitioner("pkg", WORKERS)
    for empty in (parted(spark).limit(0), parted(spark, most=0), spark.createDataFrame([], "k long, v long")):
        now = exact.passed(empty, ["k"], Sourced(p, exact.first_sources(p)), "w")
        assert now.rows.collect() == []
        assert now.left() == exact.first_sources(p)
    assert exact.agreed(p, NO_SOURCES) == NO_SOURCES


def test_an_instance_passes_on_to_its_sources_what_it_has_learned(spark: SparkSession) -> None:
    df, p = parted(spark), skewless.partitioner("pkg", 2)
    p.route(skewless.streams.as_keys(np.zeros(10_000, np.int64)))
    p.merge([p.snapshot()])
    ahead = p.snapshot()
    ahead.load[0] += 5000  # worker 0 seems to have had much more, so that all rows go to worker 1
    p.restore(ahead)
    split = sl.group_by(df, "k", partitioner=Exact(p)).agg(all=sl.collect_list("v"))
    assert len(rows(split)) == df.select("k").distinct().count()
    assert set(decided(exact.routed(df, ["k"], Sourced(p, exact.learned(p)), "w"))) == {1}


@pytest.mark.parametrize("name", ["potc", "pkg", "dalton", "kip"])
def test_results_are_those_of_spark(spark: SparkSession, name: str) -> None:
    """With rows of other columns too, and keys that are NULL."""
    df, by = skewed(spark), Exact(name)
    lists = sl.group_by(df, "k", partitioner=by, n_workers=4).agg(all=sl.collect_list("v"), n=sl.count())
    plain = df.groupBy("k").agg(F.collect_list("v").alias("all"), F.count("*").alias("n"))
    assert rows(lists.select("k", F.sort_array("all"), "n")) == rows(plain.select("k", F.sort_array("all"), "n"))
    ours = frame(sl.group_by(df, "k", partitioner=by, n_workers=4).agg(middle())).set_index("k")["mean"].to_dict()
    means = frame(df.groupBy("k").agg(F.avg(F.col("v") * F.col("v")).alias("mean"))).set_index("k")["mean"].to_dict()
    assert ours == pytest.approx(means)
    if skewless.partitioner(name, 4).splits_keys:
        with pytest.raises(ValueError, match=f"{name} splits keys, but each is needed whole"):
            sl.repartition(df, "k", partitioner=by)
        return
    placed = sl.repartition(df, "k", partitioner=by, n_workers=4)
    assert placed.columns == df.columns
    assert rows(placed) == rows(df)
    where = placed.select("k", F.spark_partition_id().alias("p")).distinct()
    assert where.count() == df.select("k").distinct().count()


def test_two_sides_are_planned_for_together(spark: SparkSession) -> None:
    left, right = skewed(spark, 1500), skewed(spark, 800, 80, 0.5).select("k", F.col("v").alias("u"))

    def joined(key: tuple[Any, ...], one: Any, other: Any) -> Any:
        import pandas as pd

        return pd.DataFrame({"k": [key[0]], "n": [len(one)], "m": [len(other)], "s": [other["u"].sum()]})

    schema = "k string, n long, m long, s long"
    plain = left.groupBy("k").cogroup(right.groupBy("k")).applyInPandas(joined, schema)
    others = sl.group_by(right, "k")
    ours = sl.group_by(left, "k", partitioner=Exact("off_greedy")).cogroup(others).applyInPandas(joined, schema)
    assert rows(ours) == rows(plain)
    with pytest.raises(ValueError, match="potc decides in the order of its rows"):
        sl.group_by(left, "k", partitioner=Exact("potc")).cogroup(others).applyInPandas(joined, schema)


def test_no_source_of_one_side_replaces_one_of_the_other(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks without rows leave gaps in the numbers of sources."""
    left = spark.range(0, 60, 1, 6).where("id < 10 OR id >= 50")  # tasks 0 and 5 have rows
    right = spark.range(0, 40, 1, 4).where("id >= 30")  # task 3 has rows
    merged: list[int] = []
    agreed = exact.agreed

    def counting(partitioner: Partitioner[Any, Any], sources: Sources) -> Sources:
        merged.append(len(sources.snapshots))
        return agreed(partitioner, sources)

    monkeypatch.setattr(exact, "agreed", counting)
    exact.learned(skewless.partitioner("kip", 2), keyed(left, ["id"]), keyed(right, ["id"]))
    assert merged == [3]


def test_an_instance_is_for_its_number_of_workers(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="kip is for 2 workers, not for 4"):
        sl.repartition(spark.range(10), "id", n_workers=4, partitioner=Exact(skewless.partitioner("kip", 2)))


def test_the_order_of_rows_needs_the_shuffle_checksum(spark: SparkSession) -> None:
    name = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"
    with setting(spark, name, "false"):
        with pytest.raises(ValueError, match="a retried task may lose or double rows"):
            sl.repartition(skewed(spark), "k", partitioner=Exact("potc"))
        events = spark.readStream.format("rate").load()
        with pytest.raises(ValueError, match="a retried task may lose or double rows"):
            sl.stream(events, "value", partitioner=Exact("potc")).rows.routing(split=True)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_a_description_makes_the_same_partitioner(name: str, params: dict[str, Any]) -> None:
    p = skewless.partitioner(name, 7, seed=3, **params)
    assert repr(rebuilt(described(p))) == repr(p)


class Own(skewless.partitioners.named("pkg")):  # type: ignore[misc]
    """A partitioner of the user's."""


def test_a_partitioner_of_ones_own_is_found_by_its_module() -> None:
    assert type(rebuilt(described(Own(3)))) is Own

    class Local(Own):
        pass

    with pytest.raises(ValueError, match="Local is built anew in other processes: define it in a module"):
        described(Local(3))


def test_executors_without_skewless_say_so(tmp_path: Path) -> None:
    """The function as Spark sends it, in a process that cannot import this library."""
    import pyspark.cloudpickle as cloudpickle

    path, dumps = tmp_path / "function", cast(Any, cloudpickle).dumps
    path.write_bytes(dumps(exact._routing(described(skewless.partitioner("pkg", 2)), Sources(), False)))
    code = f"""
import sys, pickle
sys.modules["skewless"] = None
function = pickle.loads(open({str(path)!r}, "rb").read())
try:
    list(function(iter([])))
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "sl.Exact routes on the executors, which have no skewless.spark: install skewless[spark] on" in done.stdout
