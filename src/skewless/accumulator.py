"""Prompt's micro-batch accumulator: counts and a quasi-sorted list of keys while the batch comes in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import LATEST, Keys, Times, Workers, checked, require, whole
from skewless.histogram import Histogram
from skewless.kernels import counttree, hashtable, kernel
from skewless.kernels.counttree import CountTree
from skewless.kernels.hash import mix64
from skewless.kernels.hashtable import Table
from skewless.partitioners.prompt import Prompt, packed
from skewless.table import RoutingTable

BUDGET = 4  # the paper names none: more is nearer to sorted, but plans get no better (benchmarks.accumulator)
_0, _1 = np.uint64(0), np.uint64(1)


@dataclass(frozen=True, eq=False)
class Accumulated:
    """A batch as the accumulator hands it over: its keys, about the heaviest first, each with its tuples."""

    keys: Keys  # by `approximate`, heaviest first; of equals, the one that came first
    counts: NDArray[np.int64]  # tuples of each key, exactly
    approximate: NDArray[np.int64]  # tuples of each key when it last moved in the tree
    updates: int  # moves in the tree
    order: NDArray[np.int64]  # the keys once more, as numbers from 1 by first appearance
    of_tuple: NDArray[np.int32]  # the number of the key of each tuple, as they arrived

    @property
    def n_tuples(self) -> int:
        return self.of_tuple.size

    @property
    def n_keys(self) -> int:
        return self.keys.size

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The tuples of keys[i] are positions[starts[i]:starts[i + 1]]."""
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(self.counts)))

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Tuples by their place in the batch, key by key and as they arrived: the paper's tupleLists, end to end."""
        following, out = np.empty(self.n_keys + 1, np.int64), np.empty(self.n_tuples, np.int64)
        following[self.order] = self.starts[:-1]
        _listed(self.of_tuple, following, out)
        return out

    def disorder(self) -> float:
        """The share of pairs of keys that stand the wrong way round, of all pairs with different counts.

        0 is sorted, 1 is sorted backwards, 1/2 is chance: Kendall's distance without ties. O(n log n) for n keys.
        """
        distinct, ranks, sizes = np.unique(self.counts, return_inverse=True, return_counts=True)
        pairs = (self.n_keys**2 - int((sizes**2).sum())) // 2
        return _inversions(ranks, np.zeros(distinct.size + 1, np.int64)) / pairs if pairs else 0.0


class Held(NamedTuple):
    """HTable and CountTree. The tree's counts are the frequencies as last updated: one changes with the other."""

    numbers: Table  # mixed key -> its number, from 1 by first appearance
    keys: NDArray[np.uint64]  # by number, as all that follow
    counts: NDArray[np.int64]  # Freq_Current
    tree: CountTree  # Freq_Updated
    left: NDArray[np.int64]  # of the budget
    updated: NDArray[np.int64]  # LastUpdateTime
    f_step: NDArray[np.float64]
    t_step: NDArray[np.float64]
    of_tuple: NDArray[np.int32]  # the number of the key of each tuple: HTable's chains
    seen: NDArray[np.int64]  # tuples so far, moves in the tree so far


class Steps(NamedTuple):
    """How often a key moves in the tree."""

    end: int  # of the interval
    budget: int
    per_update: float  # N_EST / budget
    first: float  # f


