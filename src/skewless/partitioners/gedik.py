"""Gedik's Scan, Redist and Readj: heavy keys are assigned one by one, weighing balance against moves."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.histogram import Histogram
from skewless.kernels import kernel
from skewless.kernels.hash import unmix64
from skewless.planning.planner import Planned, Planner, as_policy
from skewless.table import RoutingTable

REPLICAS = 100  # points of each worker on the ring
TURNS = 3  # how often readj may move one key
LEAST = 3  # where the workers with least begin in Resources.ends
_NOWHERE = -1
_NONE = -1


class Resources(NamedTuple):
    """Amounts of resources of heavy keys and workers: row 0 for linear ones, row 1 for quadratic computing, if any."""

    sizes: NDArray[np.float64]  # [resource, heavy key], heaviest first
    held: NDArray[np.float64]  # [resource, worker]
    ends: NDArray[np.int64]  # [resource, 6]: the three workers that hold most; from LEAST on, the three with least
    scale: NDArray[np.float64]  # [resource]: the spread that is just tolerable, theta times the mean
    toll: NDArray[np.float64]  # [1]: the migration penalty of one tuple


@dataclass(eq=False)
class Gedik(Planner):
    """Base class of the three: the ring, and the loads that a plan is judged by.

    Light keys follow a ring of consistent hashing, the same in every plan and before the first one: switching from
    hashing to a plan moves heavy keys only, and the first plan compares with the ring. A worker's load is what it holds
    of heavy and of light keys. Penalties: that for balance is the geometric mean over state, network and computing of
    (most - least) / (theta x mean); that for migration is moved / (tracked / n), where tracked is the number of tuples
    of all heavy keys. The utility of a plan is the sum of both; less is better.

    heavy, theta, compute: as in `scan`.
    """

    splits_keys: ClassVar[bool] = False
    averages: ClassVar[bool] = True

    heavy: int = 2
    theta: float = 0.2
    compute: Literal["linear", "quadratic"] = "linear"

    def __post_init__(self) -> None:
        self.heavy = whole("heavy", self.heavy, 1, 1000)
        require(self.theta > 0, f"theta is more than 0, not {self.theta}")
        valid = self.compute in ("linear", "quadratic")
        require(valid, f'compute is "linear" or "quadratic", not {self.compute!r}')
        super().__post_init__()

    @abstractmethod
    def settle(self, resources: Resources, old: NDArray[np.int32], workers: NDArray[np.int32]) -> None:
        """Fills in the workers of the heavy keys; at first, `resources.held` counts the light keys only."""

    @cached_property
    def ring(self) -> RoutingTable:
        """The table of the ring alone: hosts lie on it at equal distances and belong to the next point of a worker."""
        plain = RoutingTable.hashed(self.n_workers)
        points = unmix64(np.arange(1, REPLICAS * self.n_workers + 1, dtype=np.uint64))
        order = np.argsort(points)
        distance = np.uint64(2**64 // plain.hosts.size)
        following = np.searchsorted(points[order], np.arange(plain.hosts.size, dtype=np.uint64) * distance)
        return replace(plain, hosts=(order[following % points.size] // REPLICAS).astype(np.int32))

    def fresh(self) -> Planned:
        fresh = super().fresh()
        return fresh._replace(policy=as_policy(self.ring, fresh.rule))

    def make_table(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        n_heavy = min(self.heavy * self.n_workers, histogram.keys.size)
        keys, light = histogram.keys[:n_heavy], self.ring.main_workers(histogram.keys[n_heavy:])
        powers = (1,) if self.compute == "linear" else (1, 2)
        amounts = np.stack([histogram.counts**power for power in powers])
        held = [np.bincount(light, row, minlength=self.n_workers).astype(np.float64) for row in amounts[:, n_heavy:]]
        held[0] += self.ring.spread(histogram.rest)
        sizes = amounts[:, :n_heavy].copy()
        resources = Resources(
            sizes=sizes,
            held=np.stack(held),
            ends=np.empty((len(powers), 6), np.int64),
            scale=self.theta * np.append(histogram.total, amounts[1:].sum(axis=1)) / self.n_workers,
            toll=np.array([self.n_workers / sizes[0].sum()]),
        )
        workers = np.full(n_heavy, _NOWHERE, np.int32)
        self.settle(resources, old.main_workers(keys), workers)
        return replace(self.ring, version=old.version).with_hot_keys(
            keys, np.arange(n_heavy + 1), workers, np.ones(n_heavy)
        )


@dataclass(eq=False)
class Scan(Gedik):
    """Scan: whole keys; heavy ones, by falling frequency, each where balance and migration together cost least.

    A move must be worth its cost, so most keys stay; and no light key ever moves. So the worker of the heaviest key
    keeps its part of the light ones, and the imbalance grows with the number of workers.

    heavy: keys assigned one by one, per worker.
    theta: the spread of loads that is tolerable, as a part of the mean; a smaller one makes balance more important.
    compute: "linear" if computing grows as the tuples of a key do, like state and network, "quadratic" if as their
        square.
    moving, memory: as for every planner (`skewless.planning.planner.Planner`).

    >>> import skewless
    >>> keys = skewless.streams.zipf(100_000, keys=10_000, exponent=1.0)
    >>> p = skewless.partitioner("scan", 16)
    >>> before = p.route(keys)
    >>> p.observe(keys)
    >>> p.adopt(p.merge([p.snapshot()]))
    >>> after = p.route(keys)
    >>> [round(skewless.measure(keys, workers, 16).imbalance_ratio, 2) for workers in (before, after)]
    [2.22, 2.16]
    >>> round(float((before != after).mean()), 3)
    0.025

    Gedik: Partitioning functions for stateful data parallelism in stream processing. VLDB Journal 23(4), 2014.

    Departures from the paper: the mean is that of all final loads, which the counts give at the start, not of the loads
    so far. Light keys count, as far as they were seen. A key is tried where it was and on the worker with least load
    (with quadratic computing, also on the worker with least of that): if all is linear, no other can be better, and
    ties go to these. The ring assigns hosts, points at equal distances on it, rather than keys.
    """

    name: ClassVar[str] = "scan"

    def settle(self, resources: Resources, old: NDArray[np.int32], workers: NDArray[np.int32]) -> None:
        _scan(resources, old, workers)


@dataclass(eq=False)
class Redist(Gedik):
    """Redist: whole keys; as scan, but of all heavy keys and workers always the pair that costs least per tuple.

    What a pair costs is the utility after it, so heavy keys come first nearly as in scan, and so do the results. The
    parameters and the ring are those of `scan`.

    >>> import skewless
    >>> keys = skewless.streams.zipf(100_000, keys=10_000, exponent=1.0)
    >>> p = skewless.partitioner("redist", 16)
    >>> before = p.route(keys)
    >>> p.observe(keys)
    >>> p.adopt(p.merge([p.snapshot()]))
    >>> after = p.route(keys)
    >>> [round(skewless.measure(keys, workers, 16).imbalance_ratio, 2) for workers in (before, after)]
    [2.22, 2.16]
    >>> round(float((before != after).mean()), 3)
    0.025

    Gedik: Partitioning functions for stateful data parallelism in stream processing. VLDB Journal 23(4), 2014.

    Departures from the paper: those of `scan`.
    """

    name: ClassVar[str] = "redist"

    def settle(self, resources: Resources, old: NDArray[np.int32], workers: NDArray[np.int32]) -> None:
        _redist(resources, old, workers)


@dataclass(eq=False)
class Readj(Gedik):
    """Readj: whole keys; heavy ones stay, except for single moves and swaps that gain most balance per tuple moved.

    It starts from the old plan, and stops when no step lowers the balance penalty by more than the migration
    penalty of what it moves. It moves the fewest tuples of the three. The parameters and the ring are those of `scan`.

    >>> import skewless
    >>> keys = skewless.streams.zipf(100_000, keys=10_000, exponent=1.0)
    >>> p = skewless.partitioner("readj", 16)
    >>> before = p.route(keys)
    >>> p.observe(keys)
    >>> p.adopt(p.merge([p.snapshot()]))
    >>> after = p.route(keys)
    >>> [round(skewless.measure(keys, workers, 16).imbalance_ratio, 2) for workers in (before, after)]
    [2.22, 2.16]
    >>> round(float((before != after).mean()), 3)
    0.01

    Gedik: Partitioning functions for stateful data parallelism in stream processing. VLDB Journal 23(4), 2014.

    Departures from the paper: light keys count, as in `scan`. A key takes part in 3 steps at most. A step pays for
    what it moves even if that returns a key to its former worker.
    """

    name: ClassVar[str] = "readj"

    def settle(self, resources: Resources, old: NDArray[np.int32], workers: NDArray[np.int32]) -> None:
        workers[:] = old
        _readj(resources, workers, np.zeros(old.size, np.int64))


@kernel
def _scan(s: Resources, old: NDArray[np.int32], workers: NDArray[np.int32]) -> None:
    for key in range(old.size):
        _find_ends(s)
        _, workers[key] = _best(s, key, old[key], 0.0)
        _shift(s, key, _NONE, _NOWHERE, workers[key])


@kernel
def _redist(s: Resources, old: NDArray[np.int32], workers: NDArray[np.int32]) -> None:
    moved = 0.0
    for _ in range(old.size):
        _find_ends(s)
        least, chosen, worker = np.inf, 0, 0
        for key in range(old.size):
            if workers[key] == _NOWHERE:
                utility, target = _best(s, key, old[key], moved)
                if utility / s.sizes[0, key] < least:
                    least, chosen, worker = utility / s.sizes[0, key], key, target
        workers[chosen] = worker
        _shift(s, chosen, _NONE, _NOWHERE, worker)
        if worker != old[chosen]:
            moved += s.sizes[0, chosen]


@kernel
def _best(s: Resources, key: int, old: int, moved: float) -> tuple[float, int]:
    """Returns the least utility of assigning a key, and to which worker; `moved` tuples were moved before it."""
    least, best = _penalty(s, key, _NONE, _NOWHERE, old) + moved * s.toll[0], old
    for resource in range(s.held.shape[0]):
        target = s.ends[resource, LEAST]
        if target != old:
            utility = _penalty(s, key, _NONE, _NOWHERE, target) + (moved + s.sizes[0, key]) * s.toll[0]
            if utility < least:
                least, best = utility, target
    return least, best


@kernel
def _readj(s: Resources, workers: NDArray[np.int32], turns: NDArray[np.int64]) -> None:
    """Moves and swaps keys as long as that helps; `workers` has the old ones at first."""
    for key in range(workers.size):
        _shift(s, key, _NONE, _NOWHERE, workers[key])
    key = 0
    while key != _NONE:
        key, partner, target = _best_step(s, workers, turns)
        if key != _NONE:
            _shift(s, key, partner, workers[key], target)
            if partner != _NONE:
                workers[partner] = workers[key]
                turns[partner] += 1
            workers[key] = target
            turns[key] += 1


@kernel
def _best_step(s: Resources, workers: NDArray[np.int32], turns: NDArray[np.int64]) -> tuple[int, int, int]:
    """Returns the key to move, the partner that it swaps with, if any, and its new worker; no key if nothing helps.

    A spread can become smaller only if the worker with most or that with least is part of the step.
    """
    n_keys, n_workers = workers.size, s.held.shape[1]
    _find_ends(s)
    now = _penalty(s, 0, 0, _NOWHERE, workers[0])  # key 0 swapped with itself: nothing changes
    best = (_NONE, _NONE, _NOWHERE)
    most, best_number = s.toll[0], 0
    for end in range(2 * s.held.shape[0]):
        extreme = s.ends[end // 2, end % 2 * LEAST]
        for key in range(n_keys):
            if turns[key] == TURNS:
                continue
            # Options are workers to move to, then keys to swap with.
            options = range(n_workers + n_keys) if workers[key] == extreme else range(extreme, extreme + 1)
            for option in options:
                first, second, target = key, _NONE, option
                if option >= n_workers:
                    other = option - n_workers
                    first, second = min(key, other), max(key, other)
                    target = workers[second]
                    if turns[other] == TURNS:
                        continue
                if target == workers[first]:
                    continue
                moved = s.sizes[0, first] + (0.0 if second == _NONE else s.sizes[0, second])
                gain = (now - _penalty(s, first, second, workers[first], target)) / moved
                number = first * (n_workers + n_keys) + (target if second == _NONE else n_workers + second)
                if gain > most or (gain == most and number < best_number):
                    most, best_number = gain, number
                    best = (first, second, target)
    return best


@kernel
def _penalty(s: Resources, key: int, partner: int, source: int, target: int) -> float:
    """Returns the balance penalty if a key went from source to target, and a partner the other way."""
    first = second = 0.0
    for resource in range(s.held.shape[0]):
        amount = s.sizes[resource, key]
        if partner != _NONE:
            amount -= s.sizes[resource, partner]
        high = low = s.held[resource, target] + amount
        if source != _NOWHERE:
            high = max(high, s.held[resource, source] - amount)
            low = min(low, s.held[resource, source] - amount)
        for end in range(6):
            worker = s.ends[resource, end]
            if worker != _NOWHERE and worker != source and worker != target:
                high = max(high, s.held[resource, worker])
                low = min(low, s.held[resource, worker])
        first, second = second, (high - low) / s.scale[resource]
    # State and network are the first resource; computing is the second, or like them.
    return second if s.held.shape[0] == 1 else float((first * first * second) ** (1 / 3))


@kernel
def _shift(s: Resources, key: int, partner: int, source: int, target: int) -> None:
    for resource in range(s.held.shape[0]):
        amount = s.sizes[resource, key]
        if partner != _NONE:
            amount -= s.sizes[resource, partner]
        s.held[resource, target] += amount
        if source != _NOWHERE:
            s.held[resource, source] -= amount


@kernel
def _find_ends(s: Resources) -> None:
    for resource in range(s.held.shape[0]):
        held, ends = s.held[resource], s.ends[resource]
        for rank in range(6):
            ends[rank] = _NOWHERE
        for worker in range(held.size):
            _enter(held, ends[:LEAST], worker, 1.0)
            _enter(held, ends[LEAST:], worker, -1.0)


@kernel
def _enter(held: NDArray[np.float64], ends: NDArray[np.int64], worker: int, sign: float) -> None:
    """Puts a worker among the three at one end, if it belongs there; the first of equals goes first."""
    rank = 3
    while rank > 0 and (ends[rank - 1] == _NOWHERE or sign * held[worker] > sign * held[ends[rank - 1]]):
        rank -= 1
        if rank < 2:
            ends[rank + 1] = ends[rank]
    if rank < 3:
        ends[rank] = worker
