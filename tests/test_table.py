"""A routing table keeps its laws: whole or weighted keys, the same decision everywhere, files that load again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless import Keys, partitioner, streams
from skewless.cooperation.protocol import exchange
from skewless.kernels.routing import WHOLE
from skewless.metrics import imbalance_ratio
from skewless.migration import moves
from skewless.partitioners import ALL
from skewless.table import RoutingTable
from tests import oracles
from tests.conftest import COMPILED
from tests.tables import SHARES, table_of


@given(SHARES, st.sampled_from([1, 3, 16, 100]))
def test_weights_sum_to_one_in_the_given_proportions(shares: dict[int, dict[int, float]], n_workers: int) -> None:
    table = table_of(shares, n_workers)
    for key, of in shares.items():
        wanted = {worker % n_workers: weight for worker, weight in of.items()}
        found = table.shares(key)
        assert sum(found.values()) == 1
        assert found == pytest.approx({w: weight / sum(wanted.values()) for w, weight in wanted.items()}, abs=1e-8)
    assert table.splits_keys == any(len({w % n_workers for w in of}) > 1 for of in shares.values())


def test_the_former_name_of_shares_still_works() -> None:
    table = table_of({5: {0: 1, 3: 3}}, 4)
    assert table.places(5) == table.shares(5) == {0: 0.25, 3: 0.75}


def slow_route(table: RoutingTable, key: int) -> set[int]:
    """Returns the workers to which a row may go: that of its host, or any of its hot key."""
    at = np.flatnonzero(table.keys == np.uint64(key))
    if not at.size:
        return {int(table.hosts[oracles.host_of(key, table.hosts.size)])}
    return set(table.workers[table.starts[at[0]] : table.starts[at[0] + 1]].tolist())


@given(SHARES, st.lists(st.integers(0, 2**64 - 1), max_size=30))
def test_rows_go_to_a_worker_of_their_key(shares: dict[int, dict[int, float]], others: list[int]) -> None:
    table = table_of(shares, 16)
    rows = [*shares, *others] * 3
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
        expected = np.array([table.shares(5).get(worker, 0.0) for worker in range(16)])
        assert np.abs(found - expected).max() < 5 * np.sqrt(0.25 / 400_000)


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
    before = RoutingTable.hashed(old).with_hot_keys(keys, starts, workers, np.ones(3))
    after = before.resized(new)
    counts = np.bincount(after.hosts, minlength=new)
    assert after.n_workers == new
    assert counts.max() <= 1.25 * counts.mean() + 2
    changed = moves(before, after)
    # The least that any even placement must move: what the new workers get, or what the removed ones had.
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
    table = RoutingTable.hashed(n_workers).with_hot_keys(keys, starts, workers, np.ones(4 * n_keys))
    assert set(table.route(keys).tolist()) <= set(workers.tolist())
    for i, key in enumerate(keys[:50].tolist()):
        assert table.shares(key) == dict.fromkeys(workers[4 * i : 4 * i + 4].tolist(), 0.25)
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
