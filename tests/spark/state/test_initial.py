"""A query begins with the states that it is given, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from skewless.spark.state.committed import store_of
from skewless.spark.state.function import KeyFunction
from skewless.spark.state.initial import initial_manifest, load
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.rows import StreamKey
from skewless.store import Share, entries

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]
STATE = StructType([StructField("n", LongType()), StructField("total", DoubleType())])


def same(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
    return rows


FUNCTION = KeyFunction(call=same, output=STATE, state=STATE)


def test_states_are_written_before_the_first_batch_and_only_then(spark: SparkSession, tmp_path: Path) -> None:
    files, key = Checkpoint(str(tmp_path)), StreamKey.plain("k")
    initial = spark.createDataFrame(
        [(0.5, 1, "a", True), (1.5, 2, None, True)], "total double, n int, k string, x boolean"
    )
    store = store_of(files, key.stored(initial), STATE)
    assert initial_manifest(files, store).segments == ()
    load(initial, key, FUNCTION, files)
    load(initial.limit(0), key, FUNCTION, files)  # the query has begun already
    manifest = initial_manifest(files, store)
    assert manifest.version == -1
    rows = entries(store, manifest, Share.whole()).select(["key", "state"]).to_pylist()
    assert {row["key"]["k"]: tuple(row["state"].values()) for row in rows} == {"a": (1, 0.5), None: (2, 1.5)}


@pytest.mark.parametrize("spark", ["classic"], indirect=True)  # is refused before Spark is asked
def test_rows_without_the_fields_of_the_state_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    initial = spark.createDataFrame([("a", 1)], "k string, n long")
    with pytest.raises(ValueError, match="the initial state lacks total; it has k, n"):
        load(initial, StreamKey.plain("k"), FUNCTION, Checkpoint(str(tmp_path)))
