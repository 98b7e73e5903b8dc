"""Positions of keys: one per key, with hosts as leading bits, spread evenly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless.kernels.position import hosts_at, key_position, key_positions, keys_at
from skewless.table import RoutingTable
from tests import oracles


@given(st.integers(0, 2**64 - 1), st.integers(0, 32))
def test_every_key_has_a_position_of_its_own_and_hosts_are_its_leading_bits(x: int, bits: int) -> None:
    position = key_positions(np.array([x], np.uint64))
    assert keys_at(position).tolist() == [x]
    assert int(key_position(np.uint64(x))) == int(position[0])
    assert hosts_at(position, 2**bits).tolist() == [int(position[0]) >> (64 - bits)] == [oracles.host_of(x, 2**bits)]


@pytest.mark.parametrize("n_workers", [3, 16, 100, 1000])
def test_keys_that_are_no_hashes_are_spread_as_well(n_workers: int) -> None:
    """Numbers in a row, with gaps, in either half, in both, and as floating point has them: at most twice the mean."""
    numbers = np.arange(50 * n_workers, dtype=np.uint64)
    for keys in (
        numbers,
        numbers * np.uint64(16),
        numbers * np.uint64(1000),
        numbers << np.uint64(32),
        numbers << np.uint64(32) | np.uint64(7),
        numbers << np.uint64(32) | numbers,
        numbers << np.uint64(32) | numbers[::-1],
        numbers // np.uint64(50) << np.uint64(32) | numbers % np.uint64(50),
        numbers.astype(np.float64).view(np.uint64),
    ):
        counts = np.bincount(RoutingTable.hashed(n_workers).route(keys), minlength=n_workers)
        assert counts.max() <= 100
