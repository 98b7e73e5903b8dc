"""How planners count: keys of a batch in bounded memory, by samples if need be, with a past that fades."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum, sqrt
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys
from skewless.histogram import Histogram
from skewless.kernels import hashtable, kernel
from skewless.kernels.hash import mix64, unmix64
from skewless.kernels.hashtable import Table

HISTORY = 0.8  # what a batch weighs against the next one, as in the DR authors' code
DRIFT = 0.1  # a change of more than this share of the mass makes the past worthless
GRAIN = 16  # occurrences are kept in sixteenths of a tuple: the past fades, and samples weigh more than one
FINE = 1024  # parts of a grain, where sources with different numbers of batches are added up
THINNER = 1.05  # a full table lets the sampling rate fall by this
WIDEST = 16  # how many times its memory a source takes at the most, while keys drift
ANY = 2**40  # keys that are counted where memory has no bound
_1 = np.uint64(1)
_COINS = np.uint64(0x9E3779B97F4A7C15)  # which tuples are sampled must not depend on which worker they go to

Entries: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.uint64]]  # mixed keys and values, as tables have them


class Counters(NamedTuple):
    """The counts of one source: of keys since the last plan, and before it."""

    counts: Table  # mixed key -> occurrences since the last plan, in 1 / GRAIN
    past: Table  # mixed key -> occurrences in the batches before, in 1 / GRAIN, the older the less
    seen: NDArray[np.float64]  # tuples since the last plan; tuples, and batches, in the past
    sampling: NDArray[np.int64]  # what a sampled tuple counts, in 1 / GRAIN; tuples ever; whether it got less dense
    bound: NDArray[np.int64]  # keys that may be counted: now, and at the least


def counters(memory: int | None) -> Counters:
    sampling, bound = np.array([GRAIN, 0, 0], np.int64), np.array([memory or ANY] * 2, np.int64)
    return Counters(hashtable.table(), hashtable.table(), np.zeros(3), sampling, bound)


def most_bytes(n_keys: int, memory: int | None) -> int:
    """The most that counters take after so many keys: both tables, each with some room to grow."""
    return 2 * hashtable.most_bytes(2 * min(n_keys, WIDEST * (memory or ANY)))


@kernel
def tally(c: Counters, keys: Keys, start: int) -> int:
    """Count, or sample, keys; stops when there is no room for another."""
    for i in range(start, keys.size):
        if hashtable.full(c.counts) or c.counts.used[0] >= c.bound[0]:
            return i
        c.seen[0] += 1.0
        c.sampling[1] += 1
        weight = c.sampling[0]
        if weight > GRAIN:
            coin = mix64(np.uint64(c.sampling[1]) * _COINS) >> np.uint64(11)
            if coin * 2.0**-53 * weight >= GRAIN:
                continue
        x = mix64(keys[i])
        slot = hashtable.find(c.counts, x)
        hashtable.put(c.counts, slot, x, c.counts.slots[slot + _1] + np.uint64(weight))
    return keys.size


def told(c: Counters, histogram: Histogram) -> Counters:
    """The same with what somebody else has counted."""
    grains = np.rint(histogram.counts * GRAIN).astype(np.uint64)
    both = _sums([hashtable.entries(c.counts), (mixed(histogram.keys), grains)])
    bound = int(c.bound[0])
    counts = hashtable.filled(*_heaviest(both, bound), room=min(bound, 2 * both[0].size))
    return c._replace(counts=counts, seen=c.seen + np.array([histogram.total, 0.0, 0.0]))


def grown(c: Counters) -> Counters:
    """Room for more keys: a larger table, or the lighter half forgotten and fewer tuples sampled from now on.

    While the heavy keys are not those of the past, nothing is forgotten: which ones will stay is not known yet.
    """
    bound, least = c.bound.tolist()
    if c.counts.used[0] < bound:
        return c._replace(counts=hashtable.grown(c.counts))
    if c.past.used[0] and bound < WIDEST * least and drift(c) > DRIFT:
        return c._replace(bound=np.array([2 * bound, least]))
    weight, ever, _ = c.sampling.tolist()
    sampling = np.array([max(weight + 1, round(weight * THINNER)), ever, 1])
    counts = hashtable.filled(*_heaviest(hashtable.entries(c.counts), bound // 2), room=bound)
    return c._replace(counts=counts, sampling=sampling)


def planned(c: Counters, told: Counters) -> Counters:
    """After a plan was made with what `told` has: that is past now, and what came since counts for the next one.

    The past is faded first; if the distribution has changed, it is forgotten.
    """
    counts, before = hashtable.entries(c.counts), hashtable.entries(told.counts)
    past, tuples, batches = _with_past(told)
    bound, least = c.bound.tolist()
    weight, ever, thinned = c.sampling.tolist()
    return Counters(
        hashtable.filled(*_less(counts, before), room=min(bound, counts[0].size)),
        hashtable.filled(*_heaviest(past, bound)),
        np.array([c.seen[0] - told.seen[0], tuples, batches]),
        np.array([weight if thinned else max(GRAIN, int(weight / THINNER)), ever, 0]),
        np.array([max(least, bound // 2) if batches > 1 else bound, least]),
    )


def of_batch(sources: Sequence[Counters]) -> Histogram:
    """What all sources counted since the last plan."""
    return _histogram([(hashtable.entries(c.counts), float(c.seen[0]), 1.0) for c in sources])


def of_stream(sources: Sequence[Counters]) -> Histogram:
    """A batch like the last ones: with the past, as far as that still counts."""
    return _histogram([_with_past(c) for c in sources])


def of_past(c: Counters) -> Histogram:
    """What a batch to come will be like."""
    batches = float(c.seen[2])
    faded = (1 - (1 - (1 - HISTORY) * batches) ** 2) / (1 - HISTORY**2)  # the sum of squares of the batches' weights
    return replace(_histogram([(hashtable.entries(c.past), float(c.seen[1]), batches)]), noise=faded / batches**2)


def drift(c: Counters) -> float:
    """The share of the mass that is on other keys than before, beyond what chance does to so many samples."""
    past, counts = hashtable.entries(c.past), hashtable.entries(c.counts)
    samples = max(float(counts[1].sum()) / float(c.sampling[0]), 1.0)
    heavy = max(0.001, 20 / samples)  # a key of fewer tuples tells nothing
    before, after = _shares(past, float(c.seen[1]), heavy), _shares(counts, float(c.seen[0]), heavy)
    changes = ((before.get(key, 0.0), after.get(key, 0.0)) for key in {*before, *after})
    return sum(max(0.0, abs(p - q) - 3 * sqrt(max(p, q) / samples)) for p, q in changes) / 2


def _shares(entries: Entries, tuples: float, least: float) -> dict[int, float]:
    """The keys with more than this share of the tuples, and their shares."""
    keys, grains = entries
    shares = grains / (GRAIN * max(tuples, 1.0))
    return dict(zip(keys[shares > least].tolist(), shares[shares > least].tolist(), strict=True))


def _with_past(c: Counters) -> tuple[Entries, float, float]:
    """Counts, tuples and batches, with the past faded; without it, if the distribution has changed."""
    past, counts = hashtable.entries(c.past), hashtable.entries(c.counts)
    tuples, before, batches = c.seen.tolist()
    if past[0].size == 0 or (counts[0].size and drift(c) > DRIFT):
        return counts, tuples, 1.0
    faded = past[0], np.floor(past[1] * HISTORY).astype(np.uint64)
    return _sums([faded, counts]), tuples + HISTORY * before, 1.0 + HISTORY * batches


def _histogram(parts: list[tuple[Entries, float, float]]) -> Histogram:
    """One batch of all sources: each has its own number of batches.

    Counts are summed as whole numbers, so that the sums do not depend on the order of sources.
    """
    scaled = [(keys, np.rint(grains * (FINE / batches)).astype(np.uint64)) for (keys, grains), _, batches in parts]
    slots, sums = _sums(scaled)
    keys, counts = unmix64(slots), sums / (GRAIN * FINE)
    order = np.lexsort((keys, -counts))
    tuples = fsum(tuples / batches for _, tuples, batches in parts)
    return Histogram(keys[order], counts[order], max(0.0, tuples - float(counts.sum())))


def mixed(keys: Keys) -> Keys:
    """Keys as the tables have them."""
    out = np.empty(keys.size, np.uint64)
    _mix(keys, out)
    return out


@kernel
def _mix(keys: Keys, out: Keys) -> None:
    for i in range(keys.size):
        out[i] = mix64(keys[i])


def _sums(tables: list[Entries]) -> Entries:
    keys, inverse = np.unique(np.concatenate([keys for keys, _ in tables]), return_inverse=True)
    grains = np.bincount(inverse, np.concatenate([grains for _, grains in tables]), minlength=keys.size)
    return keys[grains > 0], grains[grains > 0].astype(np.uint64)


def _less(counts: Entries, told: Entries) -> Entries:
    """The counts without those that were told. A key that was forgotten since has nothing left."""
    keys, grains = counts[0], counts[1].copy()
    at = np.searchsorted(keys, told[0])
    known = at < keys.size
    known[known] = keys[at[known]] == told[0][known]
    grains[at[known]] -= np.minimum(grains[at[known]], told[1][known])
    return keys[grains > 0], grains[grains > 0]


def _heaviest(entries: Entries, most: int) -> Entries:
    keys, grains = entries
    kept = np.sort(np.lexsort((keys, -grains.astype(np.int64)))[:most]) if keys.size > most else slice(None)
    return keys[kept], grains[kept]
