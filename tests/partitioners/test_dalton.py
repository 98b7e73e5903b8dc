"""`dalton` balances skewed windows, and keeps few rows."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np
import pytest

from skewless import Keys, Metrics, Window, measure, partitioner, simulate, streams
from skewless.partitioners.bandit import FREE
from skewless.partitioners.dalton import Dalton

pytestmark = pytest.mark.compiled
WINDOW = Window(60_000, 1000)


def windowed(seed: int, keys: Keys, n_workers: int, **params: Any) -> Metrics:
    return measure(keys, Dalton(n_workers, seed=seed, window=WINDOW, **params).route(keys), n_workers)


@pytest.mark.parametrize(
    ("exponent", "n_workers", "bound"), [(1.5, 16, 0.6), (1.5, 64, 0.75), (1.0, 16, 0.89), (1.0, 64, 1.4)]
)
def test_dalton_balances_and_its_greedy_rule_does_so_better(exponent: float, n_workers: int, bound: float) -> None:
    """(max - mean) / mean is bounded; the greedy rule has at most half of it, and no more fragments than PKG."""
    keys = streams.zipf(1_000_000, 100_000, exponent)
    paper = median(windowed(seed, keys, n_workers).imbalance_ratio - 1 for seed in range(9))
    greedy = [windowed(seed, keys, n_workers, hot=5, greedy=True) for seed in range(3)]
    pkg = measure(keys, partitioner("pkg", n_workers).route(keys), n_workers)
    assert paper <= bound
    assert median(m.imbalance_ratio - 1 for m in greedy) <= paper / 2
    assert median(m.fragments for m in greedy) <= pkg.fragments


def test_dalton_never_has_more_rows_than_workers_and_drops_those_that_go_cold() -> None:
    p = Dalton(8, window=WINDOW)
    p.route(streams.zipf(50_000, 1000, 1.5))
    hot = p.snapshot().rows
    assert 0 < (hot.until != FREE).sum() <= 8
    p.route(10_000 + streams.uniform(3000, 2000))
    assert (p.snapshot().rows.until != FREE).sum() == 0
    assert p.snapshot().rows.numbers.used[0] == 0


@pytest.mark.parametrize("frequencies", ["sketch", "hybrid"])
def test_dalton_finds_the_same_hot_keys_with_a_sketch(frequencies: Any) -> None:
    keys = streams.zipf(200_000, 100_000, 1.2)
    exact, other = (Dalton(32, window=Window(60_000, 20_000), frequencies=f) for f in ("exact", frequencies))
    exact.route(keys)
    other.route(keys)
    found = [{int(k) for k in s.keys[s.until != FREE]} for s in (exact.snapshot().rows, other.snapshot().rows)]
    assert found[0] == found[1]
    assert len(found[0]) >= 3


def test_dalton_sources_agree_on_the_mean_of_what_they_learned() -> None:
    a, b = (Dalton(4, window=WINDOW, average="mean") for _ in range(2))
    keys = streams.zipf(30_000, 1000, 2.0)
    a.route(keys[:20_000])
    b.route(keys[20_000:])
    snapshots = a.snapshot(), b.snapshot()
    policy = a.merge(snapshots)
    for key, values in zip(policy.keys.tolist(), policy.values, strict=True):
        rows = [(q, row) for q in (s.rows for s in snapshots) for row in np.flatnonzero(q.keys == key)]
        mean = sum(q.counts[row] * q.values[row] for q, row in rows) / sum(q.counts[row] for q, row in rows)
        assert values == pytest.approx(mean)
    assert policy.load.sum() == 30_000
    a.adopt(policy)
    b.adopt(policy)
    for s in (a.snapshot(), b.snapshot()):
        used = np.flatnonzero(s.rows.until != FREE)
        in_order = used[np.argsort(s.rows.keys[used])]
        assert np.array_equal(s.rows.keys[in_order], policy.keys)
        assert np.array_equal(s.rows.values[in_order], policy.values)
        assert s.load.tolist() == policy.load.tolist()


@pytest.mark.parametrize("sources", [2, 8])
def test_greedy_dalton_is_as_good_with_many_sources(sources: int) -> None:
    keys = streams.zipf(800_000, 100_000, 1.5)
    p = Dalton(16, window=WINDOW, hot=5, greedy=True)
    *_, last = simulate(p, keys, sources=sources, sync_every=1, batch=10_000)
    assert last.imbalance_ratio < 1.1


def test_dalton_expires_rows_whatever_the_times_are() -> None:
    """Negative times, and a source that adopts before it has seen anything."""
    keys = np.concatenate((streams.zipf(20_000, 1000, 1.5), 10_000 + streams.uniform(5000, 3000)))
    times = np.arange(25_000, dtype=np.int64)
    early, late, new = (Dalton(8, window=WINDOW) for _ in range(3))
    assert np.array_equal(early.route(keys, times - 10_000_000), late.route(keys, times))
    early = Dalton(8, window=WINDOW)
    early.route(keys[:20_000])
    new.adopt(early.merge([early.snapshot()]))
    assert new.snapshot().rows.numbers.used[0] > 0
    new.route(keys[20_000:])
    for p in (new, late):
        assert p.snapshot().rows.numbers.used[0] == 0
