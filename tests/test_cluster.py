"""The cluster model compared with closed forms and with the papers' findings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skewless import measure, partitioner, streams
from skewless.cluster import Cluster, Outcome, run


def ran(name: str, n_workers: int, cluster: Cluster, *, rate: float, **options: Any) -> Outcome:
    keys = options.pop("keys", streams.matched(200_000, 30_000, 0.0932))
    return run(partitioner(name, n_workers), keys, cluster, rate=rate, **options)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_one_worker_is_an_m_d_1_queue(rho: float) -> None:
    """Pollaczek-Khinchine for fixed service times s: the mean wait is rho s / (2 (1 - rho))."""
    s = 1e-3
    outcomes = [
        ran("hash", 1, Cluster(work_time=s), rate=rho / s, keys=streams.uniform(500_000, 10), seed=seed)
        for seed in range(3)
    ]
    expected = s + rho * s / (2 * (1 - rho))
    assert np.mean([o.latency_mean for o in outcomes]) == pytest.approx(expected, rel=0.02)
    assert all(o.utilization == pytest.approx(rho) and o.stable for o in outcomes)
    assert outcomes[0].throughput == pytest.approx(1 / s)


def test_workers_of_a_shuffled_poisson_stream_are_e_n_d_1_queues_of_half_the_wait() -> None:
    """Every n-th tuple of a Poisson stream arrives more regularly than a Poisson stream: the wait must be shorter."""
    poisson = ran("hash", 1, Cluster(work_time=1e-3), rate=800, keys=streams.uniform(200_000, 10))
    erlang = ran("shuffle", 8, Cluster(work_time=1e-3), rate=8 * 800, keys=streams.uniform(200_000, 10))
    assert 1e-3 < erlang.latency_mean < (poisson.latency_mean + 1e-3) / 2


def test_regular_arrivals_below_saturation_never_wait() -> None:
    outcome = ran("shuffle", 4, Cluster(work_time=1e-3), rate=3999, arrivals="regular")
    assert outcome.latency_mean == pytest.approx(1e-3)
    assert outcome.latency_p99 == pytest.approx(1e-3)


def test_sources_are_queues_too() -> None:
    cluster = Cluster(route_time=1e-3, work_time=1e-4, sources=2)
    outcome = ran("shuffle", 4, cluster, rate=500, arrivals="regular")
    assert outcome.throughput == pytest.approx(2000)
    assert outcome.latency_p50 == pytest.approx(1.1e-3)


def test_throughput_is_that_of_the_fullest_worker() -> None:
    keys = streams.zipf(100_000, 1000, 1.0)
    outcome = ran("hash", 16, Cluster(work_time=1e-4), rate=1000, keys=keys)
    load = measure(keys, partitioner("hash", 16).route(keys), 16).load
    assert outcome.throughput == pytest.approx(keys.size / (1e-4 * load.max()))


def test_an_overloaded_cluster_is_not_stable() -> None:
    outcome = ran("hash", 9, Cluster(work_time=1e-3), rate=9000)
    assert not outcome.stable
    assert outcome.utilization > 1
    assert outcome.latency_p99 > 1


def test_flushing_costs_and_frees_memory() -> None:
    """PKG figure 5(b): shorter aggregation periods need less memory and more messages."""
    often, rarely, never = (
        ran("pkg", 9, Cluster(work_time=4e-4, flush_time=1e-4, merge_time=1e-5, flush_every=every), rate=5000)
        for every in (0.5, 4.0, float("inf"))
    )
    assert often.counters < rarely.counters < never.counters
    assert often.throughput < rarely.throughput < never.throughput
    assert never.flush_latency == 0 < often.flush_latency < rarely.flush_latency


def test_two_workers_and_a_reducer_by_hand() -> None:
    """Tuples at 0, 1, 2, ... s go to the workers in turn, each taking 1.5 s; a flush comes every 4 s."""
    cluster = Cluster(work_time=1.5, flush_time=0.25, merge_time=0.5, flush_every=4.0)
    keys = np.array([1, 2, 3, 4, 1, 2, 3, 4, 1], np.uint64)
    outcome = run(partitioner("shuffle", 2), keys, cluster, rate=1.0, arrivals="regular")
    # Before the flush at 4 s, worker 0 has keys 1 and 3, worker 1 has 2 and 4, two counters each. Worker 0 is free at
    # 3.5 s, so sends from 4 to 4.5; worker 1 works until 4.5 and sends until 5. The reducer merges 4 results by 6 s.
    # Tuple 4 comes to worker 0 at 4 s and begins at 4.5; tuple 5 comes to worker 1 at 5 s and begins at once.
    # Likewise at 8 s: worker 0 is free at 7.5, sends until 8.5; worker 1 works until 8.5 and sends until 9.
    assert outcome.flush_latency == pytest.approx(2.0)
    assert outcome.latency_mean == pytest.approx((1.5 * 4 + 2.0 + 1.5 + 1.5 + 1.5 + 2.0) / 9)
    assert outcome.latency_p50 == pytest.approx(1.5)
    # In the two full periods, 8 tuples: 4 a worker take 6 s and 4 counters 1 s; 8 results take the reducer 4 s.
    assert outcome.utilization == pytest.approx(7 / 8)


def test_a_stream_too_short_for_a_flush_is_refused() -> None:
    with pytest.raises(ValueError, match="before the first flush at 1000 s: give more tuples"):
        ran("pkg", 9, Cluster(work_time=1e-4, flush_time=1e-4, flush_every=1000.0), rate=5000)


def test_counters_are_fragments_and_flushes_empty_them() -> None:
    keys = np.repeat(np.arange(100, dtype=np.uint64), 10)
    cluster = Cluster(work_time=1e-3, flush_time=1e-3, flush_every=0.5)
    outcome = ran("hash", 4, cluster, rate=200, keys=keys, arrivals="regular")
    # 5 seconds, 100 tuples of 10 keys in each half.
    assert outcome.counters == 10
    assert outcome.counters_of_worker <= 10


def test_sustained_throughput_is_just_stable() -> None:
    keys = streams.zipf(300_000, 20_000, 0.9)
    cluster = Cluster(work_time=1e-4, flush_time=2e-4, merge_time=1e-4, flush_every=0.5, reducers=4)
    limit = ran("pkg", 16, cluster, rate=1000, keys=keys).throughput
    assert ran("pkg", 16, cluster, rate=limit, keys=keys).utilization == pytest.approx(1, abs=0.03)
    below, above = (ran("pkg", 16, cluster, rate=limit * f, keys=keys) for f in (0.9, 1.1))
    assert below.utilization < 1 < above.utilization
    assert below.latency_mean < above.latency_mean


def test_a_busy_reducer_limits_shuffling() -> None:
    """Holistic's point: balance alone is not enough when partial results must be merged."""
    keys = streams.zipf(200_000, 50_000, 0.5)
    cluster = Cluster(work_time=1e-4, merge_time=1e-4, flush_every=0.2)
    found = {name: ran(name, 32, cluster, rate=10_000, keys=keys).throughput for name in ("shuffle", "pkg", "cam")}
    assert found["shuffle"] < found["pkg"] < found["cam"]


