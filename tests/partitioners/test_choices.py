"""D-Choices gives keys of the head as many candidates as balance needs, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from skewless import measure, partitioner, streams
from skewless.kernels.sketch import space_saving, tally
from skewless.partitioners.choices import COUNTERS_PER_WORKER, HEAD, in_head, solve_choices

N_WORKERS = 8


def choices(counts: list[int], tail: int) -> int:
    """Returns d for keys that come this often each, in turn with a tail of keys that come once."""
    heavy = space_saving(COUNTERS_PER_WORKER * N_WORKERS)
    for key in np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)).tolist():
        tally(heavy, np.uint64(key))
    for key in range(tail):
        tally(heavy, np.uint64(1000 + key))
    return int(solve_choices(heavy, np.zeros(heavy.counts.size), N_WORKERS))


def test_d_is_2_without_hot_keys_and_grows_to_all_workers() -> None:
    assert choices([], tail=40) == 2
    by_share = [choices([100 * share], tail=100 - share) for share in (5, 20, 50)]
    assert choices([1000], tail=0) == N_WORKERS
    assert by_share == sorted(by_share)


def test_the_head_is_keys_that_surely_have_more_than_their_share() -> None:
    heavy = space_saving(COUNTERS_PER_WORKER * N_WORKERS)
    tuples = 100 * HEAD * N_WORKERS
    keys = np.arange(tuples, dtype=np.uint64) % np.uint64(50) + np.uint64(10)
    keys[:102], keys[102:200] = 1, 2  # just above 1 / (5 n), and just below
    counters = {}
    for key in keys:
        counters[int(key)] = tally(heavy, key)
    assert in_head(heavy, counters[1], N_WORKERS)
    assert not in_head(heavy, counters[2], N_WORKERS)


@pytest.mark.compiled
@pytest.mark.parametrize("exponent", [1.0, 1.5, 2.0])
def test_d_choices_is_as_balanced_as_w_choices_with_fewer_fragments(exponent: float) -> None:
    keys = streams.zipf(200_000, 10_000, exponent)
    few, all_workers = (measure(keys, partitioner(name, 64).route(keys), 64) for name in ("d_choices", "w_choices"))
    assert few.imbalance_ratio < 1.05
    assert all_workers.imbalance_ratio < 1.05
    assert few.fragments <= all_workers.fragments
