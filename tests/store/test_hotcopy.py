"""The hot copy is rebuilt when it is damaged, and forgets what is gone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from skewless import RoutingTable
from skewless.store import (
    Manifest,
    Share,
    StateStore,
    hotcopy,
    merge,
    open_hot_copy,
)
from tests.faults.harm import Harm, damage
from tests.store.states import KEY, STATE, by_key, changed, filled, positions, text


@pytest.mark.parametrize("kind", ["sqlite", "arrow"])
@pytest.mark.parametrize("harm", ["rubbish", "cut", "zeros", "empty"])
def test_a_damaged_hot_copy_is_built_anew(
    tmp_path: Path, harm: Harm, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "sqlite":
        monkeypatch.setattr(hotcopy, "MANY", 10_000)
    store, table = StateStore(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    share, manifest = Share.of(table, 0), filled(store, table, 2000)
    with open_hot_copy(tmp_path, 0, store, manifest, share):
        pass
    (path,) = tmp_path.glob(f"*.{kind}")
    damage(path, harm)
    check_hot_copy(tmp_path, store, manifest, share)


@pytest.mark.parametrize("other", ["history", "type"])
def test_the_hot_copy_of_another_store_is_built_anew(tmp_path: Path, other: str) -> None:
    store, table = StateStore(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    share, manifest = Share.of(table, 0), filled(store, table, 2000)
    if other == "history":
        before = StateStore(str(tmp_path / "other"), KEY, STATE)
        of_before = filled(before, table, 5)
    else:
        before = StateStore(str(tmp_path / "durable"), KEY, pa.schema({"n": pa.string()}))
        of_before = Manifest.empty(before)
    with open_hot_copy(tmp_path, 0, before, of_before, share):
        pass
    check_hot_copy(tmp_path, store, manifest, share)


def check_hot_copy(directory: Path, store: StateStore, manifest: Manifest, share: Share) -> None:
    """Checks that the hot copy in a directory has the 2000 states of `filled`."""
    with open_hot_copy(directory, 0, store, manifest, share) as copy:
        assert by_key(copy.entries()) == dict.fromkeys(range(2000), (1, None))
        assert len([entry for entry in copy.get(positions([5, 6]), text(store, [5, 6])) if entry]) == 2


def test_a_removal_outlasts_a_merge_that_leaves_out_the_snapshot(tmp_path: Path) -> None:
    store, table = StateStore(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    share, manifest = Share.of(table, 0), filled(store, table, 10)
    for version, change in ((2, {3: (None, None)}), (3, {4: (5, None)})):
        manifest = manifest.committed(store, version, [store.write(changed(store, change), share, version, 0)])
    some = manifest.segments[1:]
    merged = manifest.merged(store, some, [merge(store, some, share, 0)])
    with open_hot_copy(tmp_path, 0, store, merged, share) as copy:
        assert sorted(by_key(copy.entries())) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    whole = merged.merged(store, merged.segments, [merge(store, merged.segments, share, 0)])
    assert whole.segments[0].rows == 9, "a snapshot has no removals"


def test_a_copy_forgets_keys_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except keys that came with many others and are still in that file: the copy must mark these as removed."""
    monkeypatch.setattr(hotcopy, "MANY", 5)
    store, table = StateStore(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    share, manifest = Share.of(table, 0), filled(store, table, 10)
    came: dict[int, tuple[int | None, int | None]] = dict.fromkeys(range(100, 150), (1, None))
    went: dict[int, tuple[int | None, int | None]] = dict.fromkeys([3, *came], (None, None))
    for version, change in enumerate((came, went), start=2):
        with open_hot_copy(tmp_path, 0, store, manifest, share):
            pass
        receipt = store.write(changed(store, change), share, version, 0)
        manifest = manifest.committed(store, version, [receipt])
    with open_hot_copy(tmp_path, 0, store, manifest, share) as copy:
        assert sorted(by_key(copy.entries())) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert copy._db.execute("select count(*) from state").fetchone() == (1,)


def test_two_attempts_at_once_have_a_database_each(tmp_path: Path) -> None:
    store, table = StateStore(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    manifest, share = filled(store, table, 20), Share.of(table, 0)
    attempts = [open_hot_copy(tmp_path, 0, store, manifest, share) for _ in range(2)]
    with attempts[0] as one, attempts[1] as two:
        assert one.path != two.path
        assert by_key(one.entries()) == by_key(two.entries()) == dict.fromkeys(range(20), (1, None))