def test_pkg_beats_key_grouping_as_in_the_paper() -> None:
    """PKG figure 5(a): on keys as skewed as the Wikipedia log, as fast as shuffling, much faster than key grouping."""
    kg, pkg, sg = (ran(name, 9, Cluster(work_time=1e-3), rate=3000) for name in ("hash", "pkg", "shuffle"))
    assert pkg.throughput == pytest.approx(sg.throughput, rel=0.01)
    assert pkg.throughput > 1.5 * kg.throughput
    assert kg.counters < pkg.counters < sg.counters


@pytest.mark.compiled
def test_ten_thousand_workers() -> None:
    outcome = ran("pkg", 10_000, Cluster(work_time=1e-2), rate=1000, keys=streams.uniform(500_000, 100_000))
    assert outcome.throughput > 0.8 * 10_000 / 1e-2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"work_time": -1}, "work_time is 0 or more, not -1"),
        ({"flush_every": 0}, "flush_every is more than 0"),
        ({"sources": 0}, "sources is at least 1"),
        ({"reducers": 0}, "reducers is at least 1"),
    ],
)
def test_bad_clusters(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Cluster(**options)


def test_bad_runs() -> None:
    with pytest.raises(ValueError, match="rate is more than 0"):
        ran("hash", 4, Cluster(), rate=0)
    with pytest.raises(ValueError, match="arrivals are"):
        ran("hash", 4, Cluster(), rate=1, arrivals="sometimes")
    with pytest.raises(ValueError, match="at least 1 tuple"):
        ran("hash", 4, Cluster(), rate=1, keys=np.empty(0, np.uint64))
