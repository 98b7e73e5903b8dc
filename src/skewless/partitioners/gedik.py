"""Gedik's Scan, Redist and Readj: heavy keys one by one, weighing balance against moves; the rest by a ring."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import require, whole
from skewless.histogram import Histogram
from skewless.kernels import kernel
from skewless.kernels.hash import unmix64
from skewless.partitioners.planner import Planned, Planner, as_policy
from skewless.table import RoutingTable

REPLICAS = 100  # points of each worker on the ring
TURNS = 3  # how often readj may move one key
_NOWHERE = -1
_NONE = -1


class Loads(NamedTuple):
    """What heavy keys and workers have of each resource: one row if all are linear, a second one if one is not."""

    sizes: NDArray[np.float64]  # [resource, heavy key], heaviest first
    held: NDArray[np.float64]  # [resource, worker]
    ends: NDArray[np.int64]  # [resource, 6]: the three workers that hold most, most first, and the three with least
    scale: NDArray[np.float64]  # [resource]: the spread that is just tolerable, theta times the mean
    toll: NDArray[np.float64]  # [1]: the migration penalty of one tuple


@dataclass(eq=False)
class Gedik(Planner):
    """What the three share: the ring, and the loads that a placement is judged by.

    Light keys go by a consistent ring, the same in every plan and before the first one: switching from hashing to a
    plan moves heavy keys only, and the first plan compares with the ring. A worker's load is what it holds of heavy and
    of light keys. Penalties: that for balance is the geometric mean over state, network and computing of
    (most - least) / (theta x mean); that for migration is moved / (tracked / n), where tracked is all that the heavy
    keys have. The utility of a placement is their sum; less is better.

    heavy: keys placed one by one, per worker.
    theta: the spread of loads that is tolerable, as a part of the mean.
    compute: "linear" if computing grows as the tuples of a key do, like state and network, "quadratic" if as their
        square.
    """

    splits_keys: ClassVar[bool] = False
    averages: ClassVar[bool] = True

    heavy: int = 2
    theta: float = 0.2
    compute: Literal["linear", "quadratic"] = "linear"

    def __post_init__(self) -> None:
        self.heavy = whole("heavy", self.heavy, 1, 1000)
        require(self.theta > 0, f"theta is more than 0, not {self.theta}")
        known = self.compute in ("linear", "quadratic")
        require(known, f'compute is "linear" or "quadratic", not {self.compute!r}')
        super().__post_init__()

    @abstractmethod
    def settle(self, loads: Loads, old: NDArray[np.int32], places: NDArray[np.int32]) -> None:
        """Fill in the places of the heavy keys; `loads` has the light keys only."""

    @cached_property
    def ring(self) -> RoutingTable:
        """All keys by the ring: hosts lie on it at equal distances, and belong to the next point of a worker."""
        plain = RoutingTable.hashed(self.n_workers)
        points = unmix64(np.arange(1, REPLICAS * self.n_workers + 1, dtype=np.uint64))
        order = np.argsort(points)
        distance = np.uint64(2**64 // plain.hosts.size)
        following = np.searchsorted(points[order], np.arange(plain.hosts.size, dtype=np.uint64) * distance)
        return replace(plain, hosts=(order[following % points.size] // REPLICAS).astype(np.int32))

    def fresh(self) -> Planned:
        fresh = super().fresh()
        return fresh._replace(policy=as_policy(self.ring, fresh.rule))

    def place(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        n_heavy = min(self.heavy * self.n_workers, histogram.keys.size)
        keys, light = histogram.keys[:n_heavy], self.ring.places_of(histogram.keys[n_heavy:])
        powers = (1,) if self.compute == "linear" else (1, 2)
        amounts = np.stack([histogram.counts**power for power in powers])
        held = [np.bincount(light, row, minlength=self.n_workers).astype(np.float64) for row in amounts[:, n_heavy:]]
        held[0] += self.ring.spread(histogram.rest)
        sizes = amounts[:, :n_heavy].copy()
        loads = Loads(
            sizes,
            np.stack(held),
            np.empty((len(powers), 6), np.int64),
            self.theta * np.append(histogram.total, amounts[1:].sum(axis=1)) / self.n_workers,
            np.array([self.n_workers / sizes[0].sum()]),
        )
        places = np.full(n_heavy, _NOWHERE, np.int32)
        self.settle(loads, old.places_of(keys), places)
        return replace(self.ring, version=old.version).placing(keys, np.arange(n_heavy + 1), places, np.ones(n_heavy))


@dataclass(eq=False)
class Scan(Gedik):
    """Scan: whole keys; heavy ones, by falling frequency, each where balance and migration together cost least.

    A move must be worth its cost, so most keys stay; and no light key ever moves. So the worker of the heaviest key
    keeps its part of the light ones, and the imbalance grows with the number of workers.

    heavy: keys placed one by one, per worker.
    theta: the spread of loads that is tolerable, as a part of the mean; less of it makes balance more important.
    compute: "linear" if computing grows as the tuples of a key do, like state and network, "quadratic" if as their
        square.

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

    Departures from the paper: the mean is that of all loads at the end, known from the start, not of those so far.
    Light keys count, by what was seen of them. A key is tried where it was and on the worker with least load (with
    quadratic computing, on that with least of it too): if all is linear, no other can be better, and on ties those are
    preferred. The ring is that of hosts, points at equal distances on it, rather than of keys.
    """

    name: ClassVar[str] = "scan"

    def settle(self, loads: Loads, old: NDArray[np.int32], places: NDArray[np.int32]) -> None:
        _scan(loads, old, places)


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

    def settle(self, loads: Loads, old: NDArray[np.int32], places: NDArray[np.int32]) -> None:
        _redist(loads, old, places)


@dataclass(eq=False)
class Readj(Gedik):
    """Readj: whole keys; heavy ones stay, but for single moves and swaps that gain most balance per tuple moved.

    It starts from the old placement, and stops when no step lowers the balance penalty by more than the migration
    penalty of what it moves. It moves least of the three. The parameters and the ring are those of `scan`.

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
    what it moves even if that returns a key to where it was.
    """

    name: ClassVar[str] = "readj"

    def settle(self, loads: Loads, old: NDArray[np.int32], places: NDArray[np.int32]) -> None:
        places[:] = old
        _readj(loads, places, np.zeros(old.size, np.int64))


@kernel
def _scan(s: Loads, old: NDArray[np.int32], places: NDArray[np.int32]) -> None:
    for key in range(old.size):
        _find_ends(s)
        _, places[key] = _best(s, key, old[key], 0.0)
        _shift(s, key, _NONE, _NOWHERE, places[key])


@kernel
def _redist(s: Loads, old: NDArray[np.int32], places: NDArray[np.int32]) -> None:
    moved = 0.0
    for _ in range(old.size):
        _find_ends(s)
        least, chosen, place = np.inf, 0, 0
        for key in range(old.size):
            if places[key] == _NOWHERE:
                utility, target = _best(s, key, old[key], moved)
                if utility / s.sizes[0, key] < least:
                    least, chosen, place = utility / s.sizes[0, key], key, target
        places[chosen] = place
        _shift(s, chosen, _NONE, _NOWHERE, place)
        if place != old[chosen]:
            moved += s.sizes[0, chosen]


@kernel
def _best(s: Loads, key: int, old: int, moved: float) -> tuple[float, int]:
    """The least utility that placing a key can give, and where; `moved` tuples were moved before it."""
    least, best = _penalty(s, key, _NONE, _NOWHERE, old) + moved * s.toll[0], old
    for resource in range(s.held.shape[0]):
        target = s.ends[resource, 3]
        if target != old:
            utility = _penalty(s, key, _NONE, _NOWHERE, target) + (moved + s.sizes[0, key]) * s.toll[0]
            if utility < least:
                least, best = utility, target
    return least, best


@kernel
def _readj(s: Loads, places: NDArray[np.int32], turns: NDArray[np.int64]) -> None:
    """`places` has the old ones."""
    for key in range(places.size):
        _shift(s, key, _NONE, _NOWHERE, places[key])
    key = 0
    while key != _NONE:
        key, partner, target = _best_step(s, places, turns)
        if key != _NONE:
            _shift(s, key, partner, places[key], target)
            if partner != _NONE:
                places[partner] = places[key]
                turns[partner] += 1
            places[key] = target
            turns[key] += 1


@kernel
def _best_step(s: Loads, places: NDArray[np.int32], turns: NDArray[np.int64]) -> tuple[int, int, int]:
    """The key to move, the partner that it changes places with, if any, and where it goes; no key if nothing helps.

    A spread can become smaller only if the worker with most or that with least is part of the step.
    """
    n_keys, n_workers = places.size, s.held.shape[1]
    _find_ends(s)
    now = _penalty(s, 0, 0, _NOWHERE, places[0])  # key 0 for itself: nothing changes
    best = (_NONE, _NONE, _NOWHERE)
    most, best_number = s.toll[0], 0
    for end in range(2 * s.held.shape[0]):
        extreme = s.ends[end // 2, end % 2 * 3]
        for key in range(n_keys):
            if turns[key] == TURNS:
                continue
            # Options are workers to move to, then keys to change places with.
            options = range(n_workers + n_keys) if places[key] == extreme else range(extreme, extreme + 1)
            for option in options:
                first, second, target = key, _NONE, option
                if option >= n_workers:
                    other = option - n_workers
                    first, second = min(key, other), max(key, other)
                    target = places[second]
                    if turns[other] == TURNS:
                        continue
                if target == places[first]:
                    continue
                moved = s.sizes[0, first] + (0.0 if second == _NONE else s.sizes[0, second])
                gain = (now - _penalty(s, first, second, places[first], target)) / moved
                number = first * (n_workers + n_keys) + (target if second == _NONE else n_workers + second)
                if gain > most or (gain == most and number < best_number):
                    most, best_number = gain, number
                    best = (first, second, target)
    return best


@kernel
def _penalty(s: Loads, key: int, partner: int, source: int, target: int) -> float:
    """The balance penalty if a key went from source to target, and a partner the other way."""
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
def _shift(s: Loads, key: int, partner: int, source: int, target: int) -> None:
    for resource in range(s.held.shape[0]):
        amount = s.sizes[resource, key]
        if partner != _NONE:
            amount -= s.sizes[resource, partner]
        s.held[resource, target] += amount
        if source != _NOWHERE:
            s.held[resource, source] -= amount


@kernel
def _find_ends(s: Loads) -> None:
    for resource in range(s.held.shape[0]):
        held, ends = s.held[resource], s.ends[resource]
        for rank in range(6):
            ends[rank] = _NOWHERE
        for worker in range(held.size):
            _enter(held, ends[:3], worker, 1.0)
            _enter(held, ends[3:], worker, -1.0)


@kernel
def _enter(held: NDArray[np.float64], ends: NDArray[np.int64], worker: int, sign: float) -> None:
    """Put a worker among the three at one end, if it belongs there; the first of equals goes first."""
    rank = 3
    while rank > 0 and (ends[rank - 1] == _NOWHERE or sign * held[worker] > sign * held[ends[rank - 1]]):
        rank -= 1
        if rank < 2:
            ends[rank + 1] = ends[rank]
    if rank < 3:
        ends[rank] = worker
