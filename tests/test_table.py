"""A routing table keeps its laws: whole or weighted keys, the same decision everywhere, moves that name what moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from skewless import Keys, partitioner, streams
from skewless.coordinate import exchange
from skewless.histogram import Histogram
from skewless.kernels.hash import spark_hash
from skewless.kernels.place import hosts_at, key_place, key_places, keys_at
from skewless.metrics import imbalance_ratio
from skewless.moves import Moving, arriving, moves, worth_it
from skewless.partitioners import ALL
from skewless.table import WHOLE, RoutingTable
from tests import oracles
from tests.conftest import COMPILED

PLACES = st.dictionaries(
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.integers(0, 99), st.floats(0.01, 10), min_size=1, max_size=5),
    max_size=8,
)


def table_of(places: dict[int, dict[int, float]], n_workers: int, hosts_seed: int = 0) -> RoutingTable:
    """These hot keys, and hosts anywhere."""
    plain = RoutingTable.hashed(n_workers)
    hosts = np.random.default_rng(hosts_seed).integers(0, n_workers, plain.hosts.size).astype(np.int32)
    bare = RoutingTable(n_workers, hosts, plain.keys, plain.starts, plain.workers, plain.parts)
    places = {key: {worker % n_workers: weight for worker, weight in at.items()} for key, at in places.items()}
    starts = np.cumsum([0, *(len(at) for at in places.values())])
    workers = np.array([worker for at in places.values() for worker in at], np.int32)
    weights = np.array([weight for at in places.values() for weight in at.values()])
    return bare.placing(np.array([*places], np.uint64), starts, workers, weights)


@given(st.integers(0, 2**64 - 1))
def test_spark_hash_is_xxhash64(x: int) -> None:
    assert int(spark_hash(np.uint64(x))) == xxhash.xxh64_intdigest(x.to_bytes(8, "little"), 42)


@given(st.integers(0, 2**64 - 1), st.integers(0, 32))
def test_every_key_has_a_place_of_its_own_and_hosts_are_its_leading_bits(x: int, bits: int) -> None:
    place = key_places(np.array([x], np.uint64))
    assert keys_at(place).tolist() == [x]
    assert int(key_place(np.uint64(x))) == int(place[0])
    assert hosts_at(place, 2**bits).tolist() == [int(place[0]) >> (64 - bits)] == [oracles.host_of(x, 2**bits)]


@pytest.mark.parametrize("n_workers", [3, 16, 100, 1000])
def test_keys_that_are_no_hashes_are_spread_as_well(n_workers: int) -> None:
    """Numbers in a row, with gaps, in either half, in both, and as floating point has them: at most twice the mean."""
    numbers = np.arange(50 * n_workers, dtype=np.uint64)
    for keys in (
        numbers,
        numbers * np.uint64(16),
        numbers * np.uint64(1000),
        numbers << np.uint64(32),
        numbers << np.uint64(32) | np.uint64(7),
        numbers << np.uint64(32) | numbers,
        numbers << np.uint64(32) | numbers[::-1],
        numbers // np.uint64(50) << np.uint64(32) | numbers % np.uint64(50),
        numbers.astype(np.float64).view(np.uint64),
    ):
        counts = np.bincount(RoutingTable.hashed(n_workers).route(keys), minlength=n_workers)
        assert counts.max() <= 100


@given(PLACES, st.sampled_from([1, 3, 16, 100]))
def test_weights_sum_to_one_and_say_what_was_asked(places: dict[int, dict[int, float]], n_workers: int) -> None:
    table = table_of(places, n_workers)
    for key, at in places.items():
        wanted = {worker % n_workers: weight for worker, weight in at.items()}
        found = table.places(key)
        assert sum(found.values()) == 1
        assert found == pytest.approx({w: weight / sum(wanted.values()) for w, weight in wanted.items()}, abs=1e-8)
    assert table.splits_keys == any(len({w % n_workers for w in at}) > 1 for at in places.values())


def slow_route(table: RoutingTable, key: int) -> set[int]:
    """Where a row may go: its host's worker, or any worker of its hot key."""
    at = np.flatnonzero(table.keys == np.uint64(key))
    if not at.size:
        return {int(table.hosts[oracles.host_of(key, table.hosts.size)])}
    return set(table.workers[table.starts[at[0]] : table.starts[at[0] + 1]].tolist())


@given(PLACES, st.lists(st.integers(0, 2**64 - 1), max_size=30))
def test_rows_go_to_a_worker_of_their_key(places: dict[int, dict[int, float]], others: list[int]) -> None:
    table = table_of(places, 16)
    rows = [*places, *others] * 3
    workers = table.route(np.array(rows, np.uint64))
    assert all(int(worker) in slow_route(table, key) for key, worker in zip(rows, workers, strict=True))
    again = RoutingTable.from_json(table.to_json())
    assert np.array_equal(again.route(np.array(rows, np.uint64)), workers)
    assert again.to_json() == table.to_json()


