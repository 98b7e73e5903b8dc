"""The key of a stream is given as PySpark's groupBy takes it: nested fields, expressions, lists, names in any case."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from tests.spark.batches import BATCHES, read, run_to_end, write

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


def events(rows: DataFrame) -> DataFrame:
    return rows.select(F.struct(F.col("k"), (F.length("k") % 2).alias("odd")).alias("s"), "v", "ts")


def counted(rows: DataFrame) -> Counter[Any]:
    return Counter(map(tuple, rows.collect()))


def test_windows_by_a_nested_field_and_an_expression(spark: SparkSession, tmp_path: Path) -> None:
    source, third = write(tmp_path / "in", BATCHES[:2]), (F.col("v") % 3).alias("third")
    job = sl.stream(events(read(spark, source)), "S.K", third, time="ts", watermark="2 minutes", partitioner="level")
    run_to_end(
        job.window("10 seconds").agg(n=sl.count(), mode="update"), str(tmp_path / "out"), str(tmp_path / "check")
    )
    plain = events(spark.read.parquet(source)).groupBy(F.window("ts", "10 seconds"), "S.K", third)
    expected = plain.agg(F.count(F.lit(1)).alias("n"))
    ours = spark.read.parquet(str(tmp_path / "out")).drop("batch_id")
    assert [name.lower() for name in ours.columns] == [name.lower() for name in expected.columns]
    assert counted(ours.groupBy(*ours.columns[:3]).agg(F.max("n"))) == counted(expected)


def test_state_by_a_list_and_a_name_in_another_case(spark: SparkSession, tmp_path: Path) -> None:
    def count(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
        n = rows.num_rows + (state.get[0] if state.exists else 0)
        state.update((n,))
        columns = ",".join(rows.column_names)
        return pa.table({"odd": pa.array([key[0]], pa.int32()), "v": [key[1]], "n": [n], "columns": [columns]})

    source = write(tmp_path / "in", BATCHES[:2])
    stream = sl.stream(events(read(spark, source)), ["s.odd", "V"], n_workers=3)
    job = stream.applyInArrowWithState(count, "odd int, v long, n long, columns string", "n long")
    run_to_end(job, str(tmp_path / "out"), str(tmp_path / "check"))
    ours = spark.read.parquet(str(tmp_path / "out"))
    expected = events(spark.read.parquet(source)).groupBy("s.odd", "V").count()
    assert counted(ours.groupBy("odd", "v").agg(F.max("n"))) == counted(expected)
    assert {row["columns"] for row in ours.select("columns").collect()} == {"s,v,ts"}


def test_pairs_by_an_expression(spark: SparkSession, tmp_path: Path) -> None:
    source = write(tmp_path / "in", BATCHES[:1])
    rows = read(spark, source).where("v is not null")
    left = sl.stream(rows.select("v", F.col("ts").alias("at")), (F.col("v") % 7).alias("day"), time="at")
    right = sl.stream(rows.selectExpr("-v as w", "ts"), (F.col("w") % 7).alias("day"), time="ts")
    run_to_end(left.join(right, "0 seconds", "1 second"), str(tmp_path / "out"), str(tmp_path / "check"))
    ours = spark.read.parquet(str(tmp_path / "out"))
    plain = spark.read.parquet(source).where("v is not null")
    a, b = plain.select("v", F.col("ts").alias("at")), plain.selectExpr("-v as w", "ts")
    near = (F.col("ts") >= F.col("at")) & (F.col("ts") <= F.col("at") + F.expr("interval 1 second"))
    expected = a.join(b, (F.col("v") % 7 == F.col("w") % 7) & near)
    assert counted(ours.select("v", "at", "w", "ts")) == counted(expected.select("v", "at", "w", "ts"))
