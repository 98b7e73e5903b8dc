"""Tasks write the states that a query begins with: one row for each key."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from skewless import RoutingTable
from skewless.spark.state.committed import store_of
from skewless.spark.state.loading import Loading
from skewless.spark.state.routing import LateRows, RoutedRows
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.rows import StreamKey
from skewless.store import Manifest, Receipt, Share, StateStore, entries

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]
STATE = StructType([StructField("n", LongType())])


def loaded(initial: DataFrame, directory: Path) -> tuple[StateStore, list[Receipt]]:
    """Writes states for two workers; returns the store and the receipts."""
    table, key = RoutingTable.hashed(2), StreamKey.plain("k")
    store = store_of(Checkpoint(str(directory)), key.stored(initial), STATE)
    routed = RoutedRows.of(initial, table, 2, key, LateRows(None))
    loading = Loading(store=store, table=table, position=routed.position, version=-1)
    rows = routed.rows.mapInArrow(loading, "receipt binary").collect()
    return store, [Receipt.from_bytes(bytes(row.receipt)) for row in rows]


def test_every_worker_with_states_writes_its_own(spark: SparkSession, tmp_path: Path) -> None:
    store, receipts = loaded(spark.createDataFrame([(i, 10 * i) for i in range(20)], "k long, n long"), tmp_path)
    assert len(receipts) == 2
    manifest = Manifest.empty(store).committed(store, -1, receipts)
    shares = [Share.of(RoutingTable.hashed(2), worker) for worker in range(2)]
    parts = [entries(store, manifest, share).to_pylist() for share in shares]
    assert all(parts)
    assert {row["key"]["k"]: row["state"]["n"] for part in parts for row in part} == {i: 10 * i for i in range(20)}


def test_several_rows_for_one_key_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="the initial state has several rows for one key"):
        loaded(spark.createDataFrame([(1, 1), (2, 2), (1, 3)], "k long, n long"), tmp_path)
