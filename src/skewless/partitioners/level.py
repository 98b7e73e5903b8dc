"""Level, a planner that evens out all loads with at most n - 1 fragments more than keys, and moves little."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require
from skewless.arrays import NO_TIMES, Keys, Times, Workers
from skewless.histogram import Histogram
from skewless.kernels import kernel
from skewless.kernels.fit import roomiest, tightest
from skewless.migration import Moving, Verdict, worth_it
from skewless.planning.planner import Planned, Planner, Policy, planned_worker
from skewless.table import HOT, RoutingTable

POURED = 0.02  # at least this share of all tuples is in keys that may be split, to even out what hosts leave uneven
SPARE = 2.0  # standard deviations of its load that a worker takes beyond the plan before it passes tuples on
NEAR = 1.005  # whole keys: how near to the longest-processing-time rule is near enough to move less
_NONE = np.int32(-1)


@dataclass(eq=False)
class Level(Planner):
    """Level pours the hot keys over what the hosts leave, so that every worker is filled to the same height.

    The hosts, which carry the many small keys whole, stay where they were as far as there is room. Then the hot keys,
    heaviest first, go where they were before, as much as fits; what is left goes to the tightest worker that can hold
    all of it, or fills the emptiest and goes on. Each fragment so made either fills up a worker or ends its key: at
    most n - 1 fragments more than keys, McNaughton's wrap-around rule. Small keys are spread evenly first, so workers
    are even in keys too.

    The batch that was planned goes by the plan, tuple for tuple. So does what comes after it, until the next plan, but
    a worker that got its part and two standard deviations more passes further tuples on to the worker that is farthest
    below its part: loads stay level on unseen batches, for a few more fragments. A routing table cannot do that: under
    a table, the loads of the next batch differ by chance.

    split: False keeps every key whole: bin packing that moves few keys, at most half a percent worse than the
        longest-processing-time rule.
    even: with split=False, where a key is too heavy for any worker, level also the workers without such a key, which
        moves more. By default they may stay uneven, as long as none exceeds the worker of the heaviest key.
    speeds: how fast each worker is, relative to the others; a slow executor gets less. None: all alike.
    key_cost: what a key costs on each worker that holds it, in tuples, besides its tuples.
    moving, memory: as for every planner (`skewless.planning.planner.Planner`).

    >>> import numpy as np, skewless
    >>> keys = skewless.streams.zipf(100_000, keys=10_000, exponent=1.5)
    >>> p = skewless.partitioner("level", 16)
    >>> p.observe(keys)
    >>> p.adopt(p.merge([p.snapshot()]))
    >>> m = skewless.measure(keys, p.route(keys), 16)
    >>> round(m.imbalance_ratio, 2), m.keys, m.fragments
    (1.0, 2285, 2300)

    Source: Skewless, after McNaughton: Scheduling with deadlines and loss functions. Management Science 6(1), 1959.
    """

    name: ClassVar[str] = "level"

    split: bool = True
    even: bool = False
    speeds: tuple[float, ...] | None = None
    key_cost: float = 0.0

    def __post_init__(self) -> None:
        self.key_cost = float(self.key_cost)
        self.speeds = None if self.speeds is None else tuple(map(float, self.speeds))
        super().__post_init__()
        require(self.key_cost >= 0, f"key_cost is 0 tuples or more, not {self.key_cost}")
        if self.speeds is not None:
            n_speeds = len(self.speeds)
            require(
                n_speeds == self.n_workers, f"every worker has a speed: {self.n_workers} workers, {n_speeds} speeds"
            )
            require(min(self.speeds) > 0, f"a speed is more than 0, not {min(self.speeds)}")

    @property
    def splits_keys(self) -> bool:
        return self.split

    def make_table(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        n_hot = self._n_hot(histogram)
        hot, sizes = histogram.keys[:n_hot], histogram.counts[:n_hot]
        host_sizes = histogram.by_host(old, n_hot, self.key_cost)
        speeds = np.ones(self.n_workers) if self.speeds is None else np.array(self.speeds)
        share = speeds / speeds.sum()
        if self.split:
            total = host_sizes.sum() + sizes.sum() + self.key_cost * (n_hot + self.n_workers - 1)
            hosts, room = _keep(host_sizes, old.hosts, share * total)
            starts, workers, poured = _pour(hot, sizes, _Costs(key=self.key_cost, dust=1e-9 * float(total)), room, old)
            return replace(old, hosts=hosts).with_hot_keys(hot, starts, workers, poured)
        assigned = _packed(
            np.concatenate((sizes + self.key_cost, host_sizes)),
            np.concatenate((old.main_workers(hot), old.hosts)),
            share,
            self.even,
        )
        bare = replace(old, hosts=assigned[n_hot:])
        return bare.with_hot_keys(hot, np.arange(n_hot + 1), assigned[:n_hot], np.ones(n_hot))

    def noted(self, plan: RoutingTable, histogram: Histogram) -> NDArray[np.float64]:
        """Returns [load of each worker in the batch, how much more it may get]; empty if keys are not split."""
        loads = plan.loads(histogram.keys, histogram.counts, histogram.rest)
        if not self.split or histogram.total < self.n_workers:
            return np.empty(0)
        # A worker gets the tuples of a split key in turn, so it may have one more or one less than its part.
        in_turn = np.repeat(np.diff(plan.starts) > 1, np.diff(plan.starts))
        spare = SPARE * (np.sqrt(loads) + np.bincount(plan.workers[in_turn], minlength=self.n_workers))
        return np.concatenate((loads, spare))

    def adopt(self, policy: Policy, reported: Planned | None = None) -> None:
        before = self._state.policy
        super().adopt(policy, reported)
        if self._state.policy is not before:
            loads = self._state.policy.memo[: self.n_workers]
            self._state = self._state._replace(memo=np.append(loads, loads.sum()) if loads.size else np.empty(0))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        if self._state.memo.size:
            self.run(_follow_with_room, keys, NO_TIMES, workers)
        else:
            super().assign(keys, times, workers)

    def worth(self, old: RoutingTable, new: RoutingTable, histogram: Histogram, moving: Moving) -> Verdict:
        speeds = None if self.speeds is None else np.array(self.speeds) / np.mean(self.speeds)
        return worth_it(old, new, histogram, moving, speeds=speeds, key_cost=self.key_cost)

    def _n_hot(self, histogram: Histogram) -> int:
        """Returns how many keys to pour: those above 1 / (10 n) of all tuples, and more if these are too few."""
        enough = int(np.searchsorted(np.cumsum(histogram.counts), POURED * histogram.total)) + 1
        least = min(enough, 2 * HOT * self.n_workers, histogram.keys.size)
        return max(histogram.heavier_than(1 / (HOT * self.n_workers)), least)


@kernel
def _follow_with_room(s: Planned, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    """Follows the plan as long as its worker has room; all workers get new room after as many tuples as were planned.

    Planned.memo is [room of each worker, tuples until there is new room]; Policy.memo is what `noted` returns.
    """
    n = s.memo.size - 1
    room, unspent = s.memo[:n], s.memo[n:]
    loads, spare = s.policy.memo[:n], s.policy.memo[n:]
    for i in range(start, keys.size):
        if unspent[0] < 1.0:
            for worker in range(n):
                room[worker] += loads[worker]
                unspent[0] += loads[worker]
        unspent[0] -= 1.0
        worker = planned_worker(s, keys[i])
        if room[worker] <= -spare[worker]:
            worker = roomiest(room)
        room[worker] -= 1.0
        workers[i] = worker
    return keys.size


def _keep(
    sizes: NDArray[np.float64], old: NDArray[np.int32], room: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Assigns hosts, heaviest first, to their old worker if it has room, else to the roomiest; returns the room too."""
    room = room.copy()
    new = np.full(sizes.size, _NONE)
    _keep_hosts(np.argsort(-sizes, kind="stable"), sizes, old, room, new)
    return new, room


