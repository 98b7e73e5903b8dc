"""The searches for a worker equal their definitions, also on ties."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skewless.kernels.fit import emptiest, roomiest, tightest

FEW = st.lists(st.integers(-2, 5), min_size=1, max_size=9)


@given(FEW)
def test_the_emptiest_and_the_roomiest_are_the_first_with_the_least_load_and_the_most_room(values: list[int]) -> None:
    array = np.array(values, np.float64)
    assert emptiest(array) == np.argmin(array)
    assert roomiest(array) == np.argmax(array)


@given(FEW, st.integers(-3, 6))
def test_the_tightest_is_the_first_with_the_least_room_that_is_enough(values: list[int], size: int) -> None:
    enough = [room for room in values if room >= size]
    assert tightest(np.array(values, np.float64), float(size)) == values.index(min(enough) if enough else max(values))
