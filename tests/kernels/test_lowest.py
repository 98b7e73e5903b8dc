"""The structure that finds the lowest of growing values equals argmin."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skewless.kernels.lowest import floor, lowered, lowest


@given(st.lists(st.integers(0, 7), max_size=300), st.integers(1, 8))
def test_lowest_is_argmin_of_growing_values(raised: list[int], size: int) -> None:
    values, f = np.zeros(size, np.int64), floor()
    for number in raised:
        values[number % size] += 1 + number % 3
        assert lowest(values, f) == np.argmin(values)
    values //= 2
    lowered(f)
    assert lowest(values, f) == np.argmin(values)
