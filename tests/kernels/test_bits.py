"""Rows of bits behave like sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skewless.kernels import bits


@given(st.sets(st.integers(0, 199)), st.sets(st.integers(0, 199)))
def test_bit_rows_are_sets(put: set[int], dropped: set[int]) -> None:
    row = np.zeros(bits.words(200), np.uint64)
    for bit in put:
        bits.put(row, bit)
    for bit in dropped:
        bits.drop(row, bit)
    assert {bit for bit in range(200) if bits.has(row, bit)} == put - dropped
    ones, bit = [], bits.following(row, 0)
    while bit >= 0:
        ones.append(bit)
        bit = bits.following(row, bit + 1)
    assert ones == sorted(put - dropped)
