"""Segments of keyed state are merged in the background; what cannot be merged stays as it is."""

from __future__ import annotations

import logging
from concurrent.futures import wait
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from skewless import RoutingTable
from skewless.spark.plans import parallelism
from skewless.spark.state.merging import MergedSegments, merge_later, with_merged
from skewless.spark.state.routing import IN_TURN, task_count
from skewless.spark.streaming.background import Background
from skewless.store import Manifest, Share, StateStore, entries
from tests.faults.harm import damage
from tests.spark.state.states import write_states

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]
TABLE = RoutingTable.hashed(3)


def filled(directory: Path) -> tuple[StateStore, Manifest]:
    """Writes a state for each of 50 keys and changes it three times."""
    store = StateStore(str(directory), pa.schema({"k": pa.string()}), pa.schema({"n": pa.int64()}))
    manifest = Manifest.empty(store)
    for version in range(4):
        manifest = write_states(store, manifest, TABLE, version, {f"key {i}": version * i for i in range(50)})
    return store, manifest


def states(store: StateStore, manifest: Manifest) -> dict[str, int]:
    rows = entries(store, manifest, Share.whole()).select(["key", "state"]).to_pylist()
    return {row["key"]["k"]: row["state"]["n"] for row in rows}


def finish(background: Background[MergedSegments]) -> None:
    """Waits for the job, whose result or error stays to be taken, and ends the thread."""
    assert background._job is not None
    wait([background._job])
    background.close()


def test_segments_are_merged_while_others_are_added(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skewless.store.manifest.SEGMENTS", 1)  # merge as soon as there is something to merge
    store, manifest = filled(tmp_path)
    background: Background[MergedSegments] = Background("test-merge")
    assert with_merged(background, store, manifest) is manifest
    merge_later(background, spark, store, manifest, TABLE)
    assert background.is_busy
    merge_later(background, spark, store, manifest, TABLE)  # does nothing
    later = write_states(store, manifest, TABLE, 4, {"key 7": -1})
    finish(background)
    merged = with_merged(background, store, later)
    assert len(merged.segments) == len(later.segments) - len(manifest.due()) + 1
    assert states(store, merged) == {f"key {i}": 3 * i for i in range(50)} | {"key 7": -1}


def test_segments_that_cannot_be_merged_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("skewless.store.manifest.SEGMENTS", 1)
    store, manifest = filled(tmp_path)
    background: Background[MergedSegments] = Background("test-merge")
    damage(min(tmp_path.glob("changes-*")), "missing")
    merge_later(background, spark, store, manifest, TABLE)
    finish(background)
    with caplog.at_level(logging.WARNING, "skewless"):
        assert with_merged(background, store, manifest) is manifest
    assert "could not be merged, and will be tried again" in caplog.text
    assert not background.is_busy


def test_tasks_are_no_more_than_slots_take_in_turn(spark: SparkSession) -> None:
    most = IN_TURN * parallelism(spark)
    assert [task_count(spark, n) for n in (1, most, 10 * most)] == [1, most, most]