@kernel
def _keep_hosts(
    order: NDArray[np.int64],
    sizes: NDArray[np.float64],
    old: NDArray[np.int32],
    room: NDArray[np.float64],
    new: NDArray[np.int32],
) -> None:
    for host in order:
        if sizes[host] <= room[old[host]]:
            new[host] = old[host]
            room[old[host]] -= sizes[host]
    for host in order:
        if new[host] < 0:
            new[host] = roomiest(room)
            room[new[host]] -= sizes[host]


class _Costs(NamedTuple):
    """Amounts of tuples that `_pour_keys` needs."""

    key: float  # what a key costs on each worker, besides its tuples
    dust: float  # the size up to which an amount counts as nothing


def _pour(
    keys: NDArray[np.uint64],
    sizes: NDArray[np.float64],
    costs: _Costs,
    room: NDArray[np.float64],
    old: RoutingTable,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]:
    """Returns the fragments of each key: where they start, their workers, their sizes."""
    former = [sorted(shares, key=lambda worker: -shares[worker]) for shares in map(old.shares, keys.tolist())]
    former_starts = np.cumsum([0, *map(len, former)])
    former_workers = np.array([worker for workers in former for worker in workers], np.int32)
    most = keys.size + room.size
    out = _Poured(starts=np.zeros(keys.size + 1, np.int64), workers=np.empty(most, np.int32), poured=np.empty(most))
    _pour_keys(sizes, costs, room, former_starts, former_workers, out)
    size = out.starts[-1]
    return out.starts, out.workers[:size], out.poured[:size]


