"""Tests of hashing: mix64, ranges and candidates."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from skewless import streams
from skewless.kernels.hash import below, candidates, hasher, mix64, spark_hash
from tests import oracles


def test_mix64_is_splitmix64() -> None:
    """The first outputs of the published generator, which adds the golden ratio before each mix."""
    golden = 0x9E3779B97F4A7C15
    seen = [int(mix64(np.uint64((1234567 + golden * i) % 2**64))) for i in (1, 2, 3)]
    assert seen == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(x=st.integers(0, 2**64 - 1), n=st.integers(1, 2**31 - 1))
def test_below_is_exact_where_numba_modulo_is_not(x: int, n: int) -> None:
    assert int(below(np.uint64(x), np.uint64(n))) == (x >> 32) * n >> 32 < n


@pytest.mark.parametrize("n_workers", [1, 2, 3, 4, 6, 10, 16, 24, 100])
def test_candidates(n_workers: int) -> None:
    keys = streams.uniform(300, keys=10**6)
    out = candidates(hasher(n_workers, 3), keys, 5)
    assert out.tolist() == [oracles.candidates(int(key), n_workers, 3, 5) for key in keys]


@pytest.mark.compiled
@pytest.mark.parametrize("n_workers", [6, 10, 16, 50, 97])
def test_pairs_of_candidates_are_evenly_spread(n_workers: int) -> None:
    """Every ordered pair of workers is equally likely, whether or not n_workers is prime."""
    keys = np.arange(500 * n_workers * (n_workers - 1), dtype=np.uint64)
    out = candidates(hasher(n_workers, 0), keys, 2)
    pairs = np.bincount(out[:, 0] * n_workers + out[:, 1], minlength=n_workers**2).reshape(n_workers, n_workers)
    expected = 500 * (1 - np.eye(n_workers))
    assert np.abs(pairs - expected).max() < 5 * 500**0.5


@given(st.integers(0, 2**64 - 1))
def test_spark_hash_is_xxhash64(x: int) -> None:
    assert int(spark_hash(np.uint64(x))) == xxhash.xxh64_intdigest(x.to_bytes(8, "little"), 42)
