"""Key counters of planners: bounded memory, sampling when keys are many, and a past that fades."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import fsum, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, numbers_in
from skewless.histogram import Histogram
from skewless.kernels import hashtable, kernel
from skewless.kernels.hash import mix64, unmix64
from skewless.kernels.hashtable import Entries, Table

HISTORY = 0.8  # weight of a batch relative to the next one, as in the code of Dynamic Repartitioning's authors
DRIFT = 0.1  # if more than this share of tuples moved to other keys, the past is dropped
GRAIN = 16  # occurrences are kept in sixteenths of a tuple: the past fades, and samples weigh more than one
FINE = 1024  # parts of a grain, where sources with different numbers of batches are added up
THINNER = 1.05  # a full table divides the sampling rate by this
WIDEST = 16  # while keys drift, a source may count up to this many times `memory` keys
ANY = 2**40  # the bound on keys where memory is not bounded
_1 = np.uint64(1)
_COINS = np.uint64(0x9E3779B97F4A7C15)  # which tuples are sampled must not depend on which worker they go to


class Counters(NamedTuple):
    """The counts of one source: of keys since the last plan, and before it."""

    counts: Table  # mixed key -> occurrences since the last plan, in 1 / GRAIN
    past: Table  # mixed key -> occurrences in the batches before, in 1 / GRAIN, the older the less
    seen: NDArray[np.float64]  # [TUPLES, PAST_TUPLES, PAST_BATCHES]
    sampling: NDArray[np.int64]  # [WEIGHT, EVER, THINNED]
    bound: NDArray[np.int64]  # [BOUND, LEAST]


class _Batches(NamedTuple):
    """What was counted in a number of batches, the older of which count less."""

    grains: Entries  # mixed key -> occurrences, in 1 / GRAIN
    tuples: float
    batches: float


TUPLES, PAST_TUPLES, PAST_BATCHES = range(3)  # of Counters.seen: since the last plan; before it, faded
WEIGHT, EVER, THINNED = range(3)  # of Counters.sampling: grains of a sampled tuple; tuples ever; was the rate lowered?
BOUND, LEAST = range(2)  # of Counters.bound: keys that may be counted now, and that may always be counted


def counters(memory: int | None) -> Counters:
    """Returns empty counters.

    memory: how many keys they count, up to WIDEST times as many while keys drift; None: all.
    """
    return Counters(
        counts=hashtable.table(),
        past=hashtable.table(),
        seen=np.zeros(3),
        sampling=np.array([GRAIN, 0, 0], np.int64),
        bound=np.array([memory or ANY, memory or ANY], np.int64),
    )


def most_bytes(n_keys: int, memory: int | None) -> int:
    """Returns the most bytes that counters take after n_keys keys: both tables, each with room to grow."""
    return 2 * hashtable.most_bytes(2 * min(n_keys, WIDEST * (memory or ANY)))


@kernel
def tally(c: Counters, keys: Keys, start: int) -> int:
    """Counts or samples keys; returns early, with the number of keys done, when there is no room for another."""
    for i in range(start, keys.size):
        if hashtable.full(c.counts) or c.counts.used[0] >= c.bound[BOUND]:
            return i
        c.seen[TUPLES] += 1.0
        c.sampling[EVER] += 1
        weight = c.sampling[WEIGHT]
        if weight > GRAIN:
            coin = mix64(np.uint64(c.sampling[EVER]) * _COINS) >> np.uint64(11)
            if coin * 2.0**-53 * weight >= GRAIN:
                continue
        x = mix64(keys[i])
        slot = hashtable.find(c.counts, x)
        hashtable.put(c.counts, slot, x, c.counts.slots[slot + _1] + np.uint64(weight))
    return keys.size


def with_counts(c: Counters, histogram: Histogram) -> Counters:
    """Adds the counts of a histogram."""
    grains = np.rint(histogram.counts * GRAIN).astype(np.uint64)
    both = hashtable.sums([hashtable.entries(c.counts), Entries(mixed_keys(histogram.keys), grains)])
    bound = int(c.bound[BOUND])
    counts = hashtable.filled(*_heaviest(both, bound), room=min(bound, 2 * both.keys.size))
    return c._replace(counts=counts, seen=c.seen + np.array([histogram.total, 0.0, 0.0]))


def grown(c: Counters) -> Counters:
    """Makes room for more keys: enlarges the table, or forgets the lighter half and samples fewer tuples from now on.

    While the heavy keys differ from those of the past it forgets nothing: it cannot tell yet which ones will stay.
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


