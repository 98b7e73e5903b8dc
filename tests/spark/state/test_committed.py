"""The state of a keyed-state query is read as it was written. No Spark is started."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from skewless import RoutingTable, elastic
from skewless.spark.state.committed import KeyedState, manifests, store_of
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.commit import Commit, read_commit
from skewless.store import Manifest
from tests.spark.state.states import write_states

pytestmark = pytest.mark.compiled
SCALE = elastic.Scale(2, 2, (elastic.BatchStatistics(0.5, 1.0, 10, 2),))
KIND = StructType([StructField("n", LongType())])


def test_a_commit_is_read_as_it_was_written(tmp_path: Path) -> None:
    files, kind = Checkpoint(str(tmp_path)), StructType([StructField("n", LongType())])
    manifest = Manifest(-1, "name", "types", (), {-1: "token"})
    state = KeyedState(batch=4, watermark=9, late=8, manifest=manifest, key=kind, state=kind, n_workers=2, names=("n",))
    commit = Commit(state=state, scale=SCALE, record={"rows": 3})
    commit.write(files, 4)
    assert read_commit(files, 4, KeyedState.from_json) == commit
    content = files.read("commits/4.json")
    del content["state"]["names"], content["state"]["late"]
    older = KeyedState.from_json(content["state"])
    assert (older.names, older.late) == (("n",), 9)


def test_all_commits_that_are_kept_have_their_files(tmp_path: Path) -> None:
    files = Checkpoint(str(tmp_path))
    store = store_of(files, StructType([StructField("k", StringType())]), KIND)
    assert (store.key, store.state) == (pa.schema({"k": pa.string()}), pa.schema({"n": pa.int64()}))
    written = [Manifest.empty(store)]
    for batch in range(3):
        written.append(write_states(store, written[-1], RoutingTable.hashed(1), batch, {"a": batch}))
        state = KeyedState(
            batch=batch, watermark=0, late=0, manifest=written[-1], key=KIND, state=KIND, n_workers=1, names=("n",)
        )
        Commit(state=state, scale=None, record={}).write(files, batch)
    files.forget("commits", [0], ".json")
    assert manifests(files) == written[2:]
