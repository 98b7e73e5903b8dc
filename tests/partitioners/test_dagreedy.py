"""DAGreedy keeps hot keys on few workers, and forgets those that are hot no more."""

from __future__ import annotations

import numpy as np
import pytest

from skewless import Window, measure, partitioner, streams
from skewless.kernels.hash import all_mixed
from skewless.partitioners.dagreedy import ROOM, DaGreedy


@pytest.mark.compiled
@pytest.mark.parametrize("n_workers", [16, 64])
def test_it_balances_with_fewer_fragments_than_shuffling_hot_keys(n_workers: int) -> None:
    keys = streams.zipf(200_000, 10_000, 1.5)
    found, all_workers = (
        measure(keys, partitioner(name, n_workers).route(keys), n_workers) for name in ("dagreedy", "w_choices")
    )
    assert found.imbalance_ratio < 1.3
    assert found.fragments < all_workers.fragments


def test_a_hot_key_is_split_when_its_worker_exceeds_the_emptiest_by_the_mean() -> None:
    p = DaGreedy(4)
    rest = np.arange(10, 410, dtype=np.uint64)
    p.route(rest)
    home, *more = p.route(np.full(60, 7, np.uint64)).tolist()
    assert set(more) == {home}
    everything = p.route(np.full(2000, 7, np.uint64)).tolist()
    assert set(everything) == {0, 1, 2, 3}


def test_keys_that_are_not_hot_are_hashed() -> None:
    keys = np.arange(1000, dtype=np.uint64)
    few = 5 * 8  # among fewer tuples, a single one makes a key hot
    assert np.array_equal(DaGreedy(8).route(keys)[few:], partitioner("hash", 8).route(keys)[few:])


def test_keys_of_former_windows_make_room_for_others() -> None:
    """More keys are hot in turn than there is room for in the beginning."""
    p = DaGreedy(4, window=Window(100, 10))
    for number in range(3 * ROOM):
        p.route(np.full(300, number, np.uint64))
    s = p.snapshot()
    held = {int(key) for key, row in zip(s.tracked, s.rows, strict=True) if row >= 0}
    assert int(all_mixed(s.hasher, np.array([3 * ROOM - 1], np.uint64))[0]) in held
    used = s.rows[s.rows >= 0]
    assert len(set(used.tolist())) == used.size
    assert used.size + s.spares[0] == s.spare.size
