"""Simulates a cluster in virtual time: throughput, latency and memory of a partitioning.

Tuples arrive at sources, which route them to workers; workers count them per key and flush their counters to reducers
at intervals. Every station is a queue with one server and a fixed service time. Assumptions:

- Service times depend on the station, not on the key or value (PKG section V: a fixed delay per key).
- Queues are unbounded and first in, first out. The network takes no time, and tuples reach a worker in the order of
  their arrival, through whichever source.
- One partitioner routes for all sources, tuple by tuple; its decisions do not depend on time and are the same at every
  rate. (`simulate` has sources that know different things.)
- At a flush a worker first finishes the tuples in its queue, then sends its counters. Reducers start at the flush, as
  if partial results always arrived in time; a flush ends when the last worker has sent and the last reducer has merged.
- Counters left at the end of the stream are not flushed and not counted as work.

One worker fed by a Poisson stream is the M/D/1 queue, whose mean wait is rho s / (2 (1 - rho)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import Keys, Workers, checked
from skewless.kernels import kernel
from skewless.metrics import REDUCERS, measure
from skewless.partitioner import Partitioner
from skewless.partitioners.baselines import Hash


@dataclass(frozen=True)
class Cluster:
    """The stations of a cluster and their service times, in seconds.

    route_time: what a source takes per tuple.
    work_time: what a worker takes per tuple.
    flush_time: what a worker takes per counter that it flushes.
    merge_time: what a reducer takes per partial result.
    flush_every: time between two flushes; infinite means no aggregation.
    sources: the number of sources.
    reducers: the number of reducers.

    >>> Cluster(work_time=1e-4, flush_time=1e-5, flush_every=10.0).reducers
    1
    """

    route_time: float = 0.0
    work_time: float = 1e-4
    flush_time: float = 0.0
    merge_time: float = 0.0
    flush_every: float = inf
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
    """Measures of a cluster at a given arrival rate."""

    rate: float  # arriving tuples a second
    throughput: float  # the highest rate that can be sustained, in tuples a second
    stable: bool  # rate < throughput; otherwise queues grow, and latencies only reflect the length of the stream
    latency_mean: float  # seconds from arrival to the end of the worker's processing
    latency_p50: float
    latency_p95: float
    latency_p99: float
    flush_latency: float  # longest time from a flush until workers have sent and reducers have merged it, in seconds
    counters: int  # most counters held by all workers together
    counters_of_worker: int  # most counters held by one worker
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
    """Routes the keys, lets the cluster process them, and returns its throughput, latency and memory.

    partitioner: routes all keys; one that plans ahead should have adopted a plan before.
    keys: the stream, in order of arrival.
    cluster: service times, sources and reducers.
    rate: arriving tuples a second.
    arrivals: "poisson" draws the gaps between tuples at random; "regular" makes them equal.
    seed: determines the random gaps.

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
    require(keys.size > 0, "keys is empty: give at least 1 tuple")
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
        rate=rate,
        throughput=throughput,
        stable=rate < throughput,
        latency_mean=float(latency.mean()),
        latency_p50=float(p50),
        latency_p95=float(p95),
        latency_p99=float(p99),
        flush_latency=flush_latency,
        counters=int(demand.counters.sum(axis=1).max()),
        counters_of_worker=int(demand.counters.max()),
        utilization=rate * demand.seconds_per_tuple,
    )


@dataclass(frozen=True)
class _Demand:
    """The work of each station in each period between two flushes."""

    ends: NDArray[np.int64]  # of each period: the number of the first tuple after it
    counters: NDArray[np.int64]  # [periods, workers]
    partials: NDArray[np.int64]  # [periods, reducers]
    seconds_per_tuple: float  # of the busiest station


