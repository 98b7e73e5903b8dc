"""Dynamic Repartitioning's counters: few keys, all the heavy ones, estimates that hold, and a past that fades."""

from __future__ import annotations

import numpy as np
import pytest

from skewless import Keys, measure, streams
from skewless.arrays import copied, from_bytes, n_bytes, to_bytes
from skewless.cooperation.protocol import exchange
from skewless.partitioners.kip import Kip
from skewless.planning.counters import GRAIN, Counters, after_plan, counters, grown, of_batch, of_stream, tally
from skewless.planning.planner import Planned


def counted(c: Counters, keys: Keys) -> Counters:
    done = 0
    while done < keys.size:
        done = tally(c, keys, done)
        c = grown(c) if done < keys.size else c
    return c


def test_without_a_bound_counts_are_exact() -> None:
    keys = streams.zipf(5000, 1000, 1.0)
    histogram = of_batch([counted(counters(None), part) for part in np.array_split(keys, 3)])
    distinct, counts = np.unique(keys, return_counts=True)
    assert dict(zip(histogram.keys.tolist(), histogram.counts.tolist(), strict=True)) == dict(
        zip(distinct.tolist(), counts.tolist(), strict=True)
    )
    assert histogram.rest == 0
    assert np.all(np.diff(histogram.counts) <= 0)


def test_how_tuples_are_chunked_changes_nothing() -> None:
    keys = streams.zipf(20_000, 5000, 0.8)
    whole, pieces = counted(counters(100), keys), counters(100)
    for piece in np.array_split(keys, 7):
        pieces = counted(pieces, piece)
    assert to_bytes(whole) == to_bytes(pieces)
    assert to_bytes(from_bytes(Counters, to_bytes(whole))) == to_bytes(whole)


@pytest.mark.compiled
@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.5])
def test_a_bound_keeps_the_heavy_keys_and_estimates_them(exponent: float) -> None:
    keys = streams.zipf(1_000_000, 200_000, exponent)
    c = counted(counters(2000), keys)
    histogram = of_batch([c])
    assert c.counts.used[0] <= 2000
    assert c.sampling[0] > 2 * GRAIN or exponent > 1.2  # less than half of the tuples is looked at in the end
    true = np.bincount(keys.astype(np.int64), minlength=50)[:50]
    estimates = dict(zip(histogram.keys.tolist(), histogram.counts.tolist(), strict=True))
    # A count of samples that each stand for w tuples has the variance w times the count.
    noise = 4 * np.sqrt(true * c.sampling[0] / GRAIN)
    assert all(abs(estimates[key] - true[key]) <= noise[key] for key in range(50))
    assert histogram.total == pytest.approx(keys.size, rel=0.01)


@pytest.mark.compiled
def test_drifting_keys_get_more_room_and_give_it_back() -> None:
    c, widest = counters(500), 0
    for batch in np.split(streams.drifting(2_000_000, 50_000, 1.3, every=200_000), 20):
        c = counted(c, batch)
        widest = max(widest, int(c.bound[0]))
        c = after_plan(c, c)
    assert 500 < widest <= 16 * 500
    for batch in np.split(streams.zipf(1_000_000, 50_000, 1.3), 10):
        c = counted(c, batch)
        c = after_plan(c, c)
    assert c.bound[0] == 500
    assert c.past.used[0] <= 500


def test_the_past_fades_and_the_rate_recovers() -> None:
    c = counted(counters(64), streams.uniform(5000, 2000))
    thin = int(c.sampling[0])
    assert thin > GRAIN
    for _ in range(60):
        c = counted(after_plan(c, c), np.repeat(np.arange(4, dtype=np.uint64), 50))
    assert c.sampling[0] == GRAIN
    histogram = of_stream([c])
    assert set(histogram.keys[:4].tolist()) == {0, 1, 2, 3}
    assert histogram.counts[:4] == pytest.approx([50] * 4, rel=0.01)


def test_tuples_after_a_snapshot_count_in_the_next_plan() -> None:
    c = counted(counters(None), np.array([1, 1, 2], np.uint64))
    reported = copied(c)
    c = counted(c, np.array([2, 3], np.uint64))
    left = of_batch([after_plan(c, reported)])
    assert dict(zip(left.keys.tolist(), left.counts.tolist(), strict=True)) == {2: 1, 3: 1}


@pytest.mark.compiled
@pytest.mark.parametrize("n_workers", [16, 64])
def test_kip_with_bounded_memory_is_nearly_as_good(n_workers: int) -> None:
    """Ten batches of 100,000 tuples of 100,000 keys, counted in a tenth of the memory by three sources."""
    batches = np.split(streams.zipf(1_000_000, 100_000, 1.0), 10)
    ratios = dict[int | None, float]()
    for memory in (None, 2000):
        sources = [Kip(n_workers, memory=memory) for _ in range(3)]
        for batch in batches:
            for source, part in zip(sources, np.array_split(batch, 3), strict=True):
                source.observe(part)
            exchange(sources)
        following = streams.zipf(1_000_000, 100_000, 1.0, start=1_000_000)
        ratios[memory] = measure(following, sources[0].route(following), n_workers).imbalance_ratio
        state: Planned = sources[0].snapshot()
        assert memory is None or n_bytes(state.counters) < 200_000
    assert ratios[2000] <= 1.05 * (ratios[None] or 0)