@pytest.mark.compiled
def test_a_split_key_follows_its_weights_even_if_its_rows_are_periodic() -> None:
    table = table_of({5: {0: 1, 3: 2, 7: 5, 9: 0.01}}, 16)
    for stride in (1, 4, 16, 1000):
        ordinals = np.arange(0, 400_000 * stride, stride, dtype=np.uint64)
        found = np.bincount(table.route(np.full(400_000, 5, np.uint64), ordinals), minlength=16) / 400_000
        expected = np.array([table.places(5).get(worker, 0.0) for worker in range(16)])
        assert np.abs(found - expected).max() < 5 * np.sqrt(0.25 / 400_000)


@given(PLACES, PLACES, st.integers(0, 2), st.integers(0, 2))
def test_moves_name_what_moves_and_no_more(
    first: dict[int, dict[int, float]], second: dict[int, dict[int, float]], one: int, other: int
) -> None:
    old, new = table_of(first, 8, one), table_of({**first, **second}, 8, other)
    found = moves(old, new)
    named = set(found.keys.tolist())
    for key in {*first, *second}:
        assert (key in named) == (old.places(key) != new.places(key))
    assert found.hosts.tolist() == np.flatnonzero(old.hosts != new.hosts).tolist()
    tail = np.setdiff1d(np.arange(2000, dtype=np.uint64), np.union1d(old.keys, new.keys))
    moved = np.isin(new.host_of(tail), found.hosts)
    assert np.array_equal(old.route(tail) != new.route(tail), moved)
    assert not moves(old, old).keys.size
    assert moves(old, old).mass == 0


def test_the_mass_that_moves() -> None:
    old, new = table_of({1: {0: 1}, 2: {0: 1}}, 4), table_of({1: {0: 3, 1: 1}, 2: {0: 1}}, 4)
    occurring = Histogram(np.array([1, 2], np.uint64), np.array([40.0, 10.0]), rest=50.0)
    assert moves(old, new, occurring).mass == pytest.approx(0.4 * 0.25)
    assert arriving(old, new, occurring).tolist() == pytest.approx([0, 10, 0, 0])
    everything = RoutingTable(4, (old.hosts + 1) % 4, new.keys, new.starts, new.workers, new.parts)
    assert moves(old, everything, occurring).mass == pytest.approx(0.4 * 0.25 + 0.5)


def test_a_plan_is_worth_it_when_it_gains_more_than_it_moves() -> None:
    """40 of 100 tuples on worker 0 become 30, over and over; 10 tuples of state move, once."""
    old, new = table_of({1: {0: 1}, 2: {1: 1}}, 4), table_of({1: {0: 3, 1: 1}, 2: {1: 1}}, 4)
    occurring = Histogram(np.array([1, 2], np.uint64), np.array([40.0, 10.0]))
    verdict = worth_it(old, new, occurring, Moving(batches=1, state=1, cost=0.5))
    assert verdict.worth
    assert [verdict.gain, verdict.cost] == pytest.approx([10, 5])
    assert not worth_it(old, new, occurring, Moving(batches=2, state=5)).worth
    assert not worth_it(old, old, occurring).worth
    with pytest.raises(ValueError, match="state is 0 or more, not -1"):
        Moving(state=-1)


def test_loads_are_what_routing_gives() -> None:
    keys = streams.zipf(200_000, 1000, 1.2)
    table = RoutingTable.distill(keys, partitioner("pkg", 8).route(keys), 8)
    distinct, counts = np.unique(keys, return_counts=True)
    expected = table.loads(distinct, counts.astype(np.float64))
    assert expected.sum() == pytest.approx(200_000)
    assert np.bincount(table.route(keys), minlength=8) == pytest.approx(expected, rel=0.02)
    assert table.loads(distinct[:0], np.empty(0), rest=80.0) == pytest.approx(table.spread(80.0))


