"""`cm`, `am`, `cam` and `lm` forget with every window, and keep keys whole only if they count exactly."""

from __future__ import annotations

import numpy as np
import pytest

from skewless import Window, partitioner, streams


def test_a_window_resets_loads_and_keys() -> None:
    """Holistic algorithm 1: after t_w nothing is remembered, so the same keys are placed the same way again."""
    keys = streams.uniform(100, keys=30)
    for cardinality in ("exact", "hll"):
        p = partitioner("lm", 8, window=Window(100), cardinality=cardinality)
        assert np.array_equal(p.route(keys), p.route(keys))


@pytest.mark.parametrize("name", ["am", "cam"])
def test_affinity_keeps_keys_whole_only_if_nothing_is_forgotten(name: str) -> None:
    assert not partitioner(name, 8).splits_keys
    assert partitioner(name, 8, cardinality="hll").splits_keys
    keys = streams.zipf(5000, keys=50, exponent=1.0)
    pairs = {*zip(keys.tolist(), partitioner(name, 8).route(keys).tolist(), strict=True)}
    assert len(pairs) == len(np.unique(keys))
