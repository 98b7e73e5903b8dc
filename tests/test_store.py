"""The keyed store: every key has the state that a dict has, wherever it moves and whatever breaks."""

from __future__ import annotations

import datetime as dt
import math
import subprocess
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skewless import RoutingTable
from skewless.arrays import Keys
from skewless.kernels.place import key_places
from skewless.store import (
    Codec,
    Damaged,
    Entry,
    Manifest,
    Receipt,
    Share,
    Store,
    Tally,
    Values,
    discard,
    entries,
    hotcopy,
    merge,
    opened,
    sweep,
)
from skewless.store.files import load_index
from skewless.store.hotcopy import MANY

KEY = pa.schema({"k": pa.int64()})
STATE = pa.schema({"n": pa.int64()})
EXACT = st.floats(width=32).map(float)
FIELDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), st.integers(-128, 127)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), EXACT),
    "boolean": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=5)),
    "binary": (pa.binary(), st.binary(max_size=5)),
    "decimal": (pa.decimal128(20, 2), st.integers(-(10**19), 10**19).map(lambda n: Decimal(n).scaleb(-2))),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999))),
    "list": (pa.list_(pa.float64()), st.lists(st.none() | st.floats(), max_size=3)),
    "map": (
        pa.map_(pa.string(), pa.binary()),
        st.dictionaries(st.text(max_size=2), st.none() | st.binary(max_size=2), max_size=2),
    ),
    "nested": (
        pa.struct({"a": pa.list_(pa.struct({"b": pa.date32(), "c": pa.string()})), "d": pa.int32()}),
        st.fixed_dictionaries(
            {
                "a": st.none()
                | st.lists(
                    st.fixed_dictionaries({"b": st.none() | st.dates(), "c": st.none() | st.text(max_size=2)}),
                    max_size=2,
                ),
                "d": st.none() | st.integers(-5, 5),
            }
        ),
    ),
}


