"""Every key has the state that a dict would have, wherever it moves and whatever breaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skewless import RoutingTable
from skewless.store import (
    Manifest,
    Receipt,
    Share,
    StateStore,
    Tally,
    discard,
    entries,
    merge,
    open_hot_copy,
    sweep,
)
from tests.faults.harm import damage
from tests.store.states import KEY, STATE, by_key, changed, filled, hashes, owned, positions, tables, text

ACTIONS = ("batch", "batch", "batch", "move", "merge", "sweep", "discard", "lose", "elsewhere", "attempt", "behind")
KEYS = 30


@pytest.mark.usefixtures("many")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_key_has_the_state_that_a_dict_has(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Batches, moves, rescales, merges, lost copies, other machines, failed attempts, workers that pause."""
    root = tmp_path_factory.mktemp("store")
    store = StateStore(str(root / "durable"), KEY, STATE)
    manifest, table, machine, paused = Manifest.empty(store), tables(data.draw, KEYS), 0, -1
    oracle: dict[int, tuple[int | None, int | None]] = {}
    history = {manifest.version: dict(oracle)}
    kept = [manifest]
    for action in [*data.draw(st.lists(st.sampled_from(ACTIONS), max_size=14)), "batch"]:
        if action == "move":
            table = tables(data.draw, KEYS)
        elif action == "merge" and manifest.segments:
            start = data.draw(st.integers(0, len(manifest.segments) - 1))
            some = manifest.segments[start : data.draw(st.integers(start + 1, len(manifest.segments)))]
            shares = [Share.of(table, worker) for worker in range(table.n_workers)]
            receipts = [merge(store, some, share, worker) for worker, share in enumerate(shares)]
            manifest = Manifest.from_json(manifest.merged(store, some, receipts).to_json())
            kept.append(manifest)
        elif action == "sweep":
            kept = [manifest]
            sweep(store, kept)
            assert sweep(store, kept) == []
        elif action == "discard":
            discard(store, manifest.version + 1)
            assert discard(store, manifest.version + 1) == []
        elif action == "lose":
            kind = data.draw(st.sampled_from(["sqlite", "arrow"]))
            for path in (root / str(machine)).glob(f"*.{kind}"):
                damage(path, "missing")
        elif action == "elsewhere":
            machine = data.draw(st.integers(0, 2))
        elif action == "behind":
            paused = data.draw(st.integers(-1, 3))
        else:
            tasks = [worker for worker in range(table.n_workers) if action == "batch" or worker == 0]
            change = data.draw(st.dictionaries(st.integers(0, KEYS - 1), CHANGE, max_size=8))
            receipts = []
            for worker in tasks:
                share = Share.of(table, worker)
                mine = owned(share, list(range(KEYS)))
                where = root / (f"other {worker}" if worker == paused else str(machine))
                with open_hot_copy(where, worker, store, manifest, share) as copy:
                    assert by_key(copy.entries()) == {key: oracle[key] for key in mine if key in oracle}
                    asked = copy.get(positions(mine), text(store, mine))
                    assert [entry and by_key([entry])[key] for key, entry in zip(mine, asked, strict=True)] == [
                        oracle.get(key) for key in mine
                    ]
                    late = {key for key in mine if key in oracle and (oracle[key][1] or 10) <= 5}
                    assert by_key(copy.expired(5)).keys() == late
                    rows = changed(store, {key: change[key] for key in mine if key in change})
                    receipt = store.write(rows, share, manifest.version + 1, worker)
                    receipts.append(Receipt.from_bytes(receipt.to_bytes()))
            if action == "batch":
                manifest = Manifest.from_json(manifest.committed(store, manifest.version + 1, receipts).to_json())
                oracle = {key: value for key, value in {**oracle, **change}.items() if value != (None, None)}
                history[manifest.version] = dict(oracle)
                kept.append(manifest)
    for manifest in kept:
        rows = entries(store, manifest, Share.whole())
        found = {
            row["key"]["k"]: (row["state"] and row["state"]["n"], row["timeout"])
            for row in rows.select(["key", "state", "timeout"]).to_pylist()
        }
        assert found == history[manifest.version]


CHANGE = st.tuples(st.none() | st.integers(1, 5), st.none() | st.integers(1, 9))


def test_a_move_reads_what_moved_and_nothing_else(tmp_path: Path) -> None:
    """One host of 64 moves, then one hot key: only their blocks are read."""
    store, n_keys = StateStore(str(tmp_path / "durable"), KEY, STATE), 2000
    table = RoutingTable.hashed(2)
    manifest = filled(store, table, n_keys)
    everything = manifest.segments[0].bytes + manifest.segments[1].bytes
    tally = Tally()
    with open_hot_copy(tmp_path / "hot", 0, store, manifest, Share.of(table, 0), tally):
        assert 0.4 < tally.bytes / everything < 0.6
    tally = Tally()
    with open_hot_copy(tmp_path / "hot", 0, store, manifest, Share.of(table, 0), tally):
        assert tally == Tally(), "nothing is read twice"
    hosts = table.hosts.copy()
    hosts[100] = 0
    moved = RoutingTable(2, hosts, table.keys, table.starts, table.workers, table.parts)
    assert table.hosts[100] == 1
    with open_hot_copy(tmp_path / "hot", 0, store, manifest, Share.of(moved, 0), tally) as copy:
        assert (tally.files, tally.blocks) == (2, 2)
        assert tally.bytes < everything / 60
        assert len(copy.entries()) == len(owned(Share.of(moved, 0), list(range(n_keys))))
    tally = Tally()
    hot = hashes(
        np.array([next(key for key in range(n_keys) if key not in owned(Share.of(moved, 0), [key]))], np.uint64)
    )
    one = moved.with_hot_keys(hot, np.array([0, 1]), np.array([0]), np.ones(1))
    with open_hot_copy(tmp_path / "hot", 0, store, manifest, Share.of(one, 0), tally):
        assert tally.blocks == 2, "it was among those of its host"
    receipt = [store.write(changed(store, {}), Share.of(one, worker), 2, worker) for worker in range(2)]
    later = manifest.committed(store, 2, receipt)
    tally = Tally()
    with open_hot_copy(tmp_path / "elsewhere", 0, store, later, Share.of(moved, 0)):
        pass
    with open_hot_copy(tmp_path / "elsewhere", 0, store, later, Share.of(one, 0), tally):
        assert tally.blocks == 2, "before the segments are merged, it is in a block of its host"
    merged = later.merged(store, later.segments, [merge(store, later.segments, Share.of(one, w), w) for w in range(2)])
    tally = Tally()
    with open_hot_copy(tmp_path / "third", 0, store, merged, Share.of(moved, 0)):
        pass
    with open_hot_copy(tmp_path / "third", 0, store, merged, Share.of(one, 0), tally):
        assert (tally.blocks, tally.rows) == (1, 2), "hot when it was written, it has a block of its own"