class Accumulator:
    """Algorithm 1 of Prompt: keys are counted and kept in order while a batch comes in, not when it has ended.

    Moving a key in a search tree at every tuple would cost more than sorting. So a key moves only after `f_step` more
    tuples of it, or at its first tuple after `t_step` more time, and at most `budget` times: O(log n) for each of
    `budget` n moves of n keys. The steps are set so that a key spends its budget over the whole interval.

    interval: start and end of the batch, the end not in it. That of a batch which is released early (section 4.2) ends
        before the heartbeat, and the next one begins there.
    expected_tuples, expected_keys: about as many as in the batches before.
    budget: how often a key may move. More is nearer to sorted and takes more time.

    >>> import numpy as np, skewless
    >>> keys = skewless.streams.zipf(100_000, keys=10_000, exponent=1.0)
    >>> a = Accumulator((0, 100_000), expected_tuples=100_000, expected_keys=10_000)
    >>> a.add(keys, np.arange(100_000))
    >>> batch = a.release()
    >>> batch.keys[:4].tolist(), batch.counts[:4].tolist(), batch.approximate[:4].tolist()
    ([0, 1, 2, 3], [10178, 5207, 3380, 2570], [6246, 3218, 2091, 1791])
    >>> round(batch.disorder(), 3)
    0.029
    >>> m = skewless.measure(keys, divided(batch, 16), 16)
    >>> round(m.imbalance_ratio, 3), round(m.cardinality_imbalance, 1), m.fragments - m.keys
    (1.0, 0.7, 16)

    Abdelhamid, Mahmood, Daghistani, Aref: Prompt: dynamic data-partitioning for distributed micro-batch stream
    processing systems. SIGMOD 2020.

    Departures from the paper: a step may be overshot, so a key moves when it has made at least its step, where lines 9
    and 15 ask for exactly that; steps are at least 1. Lines 13 and 19 set the step that was made and leave the other
    as it is; the time of the last update, which no line sets, is set at both and when a key first comes. A key whose
    budget is spent moves no more.

    Measured (`python -m benchmarks.accumulator`): plans lose next to nothing where keys come evenly over the batch. A
    key that was rare and becomes hot spends its budget at once and stands too low in the list, and that costs
    fragments. And to count in a hash table alone and sort the keys at the end is cheaper, and as soon done.
    """

    def __init__(
        self, interval: tuple[int, int], *, expected_tuples: int, expected_keys: int, budget: int = BUDGET
    ) -> None:
        start, end = (whole("an end of the interval", at, -LATEST, LATEST) for at in interval)
        require(start < end, f"an interval ends after it starts, not at {end} when it starts at {start}")
        n_tuples, n_keys = whole("expected_tuples", expected_tuples, 1), whole("expected_keys", expected_keys, 1)
        budget = whole("budget", budget, 1, LATEST)
        self.interval = start, end
        self._steps = Steps(end, budget, n_tuples / budget, max(1.0, n_tuples / (n_keys * budget)))
        self._held: Held | None = _fresh(n_tuples, n_keys)

    def add(self, keys: Keys, times: Times) -> None:
        """More tuples of the batch, in the order in which they arrive."""
        keys, arrivals = checked(keys, times)
        if arrivals is None:
            raise TypeError("every tuple of a batch has a time")
        start, end = self.interval
        if keys.size:
            first, last = int(arrivals.min()), int(arrivals.max())
            within = start <= first and last < end
            require(within, f"times of this batch lie from {start} to before {end}, not from {first} to {last}")
        held, done = self._open(), 0
        while done < keys.size:
            done = _accumulate(held, self._steps, keys, arrivals, done)
            if done < keys.size:
                held = self._held = _grown(held)

    def release(self) -> Accumulated:
        """The batch as it is now. The accumulator is spent: take a new one for the next interval."""
        held = self._open()
        self._held = None
        order = np.empty(held.numbers.used[0], np.int64)
        counttree.walk(held.tree, np.empty(order.size, np.int64), order)
        n_tuples, updates = held.seen.tolist()
        return Accumulated(
            held.keys[order], held.counts[order], held.tree.counts[order], updates, order, held.of_tuple[:n_tuples]
        )

    def _open(self) -> Held:
        if self._held is None:
            raise ValueError("this batch has been released: take a new accumulator for the next interval")
        return self._held


def planned(batch: Accumulated, n_workers: int) -> RoutingTable:
    """Prompt's plan (algorithm 2) from the list as it is, with no sorting: a place for every key."""
    listed = Histogram(batch.keys, batch.counts.astype(np.float64))
    return Prompt(n_workers).plan(listed, RoutingTable.hashed(n_workers))


def divided(batch: Accumulated, n_workers: int) -> Workers:
    """The worker of each tuple of the batch by Prompt's plan from the list as it is, to the tuple."""
    whole("n_workers", n_workers, 1)
    plan = packed(batch.counts.astype(np.float64), n_workers)
    workers = np.empty(batch.n_tuples, np.int32)
    workers[batch.positions] = np.repeat(plan.workers, plan.sizes.astype(np.int64))
    return workers


