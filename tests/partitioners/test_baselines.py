"""What the baselines add to the laws and oracles that all partitioners are tested by."""

from __future__ import annotations

import numpy as np

from skewless import partitioner
from skewless.cooperation.protocol import exchange


def test_sources_agree_on_the_worker_of_a_key_once_they_exchange_snapshots() -> None:
    """PoTC needs coordination: two sources may send a key to different workers until they share their tables."""
    a, b = (partitioner("potc", 8) for _ in range(2))
    keys = np.arange(200, dtype=np.uint64)
    a.route(keys)
    b.route(keys[::-1].copy())
    assert not np.array_equal(a.route(keys), b.route(keys))
    exchange([a, b])
    assert np.array_equal(a.route(keys), b.route(keys))
