"""Streams have the distributions that their names promise, and are the same every time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from skewless import Keys, partitioner, streams

N = 400_000

SEEDED: list[Callable[[int], Keys]] = [
    lambda seed: streams.uniform(1000, 50, seed=seed),
    lambda seed: streams.zipf(1000, 50, 1.2, seed=seed),
    lambda seed: streams.matched(1000, 50, 0.3, seed=seed),
    lambda seed: streams.lognormal(1000, 1.0, 1.0, seed=seed),
    lambda seed: streams.drifting(1000, 50, 1.2, every=100, seed=seed),
    lambda seed: streams.alternating(1000, 50, 1.2, every=100, seed=seed),
    lambda seed: streams.graph_edges(1000, 50, 1.2, seed=seed).destination,
    lambda seed: streams.several([np.arange(500, dtype=np.uint64), np.arange(500, 1000, dtype=np.uint64)], seed=seed)[
        0
    ],
]


@pytest.mark.parametrize("stream", SEEDED)
def test_other_seeds_give_other_streams(stream: Callable[[int], Keys]) -> None:
    assert stream(1).dtype == np.uint64
    assert stream(1).size == 1000
    assert np.array_equal(stream(1), stream(1))
    assert not np.array_equal(stream(1), stream(2))


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.5])
def test_zipf_shares(exponent: float) -> None:
    shares = np.bincount(streams.zipf(N, 1000, exponent).astype(int), minlength=1000) / N
    expected = np.arange(1, 1001.0) ** -exponent
    expected /= expected.sum()
    assert np.abs(shares - expected).max() < 5 * np.sqrt(expected.max() / N)
    assert (np.square(shares - expected) / expected).sum() * N == pytest.approx(999, abs=5 * np.sqrt(2 * 999))


def test_uniform_shares() -> None:
    counts = np.bincount(streams.uniform(N, 1000).astype(int), minlength=1000)
    assert (np.square(counts - N / 1000) / (N / 1000)).sum() == pytest.approx(999, abs=5 * np.sqrt(2 * 999))


def test_a_long_stream_can_be_made_in_pieces() -> None:
    whole = streams.zipf(1000, 100, 1.0)
    assert np.array_equal(whole[300:], streams.zipf(700, 100, 1.0, start=300))


@pytest.mark.parametrize(("mu", "sigma", "p1"), [(1.789, 2.366, 0.1471), (2.245, 1.133, 0.0701)], ids=["LN1", "LN2"])
def test_lognormal_has_the_p1_of_pkg_table_1(mu: float, sigma: float, p1: float) -> None:
    _, counts = np.unique(streams.lognormal(2_000_000, mu, sigma), return_counts=True)
    assert counts.max() / 2_000_000 == pytest.approx(p1, abs=0.001)


@pytest.mark.parametrize(("keys", "p1"), [(2_900_000, 0.0932), (1000, 0.5), (1000, 0.001)])
def test_matched_has_its_p1(keys: int, p1: float) -> None:
    stream = streams.matched(N, keys, p1)
    assert (stream == 0).mean() == pytest.approx(p1, abs=5 * np.sqrt(p1 / N))


def test_drifting_changes_the_hot_keys() -> None:
    stream = streams.drifting(40_000, 1000, 1.5, every=10_000)
    hottest = [np.bincount(part.astype(int)).argmax() for part in np.split(stream, 4)]
    assert len(set(hottest)) == 4
    other = streams.drifting(40_000, 1000, 1.5, every=10_000, seed=1)
    assert hottest != [np.bincount(part.astype(int)).argmax() for part in np.split(other, 4)]


def test_alternating_is_uniform_then_skewed() -> None:
    parts = np.split(streams.alternating(40_000, 1000, 1.5, every=10_000), 4)
    shares = [np.bincount(part.astype(int)).max() / 10_000 for part in parts]
    assert shares[0] < 0.01 < 0.3 < shares[1]
    assert shares[2] < 0.01 < 0.3 < shares[3]


def test_several_keeps_the_order_of_each_source() -> None:
    given = [streams.zipf(300, 10, 1.0), 100 + streams.uniform(500, 10)]
    keys, source = streams.several(given)
    assert [np.array_equal(keys[source == i], given[i]) for i in (0, 1)] == [True, True]
    assert 0 < source[:100].sum() < 100


def test_graph_edges_are_skewed_independently_at_both_ends() -> None:
    edges = streams.graph_edges(50_000, 1000, 1.2)
    out_hub, in_hub = (np.bincount(end.astype(int)).argmax() for end in edges)
    assert out_hub != in_hub
    assert all(np.bincount(end.astype(int)).max() > 5000 for end in edges)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: streams.zipf(-1, 5, 1.0), "the number of tuples is at least 0, not -1"),
        (lambda: streams.zipf(5, 0, 1.0), r"the number of keys is between 1 and .*, not 0"),
        (lambda: streams.zipf(5, 5, float("nan")), "a Zipf exponent is between 0 and 64, not nan"),
        (lambda: streams.zipf(5, 5, -1.0), "not -1"),
        (
            lambda: streams.matched(5, 10, 0.01),
            "hottest of 10 keys is at least 0.1 and below 1, not 0.01",
        ),
        (lambda: streams.lognormal(5, 100.0, 1.0), "gives keys beyond"),
        (lambda: streams.words(0), "the number of words is at least 1, not 0"),
        (lambda: streams.drifting(5, 10, 1.0, every=0), "every is at least 1, not 0"),
    ],
)
def test_bad_input_is_refused(make: Callable[[], Keys], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_hash_assigns_a_stream_to_sources() -> None:
    edges = streams.graph_edges(1000, 100, 1.0)
    source = partitioner("hash", 5).route(edges.source)
    assert all(len(set(source[edges.source == vertex])) == 1 for vertex in np.unique(edges.source))


@pytest.mark.parametrize("amplitude", [0.0, 0.5, 1.0])
def test_arrivals_follow_a_sine(amplitude: float) -> None:
    times, period = streams.sinusoidal(90_000, period=36_000, tuples=30_000, amplitude=amplitude), 36_000
    assert times.dtype == np.int64
    assert (np.diff(times) >= 0).all()
    assert np.bincount(times // period).tolist() == [30_000] * 3
    rate = np.bincount(times % period // 1000) / 3 / (30_000 / 36)
    middle = (np.arange(36) + 0.5) / 36
    assert np.abs(rate - 1 - amplitude * np.sin(2 * np.pi * middle)).max() < 0.01


def test_arrivals_that_make_no_sense_are_refused() -> None:
    for params, sentence in (
        ({"amplitude": 1.5}, "amplitude is between 0 and 1, not 1.5"),
        ({"period": 0}, "period is at least 1, not 0"),
        ({"tuples": 0}, "tuples is at least 1, not 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            streams.sinusoidal(10, **{"period": 10, "tuples": 10, **params})  # type: ignore[arg-type]
    assert streams.sinusoidal(0, period=10, tuples=10).size == 0
