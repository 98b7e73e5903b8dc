"""`pkg` has distinct candidates, and sources that probe share the true load."""

from __future__ import annotations

import numpy as np

from skewless import partitioner
from skewless.cooperation.protocol import exchange


def test_candidates_stay_distinct_when_workers_are_few() -> None:
    """Every key has all 3 workers as candidates, each once, and the first choice differs from key to key."""
    candidates = partitioner("pkg", 3, choices=9).candidates(np.arange(50, dtype=np.uint64))
    assert np.sort(candidates, axis=1).tolist() == [[0, 1, 2]] * 50
    assert set(candidates[:, 0].tolist()) == {0, 1, 2}


def test_probing_sets_the_load_to_the_truth() -> None:
    a, b = (partitioner("pkg", 2) for _ in range(2))
    a.route(np.arange(100, dtype=np.uint64))
    b.route(np.arange(60, dtype=np.uint64))
    for _ in range(3):  # repeated exchanges must not count anything twice
        exchange([a, b])
    assert a.snapshot().load.sum() == 160
    assert a.snapshot().load.tolist() == b.snapshot().load.tolist()
