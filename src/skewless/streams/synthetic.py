"""Synthetic streams of keys, made from a seed: uniform, Zipf, log-normal, drifting, graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import Keys, Times, Workers, checked
from skewless.kernels import kernel
from skewless.kernels.alias import settle
from skewless.kernels.hash import below, mix64

# A stream with a `start` is a pure function of parameters, seed and offset, so a long stream can be made in pieces.
# In `zipf` and `matched`, key 0 is the hottest.


def uniform(n: int, keys: int, *, seed: int = 0, start: int = 0) -> Keys:
    """Returns n keys, all equally likely.

    n: the number of tuples.
    keys: the number of distinct keys.
    seed: other seeds give other streams.
    start: the offset of the first tuple, to make a long stream in pieces.

    >>> uniform(5, keys=10).tolist()
    [3, 3, 2, 7, 5]
    """
    _sizes(n, keys)
    out = np.empty(n, np.uint64)
    _uniform(np.uint64(keys), _salt(seed), start, out)
    return out


def zipf(n: int, keys: int, exponent: float, *, seed: int = 0, start: int = 0) -> Keys:
    """Returns n keys of a Zipf distribution: the share of the i-th most frequent one is proportional to i ** -exponent.

    n: the number of tuples.
    keys: the number of distinct keys.
    exponent: the skew; 0 is uniform.
    seed: other seeds give other streams.
    start: the offset of the first tuple, to make a long stream in pieces.

    >>> zipf(10, keys=100, exponent=1.5).tolist()
    [0, 0, 0, 1, 0, 2, 7, 1, 2, 3]
    """
    _sizes(n, keys)
    return _draw(_zipf_shares(keys, exponent), n, seed, start)


def matched(n: int, keys: int, p1: float, *, seed: int = 0, start: int = 0) -> Keys:
    """Returns n keys of the Zipf distribution whose most frequent key has the share p1.

    It stands in for data sets that are not available, such as the Wikipedia log of the PKG paper: 22 million tuples,
    2.9 million keys, p1 = 9.32 %.

    n: the number of tuples.
    keys: the number of distinct keys.
    p1: the share of the hottest key, at least 1 / keys and below 1.
    seed: other seeds give other streams.
    start: the offset of the first tuple, to make a long stream in pieces.

    >>> stream = matched(100_000, keys=1000, p1=0.25)
    >>> round(float((stream == 0).mean()), 2)
    0.25
    """
    _sizes(n, keys)
    return _draw(_zipf_shares(keys, _exponent(keys, p1)), n, seed, start)


def lognormal(n: int, mu: float, sigma: float, *, seed: int = 0) -> Keys:
    """Returns n keys that are exp(N(mu, sigma)), rounded.

    n: the number of tuples.
    mu, sigma: mean and standard deviation of the logarithm; the PKG paper's LN1 is (1.789, 2.366), LN2 (2.245, 1.133).
    seed: other seeds give other streams.

    >>> lognormal(5, mu=1.789, sigma=2.366).tolist()
    [8, 4, 27, 8, 2]
    """
    whole("the number of tuples", n, 0)
    keys = np.rint(np.exp(np.random.default_rng(seed).normal(mu, sigma, n)))
    require(
        bool(np.all(keys < 2**63)), f"lognormal({mu}, {sigma}) gives keys beyond 2**63: choose a smaller mu or sigma"
    )
    return keys.astype(np.uint64)


def drifting(n: int, keys: int, exponent: float, *, every: int, seed: int = 0) -> Keys:
    """Returns a Zipf stream whose hot keys are replaced by others every `every` tuples.

    n: the number of tuples.
    keys: the number of distinct keys.
    exponent: the skew.
    every: tuples between two changes.
    seed: other seeds give other streams.

    >>> drifting(8, keys=100, exponent=3.0, every=4).tolist()
    [30, 30, 30, 30, 33, 33, 33, 33]
    """
    whole("every", every, 1)
    ranks = zipf(n, keys, exponent, seed=seed)
    epochs = np.arange(n, dtype=np.uint64) // np.uint64(every)
    return _rotated(ranks, epochs, keys, seed)


def alternating(n: int, keys: int, exponent: float, *, every: int, seed: int = 0) -> Keys:
    """Returns a stream of uniform and Zipf keys in turn, `every` tuples of each, uniform first (Dalton, figure 9).

    n: the number of tuples.
    keys: the number of distinct keys.
    exponent: the skew of the Zipf parts.
    every: tuples of a part.
    seed: other seeds give other streams.

    >>> alternating(8, keys=100, exponent=3.0, every=4).tolist()
    [52, 44, 68, 17, 0, 0, 0, 0]
    """
    whole("every", every, 1)
    skewed = (np.arange(n) // every) % 2 == 1
    return np.where(skewed, zipf(n, keys, exponent, seed=seed), uniform(n, keys, seed=seed + 1))


def sinusoidal(n: int, *, period: int, tuples: int, amplitude: float = 0.5) -> Times:
    """Returns the times of n tuples whose arrival rate rises and falls as a sine (Prompt, figure 11).

    n: the number of tuples.
    period: the length of a wave, in the unit of the times.
    tuples: how many arrive in a period.
    amplitude: how far the rate rises above its mean and falls below it, as a share of the mean, from 0 to 1.

    >>> times = sinusoidal(1000, period=1_000_000, tuples=500)
    >>> np.bincount(times // 250_000).tolist()
    [165, 165, 85, 85, 165, 165, 85, 85]
    """
    whole("the number of tuples", n, 0)
    period, tuples = whole("period", period, 1), whole("tuples", tuples, 1)
    require(0 <= amplitude <= 1, f"amplitude is between 0 and 1, not {amplitude}")
    phases = np.linspace(0.0, 1.0, 2**16 + 1)
    arrived = phases + amplitude * (1 - np.cos(2 * np.pi * phases)) / (2 * np.pi)  # of a period's tuples
    number = np.arange(n)
    within = np.interp(number % tuples / tuples, arrived, phases)
    return np.asarray(number // tuples * period + (within * period).astype(np.int64))


class Edges(NamedTuple):
    """The edges of a directed graph: edge i goes from source[i] to destination[i].

    >>> edges = Edges(source=np.array([1, 1], np.uint64), destination=np.array([2, 3], np.uint64))
    >>> edges.destination[edges.source == 1].tolist()
    [2, 3]
    """

    source: Keys
    destination: Keys


def graph_edges(n: int, vertices: int, exponent: float, *, seed: int = 0) -> Edges:
    """Returns n edges of a graph whose out-degrees and in-degrees are skewed independently (PKG, question 3).

    n: the number of edges.
    vertices: the number of vertices.
    exponent: the Zipf skew of both ends.
    seed: other seeds give other graphs.

    To let each source see a skewed part of the stream, assign tuples to sources by one end and route by the other:

    >>> import skewless
    >>> edges = graph_edges(1000, vertices=100, exponent=1.0)
    >>> split = skewless.partitioner("hash", 5).route(edges.source)
    >>> records = skewless.simulate(skewless.partitioner("pkg", 4), edges.destination, sources=5, split=split)
    >>> [record.tuples for record in records]
    [1000]
    """
    source = zipf(n, vertices, exponent, seed=seed)
    # Vertices with many outgoing edges are not those with many incoming ones: rename the destinations.
    ranks = zipf(n, vertices, exponent, seed=seed + 1)
    return Edges(source, _rotated(ranks, np.ones(n, np.uint64), vertices, seed))


def several(streams: Sequence[Keys], *, seed: int = 0) -> tuple[Keys, Workers]:
    """Interleaves streams at random, one for each source; returns the keys and the source of each tuple.

    streams: the keys of each source.
    seed: determines the order.

    >>> keys, source = several([uniform(2, keys=9), 100 + uniform(3, keys=9)])
    >>> keys.tolist(), source.tolist()
    ([102, 102, 102, 2, 2], [1, 1, 1, 0, 0])
    """
    require(len(streams) >= 1, "several needs at least 1 stream, not 0")
    source = np.repeat(np.arange(len(streams), dtype=np.int32), [stream.size for stream in streams])
    source = np.random.default_rng(seed).permutation(source)
    out = np.empty(source.size, np.uint64)
    for number, stream in enumerate(streams):
        out[source == number] = checked(stream)[0]
    return out, source


def _sizes(n: int, keys: int) -> None:
    whole("the number of tuples", n, 0)
    whole("the number of keys", keys, 1, 2**32 - 1)


def _salt(seed: int) -> np.uint64:
    return np.uint64(mix64(np.uint64(seed % 2**64) ^ np.uint64(0xD1B54A32D192ED03)))  # compiled code returns an int


def _zipf_shares(keys: int, exponent: float) -> NDArray[np.float64]:
    require(0 <= exponent <= 64, f"a Zipf exponent is between 0 and 64, not {exponent}")
    shares = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    return np.asarray(shares / shares.sum())


def _exponent(keys: int, p1: float) -> float:
    """Returns the exponent at which the first of `keys` keys has the share p1, by bisection."""
    require(
        1 / keys <= p1 < 1, f"the share of the hottest of {keys} keys is at least {1 / keys:g} and below 1, not {p1:g}"
    )
    ranks = np.log(np.arange(1, keys + 1, dtype=np.float64))
    low, high = 0.0, 64.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 / np.exp(-middle * ranks).sum() < p1 else (low, middle)
    return low


def _draw(shares: NDArray[np.float64], n: int, seed: int, start: int) -> Keys:
    accept, alias = shares * shares.size, np.arange(shares.size)
    settle(accept, alias, 1.0, np.empty((2, shares.size), np.int64))
    out = np.empty(n, np.uint64)
    _sample(accept, alias, _salt(seed), start, out)
    return out


@kernel
def _sample(
    accept: NDArray[np.float64], alias: NDArray[np.int64], salt: np.uint64, start: int, out: NDArray[np.uint64]
) -> None:
    for i in range(out.size):
        x = mix64(salt + np.uint64(start + i))
        column = below(x, np.uint64(accept.size))
        coin = (mix64(x) >> np.uint64(11)) * 2.0**-53
        out[i] = column if coin < accept[column] else np.uint64(alias[column])


@kernel
def _uniform(keys: np.uint64, salt: np.uint64, start: int, out: NDArray[np.uint64]) -> None:
    for i in range(out.size):
        out[i] = below(mix64(salt + np.uint64(start + i)), keys)


def _rotated(ranks: Keys, epochs: Keys, keys: int, seed: int) -> Keys:
    """Returns a key for each rank: in each epoch all ranks are rotated by another random amount."""
    out = np.empty(ranks.size, np.uint64)
    _rotate(ranks, epochs, np.uint64(keys), _salt(seed), out)
    return out


@kernel
def _rotate(ranks: Keys, epochs: Keys, keys: np.uint64, salt: np.uint64, out: Keys) -> None:
    for i in range(ranks.size):
        key = ranks[i] + below(mix64(epochs[i] ^ salt), keys)
        out[i] = min(key, key - keys)
