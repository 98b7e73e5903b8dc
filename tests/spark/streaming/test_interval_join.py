"""Joins of two streams equal the join of all of their rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from tests.spark.batches import batch_of, read, write

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]


def sides(spark: SparkSession, left: Any, right: Any) -> tuple[DataFrame, DataFrame]:
    """Returns two sides with the same columns, under other names but for the key."""
    return left.select("k", "v", "ts"), right.select("k", F.col("v").alias("w"), F.col("ts").alias("at"))


def test_pairs_of_two_streams_are_those_of_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    batches = [[batch_of(rows, number, seed=side) for number in range(4)] for side, rows in enumerate((150, 60))]
    streams = [read(spark, write(tmp_path / name, batches[side])) for side, name in enumerate(("one", "two"))]
    left, right = sides(spark, *streams)
    job = sl.stream(left, "k", time="ts", watermark="12 seconds", n_workers=4).join(
        sl.stream(right, "k", time="at", watermark="12 seconds"), "-3 seconds", "12 seconds"
    )
    for _ in range(2):  # the second run finds nothing new
        query = job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), available_now=True)
        assert query.awaitTermination(300)
    found = Counter(tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).drop("batch_id").collect())
    whole = [spark.createDataFrame(pa.concat_tables(side)) for side in batches]
    one, two = sides(spark, *whole)
    apart = F.unix_micros("at") - F.unix_micros("ts")
    pairs = one.join(two, "k").where((apart >= -3_000_000) & (apart <= 12_000_000))
    assert found == Counter(tuple(row) for row in pairs.collect())
    assert len(found) > 1000
    records = query.recent()
    assert sum(record["rows"] for record in records) == sum(
        table.num_rows - table["k"].null_count for side in batches for table in side
    )
    kept = {path.name for side in ("left", "right") for path in (tmp_path / "checkpoint/skewless" / side).iterdir()}
    assert "0" not in kept  # rows that cannot match any more are gone
