"""The rows of estimates in Dalton's inner loop: taken, filled, ranked and freed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skewless import Window, streams
from skewless.kernels import hashtable
from skewless.kernels.hash import first
from skewless.partitioners.bandit import EVER, FREE, WORST, new_loads, new_row, release, seek_best
from skewless.partitioners.dalton import Dalton

N_WORKERS = 4


def learned(**params: Any) -> Any:
    """Returns the state of a source that has seen a skewed stream."""
    p = Dalton(N_WORKERS, window=Window(2000, 100), **params)
    p.route(streams.zipf(6000, 200, 1.5))
    return p.snapshot()


def in_use(state: Any) -> set[int]:
    return {int(key) for key in state.rows.keys[state.rows.until != FREE]}


def test_rows_are_taken_until_none_is_free_and_freed_again() -> None:
    state = Dalton(N_WORKERS, window=Window(2000, 100)).fresh()
    keys = [np.uint64(key) for key in range(10, 10 + N_WORKERS)]
    rows = [int(new_row(state, key)) for key in keys]
    assert sorted(rows) == list(range(N_WORKERS))
    assert new_row(state, np.uint64(99)) == -1
    assert in_use(state) == {int(key) for key in keys}
    assert (state.rows.values == WORST).all()
    assert [int(state.rows.best[row]) for row in rows] == [int(first(state.hasher, key)) for key in keys]
    release(state, rows[1])
    assert in_use(state) == {int(key) for key in keys} - {int(keys[1])}
    assert new_row(state, np.uint64(99)) == rows[1]
    assert {int(key) for key in hashtable.entries(state.once).keys} == {int(key) for key in keys} | {99}


def test_the_best_worker_is_the_first_from_the_hash_worker_on() -> None:
    state = Dalton(N_WORKERS).fresh()
    row = int(new_row(state, np.uint64(12345)))
    home = int(first(state.hasher, np.uint64(12345)))
    for values, best, second in (
        ([-0.5, -0.1, -0.9, -0.2], 1, -0.2),
        ([-0.3] * N_WORKERS, home, -0.3),
        ([-0.3, -0.3, -0.3, -0.1], 3, -0.3),
    ):
        state.rows.values[row] = values
        seek_best(state, row)
        assert (int(state.rows.best[row]), float(state.rows.second[row])) == (best, second)


@pytest.mark.parametrize("greedy", [False, True])
def test_estimates_are_rewards_and_the_best_one_is_known(greedy: bool) -> None:
    state = learned(greedy=greedy)
    rows = np.flatnonzero(state.rows.until != FREE)
    assert rows.size
    tried = state.rows.values[rows][state.rows.tries[rows] > 0]
    assert tried.max() <= 0.5  # a reward is -(imbalance + fragments) / 2, and the imbalance is at least -1
    for row in rows:
        values = state.rows.values[row]
        assert values[state.rows.best[row]] == values.max()
        assert np.delete(values, state.rows.best[row]).max() <= state.rows.second[row]
    assert state.tuples[EVER] == 6000


def test_loads_of_others_fade() -> None:
    state = learned()
    state.peers.load[:] = [8, 4, 0, 2]
    new_loads(state, 0.5)
    assert state.peers.load.tolist() == [4, 2, 0, 1]
    assert state.load.tolist() == (state.window.load + state.peers.load).tolist()
    assert state.total[0] == state.load.sum()
