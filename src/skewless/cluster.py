"""A cluster in virtual time: what a partitioning means for throughput, latency and memory.

Tuples arrive at sources, which route them; workers process them and count per key; every so often the workers flush
their counters to reducers. Everything is a queue with one server and a fixed service time. What is assumed:

- Service times depend on the station only, not on the key or the value (PKG section V: a fixed delay per key).
- Queues are unbounded and first in, first out; the network takes no time, and tuples reach a worker in the order in
  which they arrived, whichever source they came through.
- One partitioner decides for all sources, tuple by tuple; its decisions do not depend on time and are replayed at any
  rate. (`simulate` is where sources know different things.)
- At a flush a worker first works off the tuples it has, then sends its counters. Reducers begin at the flush, as if
  partial results came as fast as they can take them; a flush is done when the last worker has sent and the last reducer
  has merged.
- What is left at the end of the stream is not flushed, and not counted as work.

A single worker fed by a Poisson stream is the M/D/1 queue, whose mean wait is known: rho s / (2 (1 - rho)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, Workers, checked, require, whole
from skewless.kernels import kernel
from skewless.metrics import REDUCERS, measure
from skewless.partitioner import Partitioner
from skewless.partitioners.baselines import Hash


@dataclass(frozen=True)
class Cluster:
    """Service times, in seconds."""

    route_time: float = 0.0  # a source, per tuple
    work_time: float = 1e-4  # a worker, per tuple
    flush_time: float = 0.0  # a worker, per counter flushed
    merge_time: float = 0.0  # a reducer, per partial result
    flush_every: float = inf  # between two flushes; never: no aggregation
    sources: int = 1
    reducers: int = 1

    def __post_init__(self) -> None:
        for name in ("route_time", "work_time", "flush_time", "merge_time"):
            require(getattr(self, name) >= 0, f"{name} is 0 or more, not {getattr(self, name)}")
        require(self.flush_every > 0, f"flush_every is more than 0, not {self.flush_every}")
        whole("sources", self.sources, 1)
        whole("reducers", self.reducers, 1)


@dataclass(frozen=True)
class Outcome:
    """What a cluster made of a stream that arrived at a given rate."""

    rate: float  # tuples a second that arrived
    throughput: float  # tuples a second that can be sustained, at most
    stable: bool  # rate < throughput; if not, queues grow and latencies say only how long the stream was
    latency_mean: float  # seconds from arrival to the end of the worker's processing
    latency_p50: float
    latency_p95: float
    latency_p99: float
    flush_latency: float  # seconds from a flush to the last reducer being done with it, at the worst
    counters: int  # held by all workers together, at the most
    counters_of_worker: int  # held by one worker, at the most
    utilization: float  # of the busiest station at this rate


def run(
    partitioner: Partitioner[Any, Any],
    keys: Keys,
    cluster: Cluster,
    *,
    rate: float,
    arrivals: Literal["poisson", "regular"] = "poisson",
    seed: int = 0,
) -> Outcome:
    """Route the keys and let the cluster process them as they arrive, `rate` tuples a second.

    A partitioner that plans ahead should have adopted a plan before.

    >>> import skewless
    >>> keys = skewless.streams.zipf(200_000, keys=10_000, exponent=1.0)
    >>> for name in ("hash", "pkg", "shuffle"):
    ...     outcome = run(skewless.partitioner(name, 9), keys, Cluster(work_time=1e-4), rate=40_000)
    ...     print(f"{name:8} {outcome.throughput:6.0f} a second, {outcome.counters} counters")
    hash      44552 a second, 9672 counters
    pkg       89989 a second, 15580 counters
    shuffle   89997 a second, 41267 counters
    """
    checked(keys)
    require(keys.size > 0, "a stream to process has at least 1 tuple")
    require(rate > 0, f"rate is more than 0 tuples a second, not {rate}")
    require(arrivals in ("poisson", "regular"), f'arrivals are "poisson" or "regular", not {arrivals!r}')
    workers = partitioner.route(keys)
    gaps = np.full(keys.size, 1.0) if arrivals == "regular" else np.random.default_rng(seed).exponential(1.0, keys.size)
    arrival = np.cumsum(gaps)  # in units of 1 / rate
    arrival -= arrival[0]
    demand = _demand(keys, workers, arrival / rate, partitioner.n_workers, cluster)
    latency = np.empty(keys.size)
    flush_latency = _replay(arrival / rate, workers, demand, cluster, latency)
    throughput = _sustainable(keys, workers, arrival, partitioner.n_workers, cluster)
    p50, p95, p99 = np.percentile(latency, (50, 95, 99))
    return Outcome(
        rate,
        throughput,
        rate < throughput,
        float(latency.mean()),
        float(p50),
        float(p95),
        float(p99),
        flush_latency,
        int(demand.counters.sum(axis=1).max()),
        int(demand.counters.max()),
        rate * demand.seconds_per_tuple,
    )


@dataclass(frozen=True)
class _Demand:
    """What is asked of each station, by the periods between flushes."""

    ends: NDArray[np.int64]  # of the periods: number of the first tuple of the next
    counters: NDArray[np.int64]  # [periods, workers]
    partials: NDArray[np.int64]  # [periods, reducers]
    seconds_per_tuple: float  # of the busiest station


def _demand(keys: Keys, workers: Workers, arrival: NDArray[np.float64], n_workers: int, cluster: Cluster) -> _Demand:
    n_flushes = int(arrival[-1] / cluster.flush_every)  # 0 if never
    ends = np.append(np.searchsorted(arrival, cluster.flush_every * np.arange(1, n_flushes + 1)), keys.size)
    counters = np.zeros((ends.size, n_workers), np.int64)
    partials = np.zeros((ends.size, cluster.reducers), np.int64)
    reducers = Hash(cluster.reducers, seed=REDUCERS).route(keys)
    start = 0
    for period, end in enumerate(ends):
        # A pair of worker and reducer is what a fragment belongs to: both counts in one pass.
        cell = workers[start:end] * np.int32(cluster.reducers) + reducers[start:end]
        fragments = measure(keys[start:end], cell, n_workers * cluster.reducers).cardinality
        grid = fragments.reshape(n_workers, cluster.reducers)
        counters[period], partials[period] = grid.sum(axis=1), grid.sum(axis=0)
        start = end
    if cluster.flush_every == inf:
        counted, flushes = keys.size, 0
    else:
        counted, flushes = int(ends[-2]) if n_flushes else 0, n_flushes
        require(
            counted > 0,
            f"the stream is over in {arrival[-1]:.3g} s, before the first flush at {cluster.flush_every:g} s: "
            "give more tuples, or flush more often",
        )
    load = np.bincount(workers[:counted], minlength=n_workers)
    busiest = max(
        cluster.route_time * -(-counted // cluster.sources),
        float((cluster.work_time * load + cluster.flush_time * counters[:flushes].sum(axis=0)).max()),
        float((cluster.merge_time * partials[:flushes].sum(axis=0)).max()),
    )
    return _Demand(ends, counters, partials, busiest / counted)


def _sustainable(keys: Keys, workers: Workers, arrival: NDArray[np.float64], n_workers: int, cluster: Cluster) -> float:
    """The rate at which the busiest station is just busy all the time.

    The faster tuples come, the more of them share a counter before it is flushed: the demand per tuple depends on the
    rate, so the rate that follows from it is sought by repetition. A stream too short for two flushes is repeated.
    """
    never = replace(cluster, flush_every=inf)
    least = _demand(keys, workers, arrival, n_workers, never).seconds_per_tuple
    if cluster.flush_every == inf or least == 0:
        return 1 / least if least else inf
    rate, lasts = 1 / least, float(arrival[-1]) + 1
    for _ in range(50):
        times = ceil(2.5 * cluster.flush_every * rate / lasts)
        again = (arrival + lasts * np.arange(times)[:, None]).reshape(-1) / rate
        seconds = _demand(np.tile(keys, times), np.tile(workers, times), again, n_workers, cluster).seconds_per_tuple
        if abs(rate * seconds - 1) < 1e-3:
            break
        rate = (rate + 1 / seconds) / 2
    return rate


def _replay(
    arrival: NDArray[np.float64], workers: Workers, demand: _Demand, cluster: Cluster, latency: NDArray[np.float64]
) -> float:
    """Let time pass; fills in the latency of each tuple, returns the worst of a flush."""
    source_free = np.zeros(cluster.sources)
    worker_free, reducer_free = np.zeros(demand.counters.shape[1]), np.zeros(cluster.reducers)
    worst, start = 0.0, 0
    for period, end in enumerate(demand.ends):
        _queue(arrival, workers, start, end, (cluster.route_time, cluster.work_time), source_free, worker_free, latency)
        start = end
        if end < arrival.size:
            flush = (period + 1) * cluster.flush_every
            worker_free = np.maximum(worker_free, flush) + cluster.flush_time * demand.counters[period]
            reducer_free = np.maximum(reducer_free, flush) + cluster.merge_time * demand.partials[period]
            worst = max(worst, float(max(reducer_free.max(), worker_free.max())) - flush)
    return worst


@kernel
def _queue(
    arrival: NDArray[np.float64],
    workers: Workers,
    start: int,
    end: int,
    times: tuple[float, float],
    source_free: NDArray[np.float64],
    worker_free: NDArray[np.float64],
    latency: NDArray[np.float64],
) -> None:
    """Lindley's recursion at two stations in a row: a server begins when it is free and the tuple is there."""
    for i in range(start, end):
        source = i % source_free.size
        source_free[source] = max(source_free[source], arrival[i]) + times[0]
        worker = workers[i]
        worker_free[worker] = max(worker_free[worker], source_free[source]) + times[1]
        latency[i] = worker_free[worker] - arrival[i]
