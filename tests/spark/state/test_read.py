"""Saved states are read batch by batch, and other checkpoints are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

import skewless.spark as sl
from skewless import RoutingTable
from skewless.spark.state.committed import KeyedState, store_of
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.commit import Commit
from skewless.spark.streaming.windows import WindowsState
from skewless.store import Manifest
from tests.spark.state.states import write_states

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]
KEY, STATE = StructType([StructField("k", StringType())]), StructType([StructField("n", LongType())])


def test_states_after_each_batch_that_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    files, table = Checkpoint(str(tmp_path)), RoutingTable.hashed(2)
    store = store_of(files, KEY, STATE)
    manifest = Manifest.empty(store)
    for batch, states in ((3, {"a": 1, "b": 2, "": 3}), (4, {"a": None, "b": 20})):
        manifest = write_states(store, manifest, table, batch, states)
        state = KeyedState(
            batch=batch, watermark=0, late=0, manifest=manifest, key=KEY, state=STATE, n_workers=2, names=("user",)
        )
        Commit(state=state, scale=None, record={}).write(files, batch)
    last, former = sl.read_state(spark, str(tmp_path)), sl.read_state(spark, str(tmp_path), 3)
    assert last.columns == ["user", "n", "timeout"]
    assert sorted(map(tuple, last.collect())) == [("", 3, None), ("b", 20, None)]
    assert sorted(map(tuple, former.collect())) == [("", 3, None), ("a", 1, None), ("b", 2, None)]
    with pytest.raises(ValueError, match="has the states after batches 3 to 4, not after 2"):
        sl.read_state(spark, str(tmp_path), 2)


@pytest.mark.parametrize("spark", ["classic"], indirect=True)  # is refused before Spark is asked
def test_checkpoints_without_states_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no complete batch yet"):
        sl.read_state(spark, str(tmp_path))
    Commit(state=WindowsState(), scale=None, record={}).write(Checkpoint(str(tmp_path)), 0)
    with pytest.raises(ValueError, match="is the checkpoint of a query without keyed state"):
        sl.read_state(spark, str(tmp_path))
