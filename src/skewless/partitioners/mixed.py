"""Mixed: hashing, and a small table of keys that go elsewhere, cleaned and refilled as the loads change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.histogram import Histogram
from skewless.kernels import kernel
from skewless.planning.planner import Planner
from skewless.table import RoutingTable

NEAR = 0.001  # how near to the smallest bound that works, as a part of the mean
EASE = 0.03  # how much above that bound the old plan may be and still be kept
PATIENCE = 4  # keys that may leave their workers in one try, per entry of the table
_NONE = -1


class Packing(NamedTuple):
    """A plan in the making. Keys are numbered as in the histogram: of two keys, the lower number is the heavier one."""

    counts: NDArray[np.float64]
    hashed: NDArray[np.int32]
    workers: NDArray[np.int32]
    load: NDArray[np.float64]
    first: NDArray[np.int64]  # of each worker: its heaviest key
    following: NDArray[np.int64]  # of each key: the next lighter one on its worker
    queue: NDArray[np.int64]  # a heap of keys that need a worker, heaviest first
    queued: NDArray[np.int64]  # [WAITING, EVER]
    tried: NDArray[np.bool_]


WAITING, EVER = range(2)  # of Packing.queued: keys in the queue now, and keys that were ever in it


@dataclass(eq=False)
class Mixed(Planner):
    """Mixed: whole keys, hashed except for a small table that evens out the loads and changes only as far as needed.

    Every load should be at most 1 + theta times the mean. Keys leave the workers that are too full, heaviest first, and
    go, heaviest first, to the least loaded; where that has no room, smaller keys make room and go on themselves. A key
    that is not on its hash worker takes an entry. If there are too many, the cheapest entries of the old table are
    given up before all this: their keys go back to their hash workers. Hosts never move.

    heavy: entries of the table, per worker, as many as kip has (A_max).
    theta: how much above the mean a worker may be, as a part of it; more if the table is too small for that. None: as
        little as possible.
    moving, memory: as for every planner (`skewless.planning.planner.Planner`).

    >>> import skewless
    >>> keys = skewless.streams.zipf(100_000, keys=10_000, exponent=1.0)
    >>> p = skewless.partitioner("mixed", 16)
    >>> before = p.route(keys)
    >>> p.observe(keys)
    >>> p.adopt(p.merge([p.snapshot()]))
    >>> after = p.route(keys)
    >>> [round(skewless.measure(keys, workers, 16).imbalance_ratio, 2) for workers in (before, after)]
    [2.45, 1.92]
    >>> round(float((before != after).mean()), 3)
    0.128

    Fang, Zhang, Fu, Zhang, Zhou, Zhu: Parallel stream processing against workload skewness and variance. HPDC 2017.

    Departures from the paper: a bound that cannot be met gives way to the smallest that can, by bisection; light keys
    are the cheap ones to move, as state grows with tuples. The number of entries given up doubles from try to try. A
    bound under which more than four times as many keys leave their workers as the table has entries counts as one that
    cannot be met. Entries for keys that are no longer counted are dropped. The old table stays if it is within 3
    percent of the smallest bound: otherwise noise would now and then move the heaviest key.
    """

    name: ClassVar[str] = "mixed"
    splits_keys: ClassVar[bool] = False
    averages: ClassVar[bool] = True

    heavy: int = 2
    theta: float | None = None

    def __post_init__(self) -> None:
        self.heavy = whole("heavy", self.heavy, 1, 1000)
        require(self.theta is None or self.theta >= 0, f"theta is None, or 0 or more, not {self.theta}")
        super().__post_init__()

    def make_table(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        keys, counts = histogram.keys, histogram.counts
        hashed, workers = old.hosts[old.host_of(keys)], old.main_workers(keys)
        mean = histogram.total / self.n_workers
        low = max(mean * (1 + (self.theta or 0.0)), float(counts[0]))
        rest = old.spread(histogram.rest)
        high = float((rest + np.bincount(hashed, counts, minlength=self.n_workers)).max())
        best = self._within(low, rest, counts, hashed, workers)
        if best is None:
            best = hashed
            while high - low > NEAR * mean:
                middle = (low + high) / 2
                tried = self._within(middle, rest, counts, hashed, workers)
                if tried is None:
                    low = middle
                else:
                    best, high = tried, middle
            now = float((rest + np.bincount(workers, counts, minlength=self.n_workers)).max())
            if now <= (1 + EASE) * high:
                unchanged = self._within(now, rest, counts, hashed, workers)
                best = best if unchanged is None else unchanged
        routed = np.flatnonzero(best != hashed)
        return old.with_hot_keys(keys[routed], np.arange(routed.size + 1), best[routed], np.ones(routed.size))

    def _within(
        self,
        bound: float,
        rest: NDArray[np.float64],
        counts: NDArray[np.float64],
        hashed: NDArray[np.int32],
        old: NDArray[np.int32],
    ) -> NDArray[np.int32] | None:
        """Returns workers of keys such that none has more than the bound; None if the table has no room for that."""
        routed, most = np.flatnonzero(old != hashed), self.heavy * self.n_workers
        cleaned = 0
        while True:
            workers = old.copy()
            workers[routed[routed.size - cleaned :]] = hashed[routed[routed.size - cleaned :]]  # phase 1
            packing = Packing(
                counts=counts,
                hashed=hashed,
                workers=workers,
                load=rest + np.bincount(workers, counts, minlength=self.n_workers),
                first=np.full(self.n_workers, _NONE),
                following=np.empty(counts.size, np.int64),
                queue=np.empty(PATIENCE * most, np.int64),
                queued=np.zeros(2, np.int64),
                tried=np.empty(self.n_workers, np.bool_),
            )
            if _settle(packing, bound) and np.count_nonzero(workers != hashed) <= most:
                return workers
            if cleaned == routed.size:
                return None
            cleaned = min(2 * cleaned + 1, routed.size)


@kernel
def _settle(s: Packing, bound: float) -> bool:
    """Runs phases 2 and 3; returns False if a key finds no worker, or too many would have to move."""
    for key in range(s.counts.size - 1, -1, -1):
        s.following[key] = s.first[s.workers[key]]
        s.first[s.workers[key]] = key
    for worker in range(s.load.size):
        while s.load[worker] > bound:
            if s.first[worker] == _NONE or not _take(s, worker, _NONE):
                return False
    while s.queued[WAITING] > 0:
        key = _pop(s)
        worker = _roomiest(s, key, bound)
        if worker == _NONE:
            return False
        before = _before(s, worker, key)
        while s.load[worker] + s.counts[key] > bound:
            if not _take(s, worker, before):
                return False
        _put(s, worker, key)
    return True


@kernel
def _roomiest(s: Packing, key: int, bound: float) -> int:
    """Returns the least loaded worker that has room for a key, or has it once smaller keys have left."""
    for worker in range(s.load.size):
        s.tried[worker] = False
    for _ in range(s.load.size):
        best = _NONE
        for worker in range(s.load.size):
            if not s.tried[worker] and (best == _NONE or s.load[worker] < s.load[best]):
                best = worker
        s.tried[best] = True
        left = s.load[best]
        before = _before(s, best, key)
        smaller = s.first[best] if before == _NONE else s.following[before]
        while smaller != _NONE and left + s.counts[key] > bound:
            left -= s.counts[smaller]
            smaller = s.following[smaller]
        if left + s.counts[key] <= bound:
            return best
    return _NONE


@kernel
def _before(s: Packing, worker: int, key: int) -> int:
    """Returns the last key of a worker that is not smaller than this one."""
    before, smaller = _NONE, s.first[worker]
    while smaller != _NONE and s.counts[smaller] >= s.counts[key]:
        before, smaller = smaller, s.following[smaller]
    return before


@kernel
def _take(s: Packing, worker: int, before: int) -> bool:
    """Moves the key after `before` from a worker to the queue; returns False if the queue has no room."""
    if s.queued[EVER] == s.queue.size:
        return False
    if before == _NONE:
        key = s.first[worker]
        s.first[worker] = s.following[key]
    else:
        key = s.following[before]
        s.following[before] = s.following[key]
    s.load[worker] -= s.counts[key]
    at = s.queued[WAITING]
    s.queued[WAITING] += 1
    s.queued[EVER] += 1
    while at > 0 and s.queue[(at - 1) // 2] > key:
        s.queue[at] = s.queue[(at - 1) // 2]
        at = (at - 1) // 2
    s.queue[at] = key
    return True


@kernel
def _pop(s: Packing) -> int:
    """Takes the heaviest key from the queue."""
    key = int(s.queue[0])
    s.queued[WAITING] -= 1
    last, at, child = s.queue[s.queued[WAITING]], 0, 1
    while child < s.queued[WAITING]:
        if child + 1 < s.queued[WAITING] and s.queue[child + 1] < s.queue[child]:
            child += 1
        if s.queue[child] > last:
            break
        s.queue[at] = s.queue[child]
        at, child = child, 2 * child + 1
    s.queue[at] = last
    return key


@kernel
def _put(s: Packing, worker: int, key: int) -> None:
    before, after = _NONE, s.first[worker]
    while after != _NONE and after < key:
        before, after = after, s.following[after]
    if before == _NONE:
        s.first[worker] = key
    else:
        s.following[before] = key
    s.following[key] = after
    s.load[worker] += s.counts[key]
    s.workers[key] = worker