@pytest.mark.parametrize(("old", "new"), [(8, 32), (32, 8), (8, 9), (9, 8), (3, 100), (5, 5)])
def test_resizing_moves_little_and_stays_even(old: int, new: int) -> None:
    keys, starts, workers = np.array([1, 2], np.uint64), np.array([0, 1, 3]), np.array([old - 1, 0, old - 1], np.int32)
    before = RoutingTable.hashed(old).placing(keys, starts, workers, np.ones(3))
    after = before.resized(new)
    counts = np.bincount(after.hosts, minlength=new)
    assert after.n_workers == new
    assert counts.max() <= 1.25 * counts.mean() + 2
    changed = moves(before, after)
    # The least that any even placement must move: what the new workers get, or what those who go had.
    assert changed.mass <= abs(1 - min(old, new) / max(old, new)) + 2 * max(old, new) / after.hosts.size
    assert set(changed.keys.tolist()) == ({1, 2} if new < old else set())
    came_from = before.hosts.repeat(after.hosts.size // before.hosts.size)
    former = [set(came_from[after.hosts == worker].tolist()) - {worker} for worker in range(new)]
    givers, takers = (old, new - old) if new > old else (old - new, new)
    assert max(map(len, former)) <= givers // max(takers, 1) + 2, "each gets hosts of few others"


@pytest.mark.compiled
@pytest.mark.parametrize(("new", "ratio"), [(16, 1.0), (20, 1.3), (32, 1.3), (12, 1.3)])
def test_resizing_keeps_what_was_planned(new: int, ratio: float) -> None:
    """Hosts are uneven in number on purpose, where hot keys take room: a resize must not even them out."""
    keys = streams.zipf(500_000, 50_000, 0.8)
    before = partitioner("pkg", 16).table(keys)
    after = before.resized(new)
    elsewhere = (before.route(keys) != after.route(keys)).mean()
    assert elsewhere <= abs(1 - min(new, 16) / max(new, 16)) + 0.01
    load = [np.bincount(table.route(keys), minlength=n) for table, n in ((before, 16), (after, new))]
    assert imbalance_ratio(load[1]) <= ratio * imbalance_ratio(load[0])


def test_large_tables() -> None:
    n_workers, n_keys = (20_000, 3000) if COMPILED else (200, 300)
    keys = np.sort(streams.as_keys(np.arange(n_keys)))
    starts = np.arange(0, 4 * n_keys + 1, 4)
    workers = (np.arange(4 * n_keys) * 7 % n_workers).astype(np.int32)
    table = RoutingTable.hashed(n_workers).placing(keys, starts, workers, np.ones(4 * n_keys))
    assert set(table.route(keys).tolist()) <= set(workers.tolist())
    for i, key in enumerate(keys[:50].tolist()):
        assert table.places(key) == dict.fromkeys(workers[4 * i : 4 * i + 4].tolist(), 0.25)
    assert f"{n_keys:,} hot keys in {4 * n_keys:,} fragments" in table.describe()


def test_saved_and_loaded(tmp_path: Path) -> None:
    table = table_of({2**64 - 1: {1: 1, 2: 2}}, 4)
    table.save(tmp_path / "table.json")
    assert RoutingTable.load(tmp_path / "table.json").to_json() == table.to_json()
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]
    with pytest.raises(ValueError, match="this is not a routing table"):
        RoutingTable.from_json("[1, 2]")
    with pytest.raises(ValueError, match="has format 3; this version of skewless reads 2"):
        RoutingTable.from_json(table.to_json().replace('"format":2', '"format":3'))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_workers": 0}, "n_workers is between 1"),
        ({"n_workers": 5}, "5 workers need at least 320 hosts, not 256"),
        ({"n_workers": 3}, "numbered from 0 to 2"),
        ({"hosts": np.zeros(300, np.int32)}, "a power of two, not 300"),
        ({"parts": np.array([1, 2])}, f"sum to {WHOLE}"),
        ({"keys": np.array([2, 2], np.uint64), "starts": np.array([0, 1, 2])}, "ascending and distinct"),
        ({"starts": np.array([0, 1])}, "every hot key has a worker"),
        ({"workers": np.array([3, 3], np.int32)}, "the workers of a hot key are distinct"),
    ],
)
def test_a_bad_table_is_refused(changes: dict[str, Any], sentence: str) -> None:
    good = table_of({1: {0: 1, 3: 1}}, 4)
    fields = ("n_workers", "hosts", "keys", "starts", "workers", "parts")
    with pytest.raises(ValueError, match=sentence):
        RoutingTable(**{**{name: getattr(good, name) for name in fields}, **changes})


@pytest.mark.compiled
@pytest.mark.parametrize("n_workers", [16, 64])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("name", [cls.name for cls in ALL])
def test_a_distilled_table_is_nearly_as_good_as_the_partitioner(name: str, exponent: float, n_workers: int) -> None:
    """On the average of four streams: in a single one, what a learner explores may be a tenth more or less."""

    def ratio(workers: Any) -> float:
        return imbalance_ratio(np.bincount(workers, minlength=n_workers))

    found = []
    for seed in range(4):
        sample, rest = np.split(streams.zipf(2_000_000, 100_000, exponent, seed=seed), 2)
        p = partitioner(name, n_workers, seed=seed)
        if p.plans_ahead:
            p.observe(sample)
            exchange([p])
        table = p.table(sample)
        p.route(sample)
        found.append((ratio(table.route(rest)), ratio(p.route(rest))))
        assert p.splits_keys or not table.splits_keys
    by_table, by_partitioner = np.mean(found, axis=0)
    assert by_table <= 1.1 * by_partitioner + 0.02


def test_distilling_nothing_is_hashing() -> None:
    nothing: Keys = np.empty(0, np.uint64)
    table = RoutingTable.distill(nothing, np.empty(0, np.int32), 4)
    assert np.bincount(table.hosts).tolist() == [64, 64, 64, 64]
    with pytest.raises(ValueError, match="workers are numbered from 0 to 3"):
        RoutingTable.distill(np.zeros(1, np.uint64), np.full(1, 4, np.int32), 4)
    with pytest.raises(ValueError, match="this routing table lacks n_workers, version, hosts"):
        RoutingTable.from_json('{"format":2}')
    with pytest.raises(ValueError, match="0 keys came with 1 workers"):
        RoutingTable.distill(nothing, np.zeros(1, np.int32), 4)
