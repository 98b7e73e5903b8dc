"""Routing tables for tests: hypothesis strategies, and tables from dictionaries."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from skewless.table import RoutingTable

SHARES = st.dictionaries(
    st.integers(0, 2**64 - 1),
    st.dictionaries(st.integers(0, 99), st.floats(0.01, 10), min_size=1, max_size=5),
    max_size=8,
)


def table_of(shares: dict[int, dict[int, float]], n_workers: int, hosts_seed: int = 0) -> RoutingTable:
    """Returns a table with these hot keys, and its hosts on random workers."""
    plain = RoutingTable.hashed(n_workers)
    hosts = np.random.default_rng(hosts_seed).integers(0, n_workers, plain.hosts.size).astype(np.int32)
    bare = RoutingTable(n_workers, hosts, plain.keys, plain.starts, plain.workers, plain.parts)
    shares = {key: {worker % n_workers: weight for worker, weight in of.items()} for key, of in shares.items()}
    starts = np.cumsum([0, *(len(of) for of in shares.values())])
    workers = np.array([worker for of in shares.values() for worker in of], np.int32)
    weights = np.array([weight for of in shares.values() for weight in of.values()])
    return bare.with_hot_keys(np.array([*shares], np.uint64), starts, workers, weights)
