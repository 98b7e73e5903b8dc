"""Durable files of the state are checked when they are read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from skewless import RoutingTable
from skewless.store import (
    Damaged,
    Manifest,
    Share,
    StateStore,
    entries,
    open_hot_copy,
)
from skewless.store.files import load_index
from tests.faults.harm import Harm, damage
from tests.store.states import KEY, STATE, changed, filled, owned


@pytest.mark.parametrize("kind", ["changes", "index"])
@pytest.mark.parametrize("harm", ["flipped", "cut", "missing"])
def test_damaged_durable_files_are_named(tmp_path: Path, kind: str, harm: Harm) -> None:
    store, table = StateStore(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    manifest = filled(store, table, 50)
    (path, *_) = sorted((tmp_path / "durable").glob(f"{kind}-*"))
    damage(path, harm)
    load_index.cache_clear()
    share = Share.of(table, 0)
    with pytest.raises(Damaged, match=path.name), open_hot_copy(tmp_path / "hot", 0, store, manifest, share):
        pass


def test_what_a_store_refuses(tmp_path: Path) -> None:
    store, table = StateStore(str(tmp_path), KEY, STATE), RoutingTable.hashed(2)
    shares = [Share.of(table, worker) for worker in range(2)]
    (key,) = owned(shares[1], list(range(10)))[:1]
    with pytest.raises(ValueError, match="belong to other workers"):
        store.write(changed(store, {key: (1, None)}), shares[0], 0, 0)
    manifest = filled(store, table, 5)
    with pytest.raises(ValueError, match="version 1 cannot be committed after version 1"):
        manifest.committed(store, 1, [])
    other = StateStore(str(tmp_path), KEY, pa.schema({"n": pa.string()}))
    with pytest.raises(ValueError, match="written with key struct<k: int64>, state struct<n: int64>, and cannot"):
        entries(other, manifest, Share.whole())
    with pytest.raises(ValueError, match="has format 9"):
        Manifest.from_json(manifest.to_json().replace('"format":2', '"format":9'))
    with pytest.raises(ValueError, match="not a manifest"):
        Manifest.from_json("[]")