def _fresh(n_tuples: int, n_keys: int) -> Held:
    numbers = hashtable.table(n_keys + 1)
    room = numbers.slots.size // 4  # when it is full, so is the tree
    return Held(
        numbers,
        np.zeros(room + 1, np.uint64),
        np.zeros(room + 1, np.int64),
        counttree.count_tree(room),
        np.zeros(room + 1, np.int64),
        np.zeros(room + 1, np.int64),
        np.zeros(room + 1),
        np.zeros(room + 1),
        np.zeros(n_tuples, np.int32),
        np.zeros(2, np.int64),
    )


def _grown(old: Held) -> Held:
    """Twice the room for what is full."""
    if old.seen[0] == old.of_tuple.size:
        old = old._replace(of_tuple=np.pad(old.of_tuple, (0, old.of_tuple.size)))
    if not hashtable.full(old.numbers):
        return old
    numbers = hashtable.grown(old.numbers)
    room = numbers.slots.size // 4
    more = room + 1 - old.counts.size
    return old._replace(
        numbers=numbers,
        keys=np.pad(old.keys, (0, more)),
        counts=np.pad(old.counts, (0, more)),
        tree=counttree.grown(old.tree, room),
        left=np.pad(old.left, (0, more)),
        updated=np.pad(old.updated, (0, more)),
        f_step=np.pad(old.f_step, (0, more)),
        t_step=np.pad(old.t_step, (0, more)),
    )


@kernel
def _accumulate(s: Held, steps: Steps, keys: Keys, times: Times, start: int) -> int:
    for i in range(start, keys.size):
        if hashtable.full(s.numbers) or s.seen[0] == s.of_tuple.size:
            return i
        _take(s, steps, keys[i], times[i])
    return keys.size


@kernel
def _take(s: Held, steps: Steps, key: np.uint64, now: np.int64) -> None:
    """One tuple: lines 3 to 31."""
    x = mix64(key)
    slot = hashtable.find(s.numbers, x)
    k = int(np.int64(s.numbers.slots[slot + _1]))
    s.seen[0] += 1  # l. 3
    if k != 0:  # l. 4
        s.of_tuple[s.seen[0] - 1] = k  # l. 5
        s.counts[k] += 1  # l. 6
        if s.left[k] == 0:
            return
        if s.counts[k] - s.tree.counts[k] >= s.f_step[k]:  # l. 7, 9
            _update(s, k, now)  # l. 10 to 12
            s.f_step[k] = max(1.0, steps.per_update * s.counts[k] / s.seen[0])  # l. 13
        elif now - s.updated[k] >= s.t_step[k]:  # l. 8, 15
            _update(s, k, now)  # l. 16 to 18
            s.t_step[k] = max(1.0, (steps.end - now) / max(s.left[k], 1))  # l. 19
    else:
        k = int(s.numbers.used[0]) + 1  # l. 25
        hashtable.put(s.numbers, slot, x, np.uint64(k))  # l. 26
        s.of_tuple[s.seen[0] - 1] = k
        s.keys[k], s.counts[k], s.left[k], s.updated[k] = key, 1, steps.budget, now  # l. 28
        counttree.insert(s.tree, k, 1)  # l. 27
        s.t_step[k] = max(1.0, (steps.end - now) / steps.budget)  # l. 29
        s.f_step[k] = steps.first  # l. 30


@kernel
def _update(s: Held, k: int, now: np.int64) -> None:
    counttree.remove(s.tree, k)
    counttree.insert(s.tree, k, s.counts[k])
    s.left[k] -= 1
    s.updated[k] = now
    s.seen[1] += 1


@kernel
def _listed(of_tuple: NDArray[np.int32], following: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    for i in range(of_tuple.size):
        out[following[of_tuple[i]]] = i
        following[of_tuple[i]] += 1


@kernel
def _inversions(ranks: NDArray[np.int64], sums: NDArray[np.int64]) -> int:
    """Pairs of which the first is the smaller; `sums` is a Fenwick tree of how many of each rank came so far."""
    found = 0
    for rank in ranks:
        at = rank
        while at > 0:
            found += sums[at]
            at -= at & -at
        at = rank + 1
        while at < sums.size:
            sums[at] += 1
            at += at & -at
    return found
