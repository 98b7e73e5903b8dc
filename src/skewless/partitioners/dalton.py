"""Dalton: a contextual bandit learns where the tuples of each hot key do most good; all other keys are hashed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, Times, Workers, copied, n_bytes, require, whole
from skewless.kernels import hashtable, kernel, sketch
from skewless.kernels import window as windows
from skewless.kernels.hash import Hasher, below, first, hasher, mix64, mixed
from skewless.kernels.hashtable import Table
from skewless.kernels.lowest import Floor, floor, lowered, lowest
from skewless.kernels.sketch import CountMin, count_min
from skewless.kernels.window import NEVER, Clock, Holders, SlidingWindow, clock, holders, sliding_window
from skewless.partitioner import Partitioner, Window, ticking, windowed
from skewless.partitioners.planner import precedence

EPSILON, GAMMA = 0.1, 0.1  # how often to explore; how much a reward weighs
WORST = -2.0  # the least possible reward, where every estimate begins: a key is split by exploration only
MARGIN = 0.05  # greedy: how much fuller than the mean a worker may be before a key goes elsewhere
STATISTICS = 1000  # length of a statistics window where there is no slide to tell it
FREE = -(2**63)  # no window has this number
SKETCH = (4, 4096)  # of the count-min sketch: depth and width
_1 = np.uint64(1)


class Agreed(NamedTuple):
    """A policy: what all sources together learned."""

    version: NDArray[np.int64]
    keys: NDArray[np.uint64]  # hot for all sources together, mixed, ascending
    values: NDArray[np.float64]  # [keys, workers]: Q
    load: NDArray[np.int64]  # tuples of each worker in the window, from all sources


class Statistics(NamedTuple):
    """Frequencies of keys in a tumbling window, by a hash map or a sketch."""

    clock: Clock
    seen: NDArray[np.int64]  # tuples in this window, and in the one before
    exact: Table  # mixed key -> occurrences
    rough: CountMin
    use: NDArray[np.int64]  # 0: hash map, 1: sketch; and whether that may change


class Learned(NamedTuple):
    hasher: Hasher
    rule: NDArray[np.int64]  # the number of rows; whether fragments count within a slide; whether to be greedy
    frequency: Statistics
    window: SlidingWindow
    tuples: NDArray[np.int64]  # in the window, with others'; since the beginning; since the last agreement; its own
    rows: Table  # mixed key -> its row + 1
    keys: NDArray[np.uint64]  # of the rows
    spare: NDArray[np.int64]  # the free rows come first
    until: NDArray[np.int64]  # the last statistics window in which the row is used, or FREE
    values: NDArray[np.float64]  # [rows, workers]: Q(k, a)
    best: NDArray[np.int64]  # argmax Q(k, .)
    second: NDArray[np.float64]  # no other action of the row is worth more
    counts: NDArray[np.int64]  # tuples of the row since the last agreement
    least: Floor  # of the loads
    holders: Holders
    others: NDArray[np.int64]  # load of each worker in the window from other sources, as last agreed
    agreed: Agreed


@dataclass(eq=False)
class Dalton(Partitioner[Learned, Agreed]):
    """Dalton: for a hot key, the worker with the best expected reward, now and then any; for the rest, the hash.

    The reward of a tuple is -(CI + CA) / 2: how much fuller its worker is than the mean, and over how many workers its
    key is spread (equations 3 and 4). Estimates follow rewards by a tenth (equation 5) and begin at the worst, so that
    a key sticks to its worker until exploring has found a better one. A key is hot when it has had at least the n-th
    part of the statistics window before, and stays so to the end of the next window (definition 3.3, section 3.3).

    window: what counts as load and fragments; None: everything since the beginning. A slide is a statistics window.
    hot: keys with at least the (hot x n)-th part are learned about, at most hot x n of them. 1 is the paper's, and lets
        keys just below the threshold collide on one worker.
    frequencies: "exact" counts in a hash map, "sketch" in a count-min sketch, "hybrid" takes the sketch when the last
        statistics window had more keys than half the columns of the sketch, else the hash map.
    micro_batch: fragments count within a slide, which is then a micro-batch, not within the window (section 3.4).
    greedy: no bandit. A hot key goes to the emptiest of its workers, and to the emptiest of all when that one is more
        than 5 % above the mean. With hot=5 this leaves less than half of the bandit's imbalance, and fewer fragments
        than `pkg`.

    >>> import skewless
    >>> keys = skewless.streams.zipf(500_000, keys=10_000, exponent=1.5)
    >>> for name, params in (("hash", {}), ("dalton", {}), ("dalton", {"hot": 5, "greedy": True})):
    ...     m = skewless.measure(keys, skewless.partitioner(name, 16, **params).route(keys), 16)
    ...     print(name, params, round(m.imbalance_ratio, 2), m.keys, m.fragments)
    hash {} 6.54 5137 5137
    dalton {} 1.41 5137 5194
    dalton {'hot': 5, 'greedy': True} 1.01 5137 5156

    Zapridou, Mytilinis, Ailamaki: Dalton: learned partitioning for distributed data streams. PVLDB 16(3), 2022.

    Departures from the paper: `hot` and `greedy`. Ties go to the first worker from the hash of the key on. A key that
    turns hot has come at least twice in its statistics window, and is taken to be held by its hash worker till then. If
    more keys are hot than there are rows, the later ones are hashed. Cooperative merge: the mean of the estimates,
    weighted by the tuples that each source saw of the key; the paper's formula divides by the number of sources and the
    total besides, which shrinks the estimates to nothing. Sources tell each other their loads too, so that rewards are
    for the load of all; what is known of the others fades as slides pass.
    """

    name: ClassVar[str] = "dalton"
    splits_keys: ClassVar[bool] = True

    window: Window | None = None
    hot: int = 1
    frequencies: Literal["exact", "sketch", "hybrid"] = "exact"
    micro_batch: bool = False
    greedy: bool = False

    def __post_init__(self) -> None:
        windowed(self.window)
        self.hot = whole("hot", self.hot, 1, 1000)
        kinds = ("exact", "sketch", "hybrid")
        require(self.frequencies in kinds, f"frequencies is one of {', '.join(kinds)}, not {self.frequencies!r}")
        super().__post_init__()

    def fresh(self) -> Learned:
        n, rows = self.n_workers, self.hot * self.n_workers
        size, slide = (self.window.size, self.window.slide) if self.window else (NEVER, NEVER)
        sketched = int(self.frequencies == "sketch")
        frequency = Statistics(
            clock(slide if self.window else STATISTICS),
            np.zeros(2, np.int64),
            hashtable.table(),
            count_min(*SKETCH),
            np.array([sketched, self.frequencies == "hybrid"], np.int64),
        )
        return Learned(
            hasher(n, self.seed),
            np.array([rows, self.micro_batch, self.greedy], np.int64),
            frequency,
            sliding_window(n, rows, size, slide),
            np.zeros(4, np.int64),
            hashtable.table(rows + 1),
            np.zeros(rows, np.uint64),
            np.arange(rows, dtype=np.int64)[::-1].copy(),
            np.full(rows, FREE, np.int64),
            np.full((rows, n), WORST),
            np.zeros(rows, np.int64),
            np.full(rows, WORST),
            np.zeros(rows, np.int64),
            floor(),
            holders(rows),
            np.zeros(n, np.int64),
            _nothing(n),
        )

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        # Statistics windows pass even where the window itself never ends.
        ticks = ticking(self._state.frequency.clock.now, times, keys.size)
        self.run(_dalton, keys, ticks, workers)

    def grown(self, state: Learned) -> Learned:
        frequency = state.frequency._replace(exact=hashtable.grown(state.frequency.exact))
        return state._replace(frequency=frequency)

    def memory_bound(self, n_keys: int) -> int:
        return (
            n_bytes(self.fresh()) + hashtable.most_bytes(n_keys) + self.hot * self.n_workers * (8 * self.n_workers + 16)
        )

    def merge(self, snapshots: Sequence[Learned]) -> Agreed:
        """Section 4.1: global heavy hitters, and the weighted mean of what is known about them."""
        require(len(snapshots) >= 1, "merge needs at least 1 snapshot")
        last = max((s.agreed for s in snapshots), key=precedence)
        if not any(s.tuples[2] for s in snapshots):
            return copied(last)
        counts: dict[int, int] = {}
        told: dict[int, list[tuple[int, NDArray[np.float64]]]] = {}
        for s in snapshots:
            for row in np.flatnonzero(s.until != FREE).tolist():
                key = int(s.keys[row])
                counts[key] = counts.get(key, 0) + int(s.counts[row])
                told.setdefault(key, []).append((int(s.counts[row]), s.values[row]))
        heaviest = sorted((key for key in counts if counts[key] > 0), key=lambda key: (-counts[key], key))
        keys = sorted(heaviest[: self.hot * self.n_workers])
        load = np.stack([s.window.load for s in snapshots]).sum(axis=0)
        return Agreed(
            last.version + 1,
            np.array(keys, np.uint64),
            np.array([_mean(told[key]) for key in keys]).reshape(len(keys), self.n_workers),
            load,
        )

    def adopt(self, policy: Agreed) -> None:
        fits = type(policy) is Agreed and policy.values.shape == (policy.keys.size, self.n_workers)
        require(fits and policy.load.size == self.n_workers, f"this policy is no Agreed of {self.n_workers} workers")
        if precedence(policy) <= precedence(self._state.agreed):
            return
        state = copied(self._state)
        number = int(state.frequency.clock.number[0])
        for row in np.flatnonzero(state.until != FREE).tolist():
            if state.keys[row] not in policy.keys:
                _release(state, row)
        for key, values in zip(policy.keys, policy.values, strict=True):
            row = int(state.rows.slots[int(hashtable.find(state.rows, key)) + 1]) - 1
            if row < 0:
                row = int(_new_row(state, key))
                if row >= 0 and state.tuples[1] > 0:
                    windows.hold(state.window, row, int(first(state.hasher, key)))
            if row >= 0:
                state.values[row] = values
                state.until[row] = number + 1
                _seek_best(state, row)
        state.counts[:] = 0
        state.tuples[2] = 0
        state.others[:] = np.maximum(policy.load - state.window.load, 0)
        state.tuples[0] = state.window.load.sum() + state.others.sum()
        self._state = state._replace(agreed=copied(policy))


def _nothing(n_workers: int) -> Agreed:
    none = np.zeros(0, np.uint64)
    return Agreed(np.zeros(1, np.int64), none, np.zeros((0, n_workers)), np.zeros(n_workers, np.int64))


def _mean(told: list[tuple[int, NDArray[np.float64]]]) -> NDArray[np.float64]:
    """The mean of estimates, weighted by counts; the same for any order of the sources."""
    weighted = np.sort(np.stack([count * values for count, values in told]), axis=0)
    return np.asarray(weighted.sum(axis=0) / sum(count for count, _ in told))


@kernel
def _frequency(s: Statistics, x: np.uint64) -> int:
    """Count one occurrence; how often the key has come in this statistics window."""
    if s.use[0] == 1:
        return sketch.count(s.rough, x)
    slot = hashtable.find(s.exact, x)
    often = s.exact.slots[slot + _1] + _1
    hashtable.put(s.exact, slot, x, often)
    return int(np.int64(often))


@kernel
def _new_statistics(s: Statistics, passed: int) -> None:
    s.seen[1] = s.seen[0] if passed == 1 else 0
    s.seen[0] = 0
    if s.use[1] == 1:
        # Beyond half a key a column, the sketch is quicker than a hash map that misses the cache. With the sketch, the
        # columns still at 0 tell the number of keys: at half a key a column, exp(-1/2) of them are.
        width = s.rough.cells.shape[1]
        zeros = 0
        for column in range(width):
            zeros += 1 if s.rough.cells[0, column] == 0 else 0
        many = 2 * s.exact.used[0] > width if s.use[0] == 0 else zeros < 0.6065 * width
        s.use[0] = 1 if many else 0
    hashtable.clear(s.exact)
    s.rough.cells[:] = 0


@kernel
def _release(s: Learned, row: int) -> None:
    hashtable.remove(s.rows, hashtable.find(s.rows, s.keys[row]))
    windows.forget(s.window, row)
    s.holders.level[row] = -1
    s.until[row] = FREE
    s.spare[s.rule[0] - s.rows.used[0] - 1] = row


@kernel
def _new_row(s: Learned, x: np.uint64) -> int:
    """A row for a key, -1 if all are taken."""
    spares = s.rule[0] - s.rows.used[0]
    if spares == 0:
        return -1
    row = int(s.spare[spares - 1])
    hashtable.put(s.rows, hashtable.find(s.rows, x), x, np.uint64(row + 1))
    s.keys[row], s.until[row], s.counts[row] = x, 0, 0
    s.values[row, :] = WORST
    s.best[row], s.second[row] = np.int64(first(s.hasher, x)), WORST
    return row


@kernel
def _seek_best(s: Learned, row: int) -> None:
    """argmax Q(k, .), from the hash of the key on, strictly greater wins; and the best of the rest."""
    n = s.window.load.size
    start = np.int64(first(s.hasher, s.keys[row]))
    best, second = start, -np.inf
    for step in range(1, n):
        a = start + step if start + step < n else start + step - n
        if s.values[row, a] > s.values[row, best]:
            second = s.values[row, best]
            best = a
        elif s.values[row, a] > second:
            second = s.values[row, a]
    s.best[row], s.second[row] = best, second


@kernel
def _reward(s: Learned, row: int, a: int) -> float:
    """-(CI + CA) / 2, after the tuple is added: equations 3 and 4 with p1 = p2 = 1/2."""
    n = s.window.load.size
    load = float(s.window.load[a] + s.others[a])
    mean = float(s.tuples[0]) / n
    imbalance = (load - mean) / max(load, mean)
    return -0.5 * (imbalance + float(s.window.fragments[row]) / n)


@kernel
def _learn(s: Learned, row: int, a: int) -> None:
    """Equation 5, keeping the best action at hand: it is sought anew only when it may have lost its place."""
    s.values[row, a] += GAMMA * (_reward(s, row, a) - s.values[row, a])
    if a == s.best[row]:
        if s.values[row, a] <= s.second[row]:
            _seek_best(s, row)
    elif s.values[row, a] >= s.values[row, s.best[row]]:
        _seek_best(s, row)
    elif s.values[row, a] > s.second[row]:
        s.second[row] = s.values[row, a]


@kernel
def _greedy(s: Learned, row: int) -> int:
    """The emptiest worker that holds the key; the emptiest of all if that one is too full."""
    load, holder = s.window.load, windows.emptiest_holder(s.window, s.holders, row)
    # By its own loads: what balances each source's tuples balances all, and what is known of the others is old. With
    # the loads of others in it, eight sources that sync were at 2.3 times the mean, without at 1.03.
    if holder >= 0 and float(load[holder] * load.size) <= (1.0 + MARGIN) * float(s.tuples[3]):
        return holder
    return lowest(load, s.least)


@kernel
def _dalton(s: Learned, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    n = s.window.load.size
    f = s.frequency
    for i in range(start, keys.size):
        if hashtable.full(f.exact):
            return i
        passed = windows.passed(f.clock, times[i])
        if passed > 0:
            _new_statistics(f, passed)
            for row in range(s.rule[0]):
                if FREE < s.until[row] < f.clock.number[0]:
                    _release(s, row)
        began, slides = windows.advance(s.window, times[i]), s.window.ring_load.shape[0]
        if began > 0:
            lowered(s.least)
            s.holders.level[:] = -1
            s.tuples[0] = s.tuples[3] = 0
            for worker in range(n):
                s.others[worker] -= s.others[worker] * min(began, slides) // slides
                s.tuples[3] += s.window.load[worker]
                s.tuples[0] += s.window.load[worker] + s.others[worker]
            if s.rule[1] == 1:
                for row in range(s.rule[0]):
                    windows.forget(s.window, row)
        x = mixed(s.hasher, keys[i])
        often = _frequency(f, x)  # l. 1, 2
        f.seen[0] += 1
        row = int(np.int64(s.rows.slots[hashtable.find(s.rows, x) + _1])) - 1
        hashed = int(np.int64(first(s.hasher, x)))
        # l. 3: f_k >= L / n. A key that came once is not hot, however short the statistics window is.
        if f.seen[1] > 0 and often > 1 and often * s.rule[0] >= f.seen[1]:
            if row < 0:
                row = _new_row(s, x)
                if row >= 0:
                    windows.hold(s.window, row, hashed)
            if row >= 0:
                s.until[row] = f.clock.number[0] + 1
        s.tuples[0] += 1
        s.tuples[1] += 1
        s.tuples[2] += 1
        s.tuples[3] += 1
        if row < 0:
            windows.add(s.window, hashed)  # l. 8, 9
            workers[i] = hashed
            continue
        coin = mix64(s.hasher.salt[0] + np.uint64(s.tuples[1]))
        a = int(s.best[row])  # l. 4
        if s.rule[2] == 1:
            a = _greedy(s, row)
        elif (coin >> np.uint64(11)) * 2.0**-53 < EPSILON:
            a = int(np.int64(below(mix64(coin), np.uint64(n))))
        windows.add(s.window, a)
        if windows.hold(s.window, row, a):
            s.holders.level[row] = -1
        s.counts[row] += 1
        _learn(s, row, a)  # l. 5, 6
        workers[i] = a
    return keys.size
