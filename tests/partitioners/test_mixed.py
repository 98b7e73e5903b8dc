"""`mixed` keeps its table within the bound that it is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skewless import Keys, streams
from skewless.histogram import Histogram
from skewless.metrics import imbalance_ratio
from skewless.partitioners.mixed import Mixed
from skewless.table import RoutingTable

pytestmark = pytest.mark.compiled


def histogram(keys: Keys) -> Histogram:
    distinct, counts = np.unique(keys, return_counts=True)
    order = np.lexsort((distinct, -counts))
    return Histogram(distinct[order], counts[order].astype(np.float64))


@pytest.mark.parametrize("params", [{}, {"heavy": 1}, {"theta": 0.0}, {"theta": 0.3, "heavy": 5}])
@pytest.mark.parametrize("n_workers", [4, 16, 64])
def test_mixeds_table_stays_within_its_bound_whatever_comes(params: dict[str, Any], n_workers: int) -> None:
    """No entry says what hashing says, and no worker has more than the fullest would by hashing."""
    p, table = Mixed(n_workers, **params), RoutingTable.hashed(n_workers)
    hosts = table.hosts
    for keys in np.split(streams.drifting(200_000, 20_000, 1.2, every=50_000), 8):
        seen = histogram(keys)
        table = p.plan(seen, table)
        hashed = hosts[table.host_of(seen.keys)]
        assert table.keys.size <= p.heavy * n_workers
        assert np.count_nonzero(table.main_workers(seen.keys) != hashed) == table.keys.size
        planned = table.route(seen.keys)
        most, before = (np.bincount(workers, seen.counts, minlength=n_workers).max() for workers in (planned, hashed))
        assert most <= before
        assert np.array_equal(table.hosts, hosts)


def test_mixed_keeps_to_the_bound_it_is_given() -> None:
    seen = histogram(streams.zipf(200_000, 20_000, 0.8))
    table = Mixed(16, theta=0.2).plan(seen, RoutingTable.hashed(16))
    assert imbalance_ratio(np.bincount(table.route(seen.keys), seen.counts, minlength=16)) <= 1.2
    assert Mixed(16, theta=0.2).plan(seen, table).keys.size == table.keys.size
    loose = Mixed(16, theta=5.0).plan(seen, RoutingTable.hashed(16))
    assert loose.keys.size == 0


def test_mixed_gives_up_the_cheapest_entries_when_the_table_is_full() -> None:
    """The load wanders from one worker to another: only with the old entries gone do the new ones fit."""
    n_workers, keys = 4, streams.as_keys(np.arange(4000))
    plain = RoutingTable.hashed(n_workers)
    home = plain.main_workers(keys)
    table, p = plain, Mixed(n_workers, theta=0.1)
    entries = list[set[int]]()
    for worker in range(n_workers):
        hot = np.flatnonzero(home == worker)[:8]
        counts = np.ones(keys.size)
        counts[hot] = 150.0
        order = np.lexsort((keys, -counts))
        table = p.plan(Histogram(keys[order], counts[order]), table)
        load = np.bincount(table.main_workers(keys), counts, minlength=n_workers)
        assert imbalance_ratio(load) <= 1.1
        entries.append(set(table.keys.tolist()))
        assert len(entries[-1]) <= 2 * n_workers
    assert entries[0] - entries[-1]