def exact(value: Any) -> Any:
    """A form in which NaN equals itself, and -0.0 is not 0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    return value


@settings(max_examples=100)
@given(rows=st.lists(st.none() | st.tuples(*(st.none() | values for _, values in FIELDS.values())), max_size=4))
def test_rows_of_any_type_become_text_and_come_back_exactly(rows: list[Values | None]) -> None:
    codec = Codec(pa.schema({name: kind for name, (kind, _) in FIELDS.items()}))
    texts = codec.texts(codec.array(rows))
    assert [text is None for text in texts] == [row is None for row in rows]
    back = iter(codec.values([text for text in texts if text is not None]))
    assert exact([None if text is None else next(back) for text in texts]) == exact(rows)
    again = codec.texts(codec.array(codec.values([text for text in texts if text is not None])))
    assert again == [text for text in texts if text is not None]


def test_keys_that_spark_groups_together_have_one_text() -> None:
    kinds = {"x": pa.float64(), "m": pa.map_(pa.int32(), pa.list_(pa.float32()))}
    codec = Codec(pa.schema(kinds), canonical=True)
    rows = [(0.0, [(1, [0.0]), (2, [])]), (-0.0, [(2, []), (1, [-0.0])])]
    assert len(set(codec.texts(codec.array(rows)))) == 1


def test_types_that_spark_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="no fields of type time32"):
        Codec(pa.schema({"t": pa.time32("s")})).texts(pa.table({"t": pa.array([], pa.time32("s"))}))


# What follows keeps numbers, so that a dict of Python is the oracle.


def hashes(keys: Keys) -> Keys:
    """Hashes for keys; among so few, some meet."""
    return (keys // np.uint64(2)) * np.uint64(0x9E3779B97F4A7C15)


def places(keys: list[int]) -> Keys:
    return key_places(hashes(np.array(keys, np.uint64)))


def text(store: Store, keys: list[int]) -> list[str]:
    return [str(each) for each in store.key_codec.texts(store.key_codec.array([(key,) for key in keys]))]


def tables(draw: Any, keys: int) -> RoutingTable:
    """Some table: any number of workers and hosts, any placing of hosts and hot keys."""
    n_workers = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = RoutingTable.hashed(n_workers).hosts.size << draw(st.integers(0, 2))
    bare = RoutingTable.hashed(n_workers)
    hosts = rng.integers(0, n_workers, size).astype(np.int32)
    hot = np.unique(hashes(rng.integers(0, keys, draw(st.integers(0, 4))).astype(np.uint64)))
    whole = RoutingTable(n_workers, hosts, bare.keys, bare.starts, bare.workers, bare.parts)
    workers = rng.integers(0, n_workers, hot.size).astype(np.int32)
    return whole.placing(hot, np.arange(hot.size + 1), workers, np.ones(hot.size))


def changed(store: Store, changes: Mapping[int, tuple[int | None, int | None]]) -> pa.Table:
    """Changes by key: a state and a timeout."""
    keys = list(changes)
    columns = [
        pa.array(places(keys), pa.uint64()),
        store.key_codec.array([(key,) for key in keys]),
        store.state_codec.array([None if state is None else (state,) for state, _ in changes.values()]),
        pa.array([timeout for _, timeout in changes.values()], pa.int64()),
    ]
    return pa.table(columns, schema=store.schema)


def owned(share: Share, keys: list[int]) -> list[int]:
    return [key for key, mine in zip(keys, share.has(places(keys)).tolist(), strict=True) if mine]


def known(found: list[Entry]) -> dict[int, tuple[int | None, int | None]]:
    return {entry.key[0]: (None if entry.state is None else entry.state[0], entry.timeout) for entry in found}


@given(data=st.data())
def test_shares_are_sets_of_keys(data: st.DataObject) -> None:
    keys = list(range(40))
    old, new = (tables(data.draw, 40) for _ in range(2))
    mine = [set(owned(Share.of(old, worker), keys)) for worker in range(old.n_workers)]
    assert sorted(key for some in mine for key in some) == keys, "each key has one worker"
    routed = old.route(hashes(np.array(keys, np.uint64))).tolist()
    assert all(key in mine[worker] for key, worker in zip(keys, routed, strict=True)), "as the table routes"
    one, other = Share.of(old, 0), Share.of(new, 0)
    others = set(owned(other, keys))
    assert set(owned(one.without(other), keys)) == mine[0] - others
    assert set(owned(one.within(other), keys)) == mine[0] & others
    assert one.without(one).is_empty
    assert set(owned(Share.from_json(one.to_json()), keys)) == mine[0]
    assert [owned(Share.whole(some), keys) for some in (True, False)] == [keys, []]


def test_a_split_key_has_no_share() -> None:
    table = RoutingTable.hashed(2).placing(np.array([7], np.uint64), np.array([0, 2]), np.array([0, 1]), np.ones(2))
    with pytest.raises(ValueError, match="splits keys"):
        Share.of(table, 0)


ACTIONS = ("batch", "batch", "batch", "move", "merge", "sweep", "discard", "lose", "elsewhere", "attempt", "behind")
KEYS = 30


@pytest.fixture(params=[1, 4, MANY])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many states come at once that are left in a file: all of them, some, and none in small tests."""
    monkeypatch.setattr(hotcopy, "MANY", request.param)


