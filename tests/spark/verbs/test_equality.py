"""Every verb gives what plain Spark gives, for keys of any type.

EXAMPLES=500 pytest tests/spark/verbs/test_equality.py tries harder.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import skewless.spark as sl
from tests.spark.frames import KEYS, NAN, canonical, middle, rows

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]

EXAMPLES = int(os.environ.get("EXAMPLES", "24"))
KINDS: dict[str, tuple[str, Callable[[int], Any]]] = {  # a type, and values of it besides the special ones of KEYS
    "strings": ("string", lambda i: f"key {i}"),
    "longs": ("bigint", lambda i: i * 2**40),
    "ints": ("int", lambda i: i),
    "doubles": ("double", lambda i: i / 8),
    "decimals": ("decimal(20,2)", lambda i: Decimal(i) / 4),
    "dates": ("date", lambda i: dt.date(2020, 1, 1) + dt.timedelta(i)),
    "times": ("timestamp", lambda i: dt.datetime(2020, 1, 1, i % 24)),
    "booleans": ("boolean", lambda i: i % 2 == 0),
    "binaries": ("binary", lambda i: bytes([i])),
    "structs": ("struct<a:int,b:string>", lambda i: (i, "x")),
    "arrays": ("array<double>", lambda i: [i / 8, NAN]),
    "maps": ("map<string,int>", lambda i: {"a": i, "b": 2}),
}


@dataclass(frozen=True)
class Case:
    """Rows to make: k, and j if there are two key columns, of some kinds; how many, how skewed, in how many parts."""

    kinds: tuple[str, ...]
    n: int
    exponent: float
    parts: int
    workers: int
    seed: int

    @property
    def keys(self) -> list[str]:
        return ["k", "j"][: len(self.kinds)]

    def rows(self, spark: SparkSession, value: str = "v", n: int | None = None, seed: int = 0) -> DataFrame:
        n = self.n if n is None else n
        rng = np.random.default_rng(self.seed + seed)
        columns, types = [], []
        for name, kind in zip(self.keys, self.kinds, strict=True):
            ddl, make = KINDS[kind]
            pool = [*KEYS[kind][1], *(make(i) for i in range(20))]
            pool = [pool[i] for i in rng.permutation(len(pool))]
            share = (1.0 + np.arange(len(pool))) ** -self.exponent
            columns.append([pool[i] for i in rng.choice(len(pool), n, p=share / share.sum())])
            types.append(f"{name} {ddl}")
        data = list(zip(*columns, range(n), strict=True))
        return spark.createDataFrame(data, ", ".join([*types, f"{value} bigint"])).repartition(self.parts)


CASES = st.builds(
    Case,
    kinds=st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=2).map(tuple),
    n=st.sampled_from([0, 1, 2, 30, 300]),
    exponent=st.sampled_from([0.0, 1.0, 3.0]),
    parts=st.sampled_from([1, 3, 16]),
    workers=st.integers(1, 16),
    seed=st.integers(0, 1000),
)


@pytest.fixture(scope="module")
def shuffled(spark: SparkSession) -> Iterator[SparkSession]:
    """Yields a session in which joins of small frames go through a shuffle, too."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    yield spark
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


def repartition(spark: SparkSession, case: Case) -> None:
    df = case.rows(spark)
    placed = sl.repartition(df, *case.keys, n_workers=case.workers)
    assert rows(placed) == rows(df)
    where: dict[str, set[int]] = {}
    for row in placed.select(*case.keys, F.spark_partition_id()).collect():
        where.setdefault(repr(canonical(list(row[:-1]))), set()).add(row[-1])
    assert all(len(parts) == 1 for parts in where.values())


def apply_in_pandas(spark: SparkSession, case: Case) -> None:
    df = case.rows(spark)

    def of(some: Any) -> Any:
        return pd.DataFrame({"n": [len(some)], "s": [some["v"].sum()], "c": [",".join(some.columns)]})

    schema = "n long, s long, c string"
    ours = sl.group_by(df, *case.keys, n_workers=case.workers).applyInPandas(of, schema)
    assert rows(ours) == rows(df.groupBy(*case.keys).applyInPandas(of, schema))


