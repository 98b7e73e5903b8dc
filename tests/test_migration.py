"""A change of tables names what moves, and is made only when it is worth its moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless.histogram import Histogram
from skewless.migration import Moving, arriving, moves, worth_it
from skewless.table import RoutingTable
from tests.tables import SHARES, table_of


@given(SHARES, SHARES, st.integers(0, 2), st.integers(0, 2))
def test_moves_name_what_moves_and_no_more(
    first: dict[int, dict[int, float]], second: dict[int, dict[int, float]], one: int, other: int
) -> None:
    old, new = table_of(first, 8, one), table_of({**first, **second}, 8, other)
    found = moves(old, new)
    named = set(found.keys.tolist())
    for key in {*first, *second}:
        assert (key in named) == (old.shares(key) != new.shares(key))
    assert found.hosts.tolist() == np.flatnonzero(old.hosts != new.hosts).tolist()
    tail = np.setdiff1d(np.arange(2000, dtype=np.uint64), np.union1d(old.keys, new.keys))
    moved = np.isin(new.host_of(tail), found.hosts)
    assert np.array_equal(old.route(tail) != new.route(tail), moved)
    assert not moves(old, old).keys.size
    assert moves(old, old).mass == 0


def test_the_mass_that_moves() -> None:
    old, new = table_of({1: {0: 1}, 2: {0: 1}}, 4), table_of({1: {0: 3, 1: 1}, 2: {0: 1}}, 4)
    occurring = Histogram(np.array([1, 2], np.uint64), np.array([40.0, 10.0]), rest=50.0)
    assert moves(old, new, occurring).mass == pytest.approx(0.4 * 0.25)
    assert arriving(old, new, occurring).tolist() == pytest.approx([0, 10, 0, 0])
    everything = RoutingTable(4, (old.hosts + 1) % 4, new.keys, new.starts, new.workers, new.parts)
    assert moves(old, everything, occurring).mass == pytest.approx(0.4 * 0.25 + 0.5)


def test_a_plan_is_worth_it_when_it_gains_more_than_it_moves() -> None:
    """40 of 100 tuples on worker 0 become 30, over and over; 10 tuples of state move, once."""
    old, new = table_of({1: {0: 1}, 2: {1: 1}}, 4), table_of({1: {0: 3, 1: 1}, 2: {1: 1}}, 4)
    occurring = Histogram(np.array([1, 2], np.uint64), np.array([40.0, 10.0]))
    verdict = worth_it(old, new, occurring, Moving(batches=1, state=1, cost=0.5))
    assert verdict.worth
    assert [verdict.gain, verdict.cost] == pytest.approx([10, 5])
    assert not worth_it(old, new, occurring, Moving(batches=2, state=5)).worth
    assert not worth_it(old, old, occurring).worth
    with pytest.raises(ValueError, match="state is 0 or more, not -1"):
        Moving(state=-1)