def after_plan(c: Counters, planned: Counters) -> Counters:
    """Moves what a plan was made from to the past; tuples that came since count for the next plan.

    The past is faded first, and dropped if the distribution has changed.

    planned: the counters as they were when the plan was made.
    """
    counts, before = hashtable.entries(c.counts), hashtable.entries(planned.counts)
    past, tuples, batches = _with_past(planned)
    bound, least = c.bound.tolist()
    weight, ever, thinned = c.sampling.tolist()
    return Counters(
        counts=hashtable.filled(*_difference(counts, before), room=min(bound, counts.keys.size)),
        past=hashtable.filled(*_heaviest(past, bound)),
        seen=np.array([c.seen[TUPLES] - planned.seen[TUPLES], tuples, batches]),
        sampling=np.array([weight if thinned else max(GRAIN, int(weight / THINNER)), ever, 0]),
        bound=np.array([max(least, bound // 2) if batches > 1 else bound, least]),
    )


def of_batch(sources: Sequence[Counters]) -> Histogram:
    """Returns what all sources counted since the last plan."""
    return _histogram([_Batches(hashtable.entries(c.counts), float(c.seen[TUPLES]), 1.0) for c in sources])


def of_stream(sources: Sequence[Counters]) -> Histogram:
    """Returns the average of recent batches, as far as the past still counts."""
    return _histogram([_with_past(c) for c in sources])


def of_past(c: Counters) -> Histogram:
    """Returns the expected counts of the next batch, from the past alone."""
    batches = float(c.seen[PAST_BATCHES])
    faded = (1 - (1 - (1 - HISTORY) * batches) ** 2) / (1 - HISTORY**2)  # the sum of squares of the batches' weights
    past = _Batches(hashtable.entries(c.past), float(c.seen[PAST_TUPLES]), batches)
    return replace(_histogram([past]), noise=faded / batches**2)


def drift(c: Counters) -> float:
    """Returns the share of tuples that moved to other keys than before, beyond what chance explains."""
    past, counts = hashtable.entries(c.past), hashtable.entries(c.counts)
    samples = max(float(counts.values.sum()) / float(c.sampling[WEIGHT]), 1.0)
    heavy = max(0.001, 20 / samples)  # a key with fewer tuples is noise
    before, after = _shares(past, float(c.seen[PAST_TUPLES]), heavy), _shares(counts, float(c.seen[TUPLES]), heavy)
    changes = ((before.get(key, 0.0), after.get(key, 0.0)) for key in {*before, *after})
    return sum(max(0.0, abs(p - q) - 3 * sqrt(max(p, q) / samples)) for p, q in changes) / 2


def _shares(entries: Entries, tuples: float, least: float) -> dict[int, float]:
    """Returns the keys with more than this share of the tuples, and their shares."""
    keys, grains = entries
    shares = grains / (GRAIN * max(tuples, 1.0))
    return dict(zip(keys[shares > least].tolist(), shares[shares > least].tolist(), strict=True))


def _with_past(c: Counters) -> _Batches:
    """Returns the counts with the faded past added, unless the distribution has changed."""
    past, counts = hashtable.entries(c.past), hashtable.entries(c.counts)
    tuples, before, batches = c.seen.tolist()
    if past.keys.size == 0 or (counts.keys.size and drift(c) > DRIFT):
        return _Batches(counts, tuples, 1.0)
    faded = Entries(past.keys, np.floor(past.values * HISTORY).astype(np.uint64))
    return _Batches(hashtable.sums([faded, counts]), tuples + HISTORY * before, 1.0 + HISTORY * batches)


def _histogram(sources: list[_Batches]) -> Histogram:
    """Returns the counts of one average batch of all sources.

    Counts are added as whole numbers, so that the sums do not depend on the order of sources.
    """
    scaled = [
        Entries(keys, np.rint(grains * (FINE / batches)).astype(np.uint64)) for (keys, grains), _, batches in sources
    ]
    mixed_keys, sums = hashtable.sums(scaled)
    keys, counts = unmix64(mixed_keys), sums / (GRAIN * FINE)
    order = np.lexsort((keys, -counts))
    tuples = fsum(source.tuples / source.batches for source in sources)
    return Histogram(keys[order], counts[order], max(0.0, tuples - float(counts.sum())))


def mixed_keys(keys: Keys) -> Keys:
    """Mixes keys, as the hash tables need them."""
    out = np.empty(keys.size, np.uint64)
    _mix(keys, out)
    return out


@kernel
def _mix(keys: Keys, out: Keys) -> None:
    for i in range(keys.size):
        out[i] = mix64(keys[i])


def _difference(counts: Entries, before: Entries) -> Entries:
    """Returns the counts less earlier ones. A key that was forgotten since then has a count of 0."""
    keys, grains = counts.keys, counts.values.copy()
    number, present = numbers_in(keys, before.keys)
    grains[number[present]] -= np.minimum(grains[number[present]], before.values[present])
    return Entries(keys[grains > 0], grains[grains > 0])


def _heaviest(entries: Entries, most: int) -> Entries:
    """Returns the entries with the largest counts, at most so many."""
    keys, grains = entries
    heaviest = np.sort(np.lexsort((keys, -grains.astype(np.int64)))[:most]) if keys.size > most else slice(None)
    return Entries(keys[heaviest], grains[heaviest])