class _Poured(NamedTuple):
    """Room for the fragments that `_pour_keys` makes."""

    starts: NDArray[np.int64]  # of the fragments of each key
    workers: NDArray[np.int32]
    poured: NDArray[np.float64]  # size of each fragment


@kernel
def _pour_keys(
    sizes: NDArray[np.float64],
    costs: _Costs,
    room: NDArray[np.float64],
    former_starts: NDArray[np.int64],
    former_workers: NDArray[np.int32],
    out: _Poured,
) -> None:
    """Fills in the fragments of the keys."""
    key_cost, dust = costs.key, costs.dust
    starts, workers, poured = out.starts, out.workers, out.poured
    at = 0
    for key in range(sizes.size):
        left = sizes[key]
        former = former_starts[key]
        while left > dust or at == starts[key]:
            if former < former_starts[key + 1]:
                worker = int(former_workers[former])
                former += 1
                if room[worker] <= key_cost + dust:
                    continue
            else:
                worker = tightest(room, left + key_cost)
            # The last of all takes what rounding left, room or not.
            amount = left if at == workers.size - 1 else min(left, max(room[worker] - key_cost, 0.0))
            if amount <= dust:
                amount = left
            workers[at], poured[at] = worker, amount
            room[worker] -= amount + key_cost
            left -= amount
            at += 1
        starts[key + 1] = at


def _packed(
    sizes: NDArray[np.float64], old: NDArray[np.int32], share: NDArray[np.float64], even: bool
) -> NDArray[np.int32]:
    """Assigns whole items to workers: moves few, but keeps the fullest near that of longest-processing-time.

    even: the same holds for the fullest of the workers without an item that exceeds a worker's part by itself.
    """
    order = np.argsort(-sizes, kind="stable")
    new, load = np.empty(sizes.size, np.int32), np.empty(share.size)
    _pack(order, sizes, old, share, 0.0, load, new)
    by_rule, best = new.copy(), _fullest(sizes, new, share, load)
    for part in (1.0, 0.97, 0.9, 0.75, 0.5):
        _pack(order, sizes, old, share, (best.shared if even else best.of_all) * part, load, new)
        fullest = _fullest(sizes, new, share, load)
        if fullest.of_all <= NEAR * best.of_all and (not even or fullest.shared <= NEAR * best.shared):
            return new
    return by_rule


class _Heights(NamedTuple):
    """The height (load / share) of the fullest worker."""

    of_all: float
    shared: float  # of those without an item that exceeds a worker's part by itself; 0: there are none


def _fullest(
    sizes: NDArray[np.float64], old: NDArray[np.int32], share: NDArray[np.float64], load: NDArray[np.float64]
) -> _Heights:
    giants = sizes > sizes.sum() * share[old]
    shared = np.ones(share.size, np.bool_)
    shared[old[giants]] = False
    heights = load / share
    return _Heights(of_all=float(heights.max()), shared=float(heights[shared].max(initial=0.0)))


@kernel
def _pack(
    order: NDArray[np.int64],
    sizes: NDArray[np.float64],
    old: NDArray[np.int32],
    share: NDArray[np.float64],
    height: float,
    load: NDArray[np.float64],
    new: NDArray[np.int32],
) -> None:
    """Keeps items on their workers up to a height (load / share); the others go, heaviest first, where they end lowest.

    Height 0 keeps no item: that is the longest-processing-time rule itself.
    """
    for worker in range(load.size):
        load[worker] = 0.0
    for item in order:
        new[item] = -1
        room = height * share[old[item]]
        alone = height > 0.0 and load[old[item]] == 0.0
        # Empty hosts stay: all of them would find the same worker the lowest.
        if sizes[item] == 0.0 or load[old[item]] + sizes[item] <= room or (alone and sizes[item] > room):
            new[item] = old[item]
            load[old[item]] += sizes[item]
    for item in order:
        if new[item] < 0:
            lowest = 0
            for worker in range(1, load.size):
                if (load[worker] + sizes[item]) / share[worker] < (load[lowest] + sizes[item]) / share[lowest]:
                    lowest = worker
            new[item] = lowest
            load[lowest] += sizes[item]