@pytest.mark.usefixtures("many")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_key_has_the_state_that_a_dict_has(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Batches, moves, rescales, merges, lost copies, other machines, failed attempts, workers that pause."""
    root = tmp_path_factory.mktemp("store")
    store = Store(str(root / "durable"), KEY, STATE)
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
                path.unlink()
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
                with opened(where, worker, store, manifest, share) as copy:
                    assert known(copy.entries()) == {key: oracle[key] for key in mine if key in oracle}
                    asked = copy.get(places(mine), text(store, mine))
                    assert [entry and known([entry])[key] for key, entry in zip(mine, asked, strict=True)] == [
                        oracle.get(key) for key in mine
                    ]
                    late = {key for key in mine if key in oracle and (oracle[key][1] or 10) <= 5}
                    assert known(copy.expired(5)).keys() == late
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


def filled(store: Store, table: RoutingTable, n_keys: int) -> Manifest:
    """A state for each of so many keys, merged."""
    manifest = Manifest.empty(store)
    for version, start in enumerate((0, n_keys // 2)):
        receipts = []
        for worker in range(table.n_workers):
            share = Share.of(table, worker)
            mine = owned(share, list(range(start, n_keys)))
            receipts.append(store.write(changed(store, dict.fromkeys(mine, (1, None))), share, version, worker))
        manifest = manifest.committed(store, version, receipts)
    return manifest


def test_a_move_reads_what_moved_and_nothing_else(tmp_path: Path) -> None:
    """One host of 64 moves, then one hot key: only their blocks are read."""
    store, n_keys = Store(str(tmp_path / "durable"), KEY, STATE), 2000
    table = RoutingTable.hashed(2)
    manifest = filled(store, table, n_keys)
    everything = manifest.segments[0].bytes + manifest.segments[1].bytes
    tally = Tally()
    with opened(tmp_path / "hot", 0, store, manifest, Share.of(table, 0), tally):
        assert 0.4 < tally.bytes / everything < 0.6
    tally = Tally()
    with opened(tmp_path / "hot", 0, store, manifest, Share.of(table, 0), tally):
        assert tally == Tally(), "nothing is read twice"
    hosts = table.hosts.copy()
    hosts[100] = 0
    moved = RoutingTable(2, hosts, table.keys, table.starts, table.workers, table.parts)
    assert table.hosts[100] == 1
    with opened(tmp_path / "hot", 0, store, manifest, Share.of(moved, 0), tally) as copy:
        assert (tally.files, tally.blocks) == (2, 2)
        assert tally.bytes < everything / 60
        assert len(copy.entries()) == len(owned(Share.of(moved, 0), list(range(n_keys))))
    tally = Tally()
    hot = hashes(
        np.array([next(key for key in range(n_keys) if key not in owned(Share.of(moved, 0), [key]))], np.uint64)
    )
    one = moved.placing(hot, np.array([0, 1]), np.array([0]), np.ones(1))
    with opened(tmp_path / "hot", 0, store, manifest, Share.of(one, 0), tally):
        assert tally.blocks == 2, "it was among those of its host"
    receipt = [store.write(changed(store, {}), Share.of(one, worker), 2, worker) for worker in range(2)]
    later = manifest.committed(store, 2, receipt)
    tally = Tally()
    with opened(tmp_path / "elsewhere", 0, store, later, Share.of(moved, 0), tally):
        pass
    with opened(tmp_path / "elsewhere", 0, store, later, Share.of(one, 0), tally):
        before = tally.blocks
    merged = later.merged(store, later.segments, [merge(store, later.segments, Share.of(one, w), w) for w in range(2)])
    tally = Tally()
    with opened(tmp_path / "third", 0, store, merged, Share.of(moved, 0)):
        pass
    with opened(tmp_path / "third", 0, store, merged, Share.of(one, 0), tally):
        assert (tally.blocks, tally.rows) == (1, 2), "hot when it was written, it has a block of its own"
    assert before > 0


def test_segments_stay_few_and_files_do_not_pile_up(tmp_path: Path) -> None:
    store, table = Store(str(tmp_path), KEY, STATE), RoutingTable.hashed(1)
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


@pytest.mark.parametrize("kind", ["changes", "index"])
@pytest.mark.parametrize("harm", ["flipped", "cut", "missing"])
def test_damaged_durable_files_are_named(tmp_path: Path, kind: str, harm: str) -> None:
    store, table = Store(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    manifest = filled(store, table, 50)
    (path, *_) = sorted((tmp_path / "durable").glob(f"{kind}-*"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(content if harm == "flipped" else content[: len(content) // 2])
    load_index.cache_clear()
    with pytest.raises(Damaged, match=path.name), opened(tmp_path / "hot", 0, store, manifest, Share.of(table, 0)):
        pass


@pytest.mark.parametrize("kind", ["sqlite", "arrow"])
@pytest.mark.parametrize("harm", ["rubbish", "cut", "zeros", "empty", "another history", "another type"])
def test_a_damaged_hot_copy_is_built_anew(
    tmp_path: Path, harm: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "sqlite":
        monkeypatch.setattr(hotcopy, "MANY", 10_000)
    store, table = Store(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    share = Share.of(table, 0)
    manifest = filled(store, table, 2000)
    if harm == "another history":
        other = Store(str(tmp_path / "other"), KEY, STATE)
        with opened(tmp_path, 0, other, filled(other, table, 5), share):
            pass
    elif harm == "another type":
        other = Store(str(tmp_path / "durable"), KEY, pa.schema({"n": pa.string()}))
        with opened(tmp_path, 0, other, Manifest.empty(other), share):
            pass
    else:
        with opened(tmp_path, 0, store, manifest, share):
            pass
    if harm.startswith("another"):
        kind = "sqlite"  # these have little, or nothing
    (path,) = tmp_path.glob(f"*.{kind}")
    content = path.read_bytes()
    middle = len(content) // 2
    if harm == "rubbish":
        path.write_bytes(b"rubbish" * 1000)
    elif harm == "cut":
        path.write_bytes(content[:middle])
    elif harm == "zeros":
        path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    elif harm == "empty":
        path.write_bytes(b"")
    with opened(tmp_path, 0, store, manifest, share) as copy:
        assert known(copy.entries()) == dict.fromkeys(range(2000), (1, None))
        assert len([entry for entry in copy.get(places([5, 6]), text(store, [5, 6])) if entry]) == 2


def test_a_removal_outlasts_a_merge_that_leaves_out_the_snapshot(tmp_path: Path) -> None:
    store, table = Store(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    share, manifest = Share.of(table, 0), filled(store, table, 10)
    for version, change in ((2, {3: (None, None)}), (3, {4: (5, None)})):
        manifest = manifest.committed(store, version, [store.write(changed(store, change), share, version, 0)])
    some = manifest.segments[1:]
    merged = manifest.merged(store, some, [merge(store, some, share, 0)])
    with opened(tmp_path, 0, store, merged, share) as copy:
        assert sorted(known(copy.entries())) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    whole = merged.merged(store, merged.segments, [merge(store, merged.segments, share, 0)])
    assert whole.segments[0].rows == 9, "a snapshot has no removals"


def test_a_copy_forgets_keys_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that came with many others: of these it has to know that they are gone."""
    monkeypatch.setattr(hotcopy, "MANY", 5)
    store, table = Store(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    share, manifest = Share.of(table, 0), filled(store, table, 10)
    came: dict[int, tuple[int | None, int | None]] = dict.fromkeys(range(100, 150), (1, None))
    went: dict[int, tuple[int | None, int | None]] = dict.fromkeys([3, *came], (None, None))
    for version, change in enumerate((came, went), start=2):
        with opened(tmp_path, 0, store, manifest, share):
            pass
        receipt = store.write(changed(store, change), share, version, 0)
        manifest = manifest.committed(store, version, [receipt])
    with opened(tmp_path, 0, store, manifest, share) as copy:
        assert sorted(known(copy.entries())) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert copy._db.execute("select count(*) from state").fetchone() == (1,)


def test_two_attempts_at_once_have_a_database_each(tmp_path: Path) -> None:
    store, table = Store(str(tmp_path / "durable"), KEY, STATE), RoutingTable.hashed(1)
    manifest, share = filled(store, table, 20), Share.of(table, 0)
    with opened(tmp_path, 0, store, manifest, share) as one, opened(tmp_path, 0, store, manifest, share) as two:
        assert one.path != two.path
        assert known(one.entries()) == known(two.entries()) == dict.fromkeys(range(20), (1, None))


def test_what_a_store_refuses(tmp_path: Path) -> None:
    store, table = Store(str(tmp_path), KEY, STATE), RoutingTable.hashed(2)
    shares = [Share.of(table, worker) for worker in range(2)]
    (key,) = owned(shares[1], list(range(10)))[:1]
    with pytest.raises(ValueError, match="does not answer for"):
        store.write(changed(store, {key: (1, None)}), shares[0], 0, 0)
    manifest = filled(store, table, 5)
    with pytest.raises(ValueError, match="version 1 does not come after version 1"):
        manifest.committed(store, 1, [])
    other = Store(str(tmp_path), KEY, pa.schema({"n": pa.string()}))
    with pytest.raises(ValueError, match="written with key struct<k: int64>, state struct<n: int64>; now there is"):
        entries(other, manifest, Share.whole())
    with pytest.raises(ValueError, match="has format 9"):
        Manifest.from_json(manifest.to_json().replace('"format":2', '"format":9'))
    with pytest.raises(ValueError, match="not a manifest"):
        Manifest.from_json("[]")


@pytest.mark.parametrize("many", [1, MANY])
def test_a_task_may_be_killed_at_any_line(tmp_path: Path, many: int) -> None:
    """SIGKILL, at lines from the first to the last of a task, while half of the keys come and go."""
    program = [sys.executable, "-m", "tests.store_crash", str(tmp_path), "37", str(many)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    kills, ends = map(int, done.stdout.split())
    assert kills > 40
    assert ends > 0