def apply_in_arrow(spark: SparkSession, case: Case) -> None:
    df = case.rows(spark)

    def of(key: tuple[Any, ...], some: pa.Table) -> pa.Table:
        columns = ",".join(some.column_names)
        return pa.table({"n": [some.num_rows], "s": [pc.sum(some["v"]).as_py()], "c": [columns], "w": [len(key)]})

    schema = "n long, s long, c string, w long"
    ours = sl.group_by(df, *case.keys, n_workers=case.workers).applyInArrow(of, schema)
    assert rows(ours) == rows(df.groupBy(*case.keys).applyInArrow(of, schema))


def aggregates(spark: SparkSession, case: Case) -> None:
    df = case.rows(spark)
    ours = sl.group_by(df, *case.keys, n_workers=case.workers).agg(
        n=sl.count(), low=sl.min("v"), mean=sl.mean("v"), all=sl.collect_list("v")
    )
    plain = df.groupBy(*case.keys).agg(
        F.count("*").alias("n"), F.min("v").alias("low"), F.avg("v").alias("mean"), F.collect_list("v").alias("all")
    )
    assert ours.columns == plain.columns
    one, other = (each.withColumn("all", F.sort_array("all")) for each in (ours, plain))
    assert rows(one) == rows(other)


def arrow_aggregate(spark: SparkSession, case: Case, partitioner: Any = "auto") -> None:
    df, aggregate = case.rows(spark), middle()

    def of(some: pa.Table) -> pa.Table:
        return aggregate.finish(aggregate.partial(some))

    ours = sl.group_by(df, *case.keys, n_workers=case.workers, partitioner=partitioner).agg(aggregate)
    plain = df.groupBy(*case.keys).applyInArrow(of, aggregate.output)
    assert rows(ours.select("mean")) == rows(plain.select("mean"))


def exact(spark: SparkSession, case: Case) -> None:
    arrow_aggregate(spark, case, sl.Exact("pkg"))


def cogroup(spark: SparkSession, case: Case) -> None:
    left, right = case.rows(spark), case.rows(spark, "u", 60, 1)

    def of(one: Any, other: Any) -> Any:
        return pd.DataFrame({"n": [len(one)], "s": [one["v"].sum()], "m": [len(other)], "t": [other["u"].sum()]})

    schema = "n long, s long, m long, t long"
    ours = sl.group_by(left, *case.keys, n_workers=case.workers).cogroup(sl.group_by(right, *case.keys))
    plain = left.groupBy(*case.keys).cogroup(right.groupBy(*case.keys))
    assert rows(ours.applyInPandas(of, schema)) == rows(plain.applyInPandas(of, schema))


def over(spark: SparkSession, case: Case) -> None:
    df, window = case.rows(spark), Window.partitionBy(*case.keys).orderBy("v")
    ours = sl.over(df, *case.keys, n_workers=case.workers, order_by="v", rn=F.row_number(), s=F.sum("v"))
    plain = df.select("*", F.row_number().over(window).alias("rn"), F.sum("v").over(window).alias("s"))
    assert ours.columns == plain.columns
    assert rows(ours) == rows(plain)


def joined(how: str) -> Callable[[SparkSession, Case], None]:
    def join(spark: SparkSession, case: Case) -> None:
        left, right = case.rows(spark), case.rows(spark, "u", 60, 1)
        if case.seed % 2:
            left, right = right, left
        partitioner = ("auto", "level", "kip")[case.seed % 3]
        ours = sl.join(left, right, case.keys, how, n_workers=case.workers, partitioner=partitioner)
        plain = left.join(right, case.keys, how)
        assert ours.columns == plain.columns
        assert rows(ours) == rows(plain)

    return join


VERBS: dict[str, Callable[[SparkSession, Case], None]] = {
    verb.__name__: verb
    for verb in (repartition, apply_in_pandas, apply_in_arrow, aggregates, arrow_aggregate, exact, cogroup, over)
} | {f"join {how}": joined(how) for how in ("inner", "left", "right", "full", "semi", "anti")}


@settings(max_examples=EXAMPLES)
@given(case=CASES, verb=st.sampled_from(list(VERBS)))
def test_every_verb_gives_what_spark_gives(shuffled: SparkSession, case: Case, verb: str) -> None:
    ordered = verb == "over" or verb.startswith("join")
    assume(not (ordered and "maps" in case.kinds))  # Spark neither joins by maps nor has windows over them
    VERBS[verb](shuffled, case)
