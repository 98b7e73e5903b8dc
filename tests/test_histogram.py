"""Histograms add up, are looked up, and are sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless.histogram import Histogram
from skewless.table import RoutingTable

COUNTS = st.dictionaries(st.integers(0, 2**64 - 1), st.integers(1, 100), max_size=20)


def histogram_of(counts: dict[int, int], rest: float = 0.0) -> Histogram:
    order = sorted(counts, key=lambda key: (-counts[key], key))
    return Histogram(np.array(order, np.uint64), np.array([counts[key] for key in order], np.float64), rest)


@given(COUNTS, COUNTS)
def test_a_sum_has_the_counts_of_both_heaviest_first(first: dict[int, int], second: dict[int, int]) -> None:
    expected = {key: first.get(key, 0) + second.get(key, 0) for key in {*first, *second}}
    both = histogram_of(first, rest=2.0) + histogram_of(second, rest=3.0)
    assert dict(zip(both.keys.tolist(), both.counts.tolist(), strict=True)) == expected
    assert both.keys.tolist() == histogram_of(expected).keys.tolist()
    assert both.rest == 5
    assert both.total == sum(expected.values()) + 5


@given(COUNTS, st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_keys_that_were_not_counted_have_a_count_of_0(counts: dict[int, int], others: list[int]) -> None:
    keys = [*counts, *others]
    found = histogram_of(counts).count_of(np.array(keys, np.uint64))
    assert found.tolist() == [counts.get(key, 0) for key in keys]


@given(COUNTS, st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]))
def test_keys_heavier_than_a_share_come_first(counts: dict[int, int], share: float) -> None:
    histogram = histogram_of(counts, rest=10.0)
    expected = sum(count > share * histogram.total for count in histogram.counts.tolist())
    assert histogram.heavier_than(share) == expected


@given(COUNTS, st.integers(0, 3))
def test_hosts_have_the_load_of_their_keys_and_an_even_part_of_the_rest(counts: dict[int, int], start: int) -> None:
    table, histogram = RoutingTable.hashed(3), histogram_of(counts, rest=64.0)
    load = histogram.by_host(table, start, key_cost=2.0)
    expected = np.full(table.hosts.size, 64.0 / table.hosts.size)
    for key, count in list(zip(histogram.keys, histogram.counts, strict=True))[start:]:
        expected[table.host_of(np.array([key]))[0]] += count + 2.0
    assert load == pytest.approx(expected)


def test_a_sample_has_the_frequencies_of_its_histogram() -> None:
    histogram = Histogram(np.array([7, 8], np.uint64), np.array([60_000.0, 30_000.0]), rest=60_000.0)
    sample = histogram.sample(3)
    assert sample.size == 100_000
    assert np.count_nonzero(sample == 7) == pytest.approx(40_000, abs=1)
    assert np.count_nonzero(sample == 8) == pytest.approx(20_000, abs=1)
    assert np.unique(sample).size == pytest.approx(40_002, abs=2)
    assert np.array_equal(sample, histogram.sample(3))
    assert not np.array_equal(sample, histogram.sample(4))
