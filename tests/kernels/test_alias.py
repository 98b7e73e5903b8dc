"""The alias method gives every item exactly its mass."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skewless.kernels.alias import settle

WHOLE = 120


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_items_get_their_masses_in_whole_numbers(cuts: list[int]) -> None:
    """The masses sum to `WHOLE` for each column; a column gives what it does not accept to its alias."""
    size = len(cuts)
    mass = np.diff(np.sort([0, *(cut * WHOLE * size // 50 for cut in cuts[1:]), WHOLE * size])).astype(np.int64)
    accept, alias = mass.copy(), np.arange(size)
    settle(accept, alias, WHOLE, np.empty((2, size), np.int64))
    assert accept.min() >= 0
    assert accept.max() <= WHOLE
    received = accept + np.bincount(alias, WHOLE - accept, minlength=size).astype(np.int64)
    assert received.tolist() == mass.tolist()
