"""The share of a worker is a set of keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless import RoutingTable
from skewless.store import (
    Share,
)
from tests.store.states import hashes, owned, tables


@given(data=st.data())
def test_shares_are_sets_of_keys(data: st.DataObject) -> None:
    keys = list(range(40))
    old, new = (tables(data.draw, 40) for _ in range(2))
    mine = [set(owned(Share.of(old, worker), keys)) for worker in range(old.n_workers)]
    assert sorted(key for some in mine for key in some) == keys, "each key has one worker"
    routed = old.route(hashes(np.array(keys, np.uint64))).tolist()
    assert all(key in mine[worker] for key, worker in zip(keys, routed, strict=True)), "as the table routes"
    one, other = Share.of(old, 0), Share.of(new, 0)
    others = set(owned(other, keys))
    assert set(owned(one.without(other), keys)) == mine[0] - others
    assert set(owned(one.within(other), keys)) == mine[0] & others
    assert one.without(one).is_empty
    assert set(owned(Share.from_json(one.to_json()), keys)) == mine[0]
    assert [owned(share, keys) for share in (Share.whole(), Share.empty())] == [keys, []]


def test_a_split_key_has_no_share() -> None:
    table = RoutingTable.hashed(2).with_hot_keys(
        np.array([7], np.uint64), np.array([0, 2]), np.array([0, 1]), np.ones(2)
    )
    with pytest.raises(ValueError, match="splits keys"):
        Share.of(table, 0)
