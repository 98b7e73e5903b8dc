"""Hosts and parts of keys are divided as the weights say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skewless.division import dealt, in_parts, redealt
from skewless.kernels.routing import WHOLE

WEIGHTS = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), WEIGHTS)
def test_no_worker_exceeds_its_target_by_more_than_one_host(masses: list[float], targets: list[float]) -> None:
    mass, target = np.array(masses), np.array(targets)
    hosts = dealt(mass, target)
    load = np.bincount(hosts, mass, minlength=target.size)
    assert (load <= target * mass.sum() / target.sum() + mass.max() + 1e-9 * mass.sum()).all()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 100))
def test_after_a_change_of_workers_only_hosts_that_must_move_do(old: int, new: int, seed: int) -> None:
    hosts = np.random.default_rng(seed).integers(0, old, 64 * 16).astype(np.int32)
    after = redealt(hosts, old, new)
    assert set(after.tolist()) <= set(range(new))
    moved = after != hosts
    if new <= old:
        assert (hosts[moved] >= new).all()
    else:
        assert (after[moved] >= old).all()
        kept = np.bincount(after, minlength=new)[:old]
        assert np.abs(kept - np.bincount(hosts, minlength=old) * old / new).max() <= 0.5


@given(st.lists(WEIGHTS, max_size=5))
def test_parts_of_a_key_sum_to_the_whole_and_are_its_weights(weights_of_keys: list[list[float]]) -> None:
    starts = np.cumsum([0, *map(len, weights_of_keys)])
    parts = in_parts(np.array([weight for weights in weights_of_keys for weight in weights]), starts)
    for weights, start, end in zip(weights_of_keys, starts[:-1], starts[1:], strict=True):
        own = parts[start:end]
        assert own.sum() == WHOLE
        assert np.abs(own - np.array(weights) / sum(weights) * WHOLE).max() <= len(weights)
