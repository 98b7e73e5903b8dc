"""Segments stay few, and files do not pile up."""

from __future__ import annotations

from pathlib import Path

from skewless import RoutingTable
from skewless.store import (
    Manifest,
    Share,
    StateStore,
    entries,
    merge,
    sweep,
)
from tests.store.states import KEY, STATE, changed


def test_segments_stay_few_and_files_do_not_pile_up(tmp_path: Path) -> None:
    store, table = StateStore(str(tmp_path), KEY, STATE), RoutingTable.hashed(1)
    share, manifest, most, written = Share.of(table, 0), Manifest.empty(store), 0, 0
    for version in range(300):
        changes = {(version * 7 + key) % 900: (version, None) for key in range(20)}
        manifest = manifest.committed(store, version, [store.write(changed(store, changes), share, version, 0)])
        if some := manifest.due():
            manifest = manifest.merged(store, some, [merge(store, some, share, 0)])
            written += sum(segment.rows for segment in some)
            sweep(store, [manifest])
        most = max(most, len(manifest.segments), len(list(tmp_path.glob("*.arrow"))) // 2)
    assert most <= 20
    assert len(manifest.to_json()) < 20_000
    assert written < 300 * 20 * 8, "each row is written again a few times"
    assert entries(store, manifest, share).num_rows == 900