def _demand(keys: Keys, workers: Workers, arrival: NDArray[np.float64], n_workers: int, cluster: Cluster) -> _Demand:
    """Returns the work of each station. With flushes, tuples after the last one add nothing to `seconds_per_tuple`."""
    n_flushes = int(arrival[-1] / cluster.flush_every)  # 0 if flush_every is infinite
    ends = np.append(np.searchsorted(arrival, cluster.flush_every * np.arange(1, n_flushes + 1)), keys.size)
    counters = np.zeros((ends.size, n_workers), np.int64)
    partials = np.zeros((ends.size, cluster.reducers), np.int64)
    reducers = Hash(cluster.reducers, seed=REDUCERS).route(keys)
    start = 0
    for period, end in enumerate(ends):
        # Counting per (worker, reducer) cell gives the counters of workers and the partials of reducers in one pass.
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
            "give more tuples or a smaller flush_every",
        )
    load = np.bincount(workers[:counted], minlength=n_workers)
    busiest = max(
        cluster.route_time * -(-counted // cluster.sources),
        float((cluster.work_time * load + cluster.flush_time * counters[:flushes].sum(axis=0)).max()),
        float((cluster.merge_time * partials[:flushes].sum(axis=0)).max()),
    )
    return _Demand(ends=ends, counters=counters, partials=partials, seconds_per_tuple=busiest / counted)


def _sustainable(keys: Keys, workers: Workers, arrival: NDArray[np.float64], n_workers: int, cluster: Cluster) -> float:
    """Returns the rate at which the busiest station has a utilization of 1.

    The faster tuples arrive, the more of them share a counter before it is flushed. The work per tuple thus depends on
    the rate, so the rate is found by iteration. A stream too short for two flushes is repeated.
    """
    without_flushes = replace(cluster, flush_every=inf)
    least = _demand(keys, workers, arrival, n_workers, without_flushes).seconds_per_tuple
    if cluster.flush_every == inf or least == 0:
        return 1 / least if least else inf
    rate, duration = 1 / least, float(arrival[-1]) + 1
    for _ in range(50):
        times = ceil(2.5 * cluster.flush_every * rate / duration)
        repeated = (arrival + duration * np.arange(times)[:, None]).reshape(-1) / rate
        seconds = _demand(np.tile(keys, times), np.tile(workers, times), repeated, n_workers, cluster).seconds_per_tuple
        if abs(rate * seconds - 1) < 1e-3:
            break
        rate = (rate + 1 / seconds) / 2
    return rate


def _replay(
    arrival: NDArray[np.float64], workers: Workers, demand: _Demand, cluster: Cluster, latency: NDArray[np.float64]
) -> float:
    """Writes the latency of each tuple to `latency` and returns the longest latency of a flush."""
    free = _Free(sources=np.zeros(cluster.sources), workers=np.zeros(demand.counters.shape[1]))
    reducer_free = np.zeros(cluster.reducers)
    longest, start = 0.0, 0
    for period, end in enumerate(demand.ends):
        arrived = arrival[start:end]
        _queue(arrived, workers[start:end], start, (cluster.route_time, cluster.work_time), free, latency[start:end])
        start = end
        if end < arrival.size:
            flush = (period + 1) * cluster.flush_every
            free.workers[:] = np.maximum(free.workers, flush) + cluster.flush_time * demand.counters[period]
            reducer_free = np.maximum(reducer_free, flush) + cluster.merge_time * demand.partials[period]
            longest = max(longest, float(max(reducer_free.max(), free.workers.max())) - flush)
    return longest


class _Free(NamedTuple):
    """When each source and each worker will have finished its queue."""

    sources: NDArray[np.float64]
    workers: NDArray[np.float64]


@kernel
def _queue(
    arrival: NDArray[np.float64],
    workers: Workers,
    start: int,
    times: tuple[float, float],
    free: _Free,
    latency: NDArray[np.float64],
) -> None:
    """Applies Lindley's recursion at two stations in a row: a server begins when it is free and the tuple is there.

    start: the number of the first tuple in the stream; tuples go to sources in turn.
    times: service times of a source and of a worker, per tuple.
    """
    route_time, work_time = times
    for i in range(arrival.size):
        source = (start + i) % free.sources.size
        free.sources[source] = max(free.sources[source], arrival[i]) + route_time
        worker = workers[i]
        free.workers[worker] = max(free.workers[worker], free.sources[source]) + work_time
        latency[i] = free.workers[worker] - arrival[i]
