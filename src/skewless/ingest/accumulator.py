"""Prompt's micro-batch accumulator: counts keys and keeps them nearly sorted while a batch arrives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import LATEST, Keys, Times, Workers, checked
from skewless.kernels import counttree, hashtable, kernel
from skewless.kernels.counttree import CountTree
from skewless.kernels.hash import mix64
from skewless.kernels.hashtable import Table
from skewless.partitioners.prompt import packed

BUDGET = 4  # not given in the paper; more sorts better, but plans do not improve (benchmarks.accumulator)
_0, _1 = np.uint64(0), np.uint64(1)


@dataclass(frozen=True, eq=False)
class Accumulated:
    """A finished batch: its keys, nearly sorted with the heaviest first, and the tuples of each."""

    keys: Keys  # sorted by `approximate`, heaviest first; equal ones by first appearance
    counts: NDArray[np.int64]  # exact number of tuples of each key
    approximate: NDArray[np.int64]  # tuples of each key when it last moved in the tree
    updates: int  # moves of keys in the tree
    order: NDArray[np.int64]  # the same keys as numbers, from 1 by first appearance
    of_tuple: NDArray[np.int32]  # the number of each tuple's key, in order of arrival

    @property
    def n_tuples(self) -> int:
        """The number of tuples."""
        return self.of_tuple.size

    @property
    def n_keys(self) -> int:
        """The number of distinct keys."""
        return self.keys.size

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each key begins in `offsets`: the tuples of keys[i] are offsets[starts[i]:starts[i + 1]]."""
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(self.counts)))

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The offset of every tuple in the batch, key by key in order of arrival (the paper's tupleLists)."""
        next_slot, out = np.empty(self.n_keys + 1, np.int64), np.empty(self.n_tuples, np.int64)
        next_slot[self.order] = self.starts[:-1]
        _list_tuples(self.of_tuple, next_slot, out)
        return out

    def disorder(self) -> float:
        """Returns the share of pairs of keys in the wrong order, of all pairs with different counts.

        0 is sorted, 1 is reversed, 1/2 is random: Kendall's distance without ties, in O(n log n) for n keys.
        """
        distinct, ranks, sizes = np.unique(self.counts, return_inverse=True, return_counts=True)
        pairs = (self.n_keys**2 - int((sizes**2).sum())) // 2
        return _inversions(ranks, np.zeros(distinct.size + 1, np.int64)) / pairs if pairs else 0.0


class State(NamedTuple):
    """The paper's HTable and CountTree. Freq_Updated of a key is its count in the tree."""

    numbers: Table  # mixed key -> its number, from 1 by first appearance
    keys: NDArray[np.uint64]  # by number, like the following arrays
    counts: NDArray[np.int64]  # Freq_Current
    tree: CountTree  # Freq_Updated
    budget: NDArray[np.int64]  # moves that a key has left
    updated: NDArray[np.int64]  # LastUpdateTime
    f_step: NDArray[np.float64]
    t_step: NDArray[np.float64]
    of_tuple: NDArray[np.int32]  # the number of each tuple's key: HTable's chains
    n_tuples: NDArray[np.int64]  # [1]: tuples so far
    n_updates: NDArray[np.int64]  # [1]: moves in the tree so far


class Steps(NamedTuple):
    """The parameters that decide when a key moves in the tree."""

    end: int  # of the interval
    budget: int  # moves of a key
    per_update: float  # N_EST / budget
    first: float  # f: the first f_step of a key


class Accumulator:
    """Counts and sorts keys while a batch arrives, not after it has ended (algorithm 1 of Prompt).

    Moving a key in a search tree at every tuple would cost more than sorting. So a key moves only after `f_step` more
    of its tuples, or at its first tuple after `t_step` more time, and at most `budget` times: O(log n) for each of
    `budget` n moves of n keys. The steps are chosen so that a key spends its budget over the whole interval.

    interval: start and end of the batch, the end excluded. A batch that is released early (section 4.2, `batches`) ends
        before the heartbeat, where the next one begins.
    expected_tuples, expected_keys: estimates from earlier batches.
    budget: how often a key may move; more moves sort better and take more time.

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

    Departures from the paper: a key moves when it has made at least its step (lines 9 and 15 ask for exactly the step,
    which may be skipped over); steps are at least 1. Lines 13 and 19 set only the step that triggered the move. The
    time of the last update, which no line sets, is set at both lines and at a key's first tuple. A key without budget
    no longer moves.

    Measured (`python -m benchmarks.accumulator`): plans lose almost nothing if keys arrive evenly over the batch. A
    rare key that becomes hot spends its budget at once and ranks too low in the list, which costs fragments. Counting
    in a hash table and sorting the keys at the end is cheaper and finishes as soon.
    """

    def __init__(
        self, interval: tuple[int, int], *, expected_tuples: int, expected_keys: int, budget: int = BUDGET
    ) -> None:
        start, end = (whole("an end of the interval", time, -LATEST, LATEST) for time in interval)
        require(start < end, f"the interval must end after its start {start}, not at {end}")
        n_tuples, n_keys = whole("expected_tuples", expected_tuples, 1), whole("expected_keys", expected_keys, 1)
        budget = whole("budget", budget, 1, LATEST)
        self.interval = start, end
        first = max(1.0, n_tuples / (n_keys * budget))
        self._steps = Steps(end=end, budget=budget, per_update=n_tuples / budget, first=first)
        self._state: State | None = _fresh(n_tuples, n_keys)

    def add(self, keys: Keys, times: Times) -> None:
        """Adds tuples to the batch, in order of arrival; times are within the interval."""
        keys, arrivals = checked(keys, times)
        if arrivals is None:
            raise TypeError("times is None: every tuple of a batch needs a time")
        start, end = self.interval
        if keys.size:
            first, last = int(arrivals.min()), int(arrivals.max())
            within = start <= first and last < end
            require(within, f"times of this batch are from {start} to before {end}, not from {first} to {last}")
        state, done = self._open(), 0
        while done < keys.size:
            done = _accumulate(state, self._steps, keys, arrivals, done)
            if done < keys.size:
                state = self._state = _grown(state)

    @property
    def n_keys(self) -> int:
        """The number of distinct keys so far."""
        return int(self._open().numbers.used[0])

    def release(self) -> Accumulated:
        """Returns the batch and closes the accumulator: use a new one for the next interval."""
        state = self._open()
        self._state = None
        order = np.empty(state.numbers.used[0], np.int64)
        counttree.walk(state.tree, np.empty(order.size, np.int64), order)
        return Accumulated(
            keys=state.keys[order],
            counts=state.counts[order],
            approximate=state.tree.counts[order],
            updates=int(state.n_updates[0]),
            order=order,
            of_tuple=state.of_tuple[: state.n_tuples[0]],
        )

    def _open(self) -> State:
        if self._state is None:
            raise ValueError("this batch has been released: use a new accumulator for the next interval")
        return self._state


def divided(batch: Accumulated, n_workers: int) -> Workers:
    """Returns the worker of each tuple by Prompt's plan, with exact sizes, from the nearly sorted list."""
    whole("n_workers", n_workers, 1)
    plan = packed(batch.counts.astype(np.float64), n_workers)
    workers = np.empty(batch.n_tuples, np.int32)
    workers[batch.offsets] = np.repeat(plan.workers, plan.sizes.astype(np.int64))
    return workers


def _fresh(n_tuples: int, n_keys: int) -> State:
    numbers = hashtable.table(n_keys + 1)
    capacity = numbers.slots.size // 4  # the hash table and the tree fill up together
    return State(
        numbers=numbers,
        keys=np.zeros(capacity + 1, np.uint64),
        counts=np.zeros(capacity + 1, np.int64),
        tree=counttree.count_tree(capacity),
        budget=np.zeros(capacity + 1, np.int64),
        updated=np.zeros(capacity + 1, np.int64),
        f_step=np.zeros(capacity + 1),
        t_step=np.zeros(capacity + 1),
        of_tuple=np.zeros(n_tuples, np.int32),
        n_tuples=np.zeros(1, np.int64),
        n_updates=np.zeros(1, np.int64),
    )


def _grown(old: State) -> State:
    """Returns the state with twice the room in those arrays that are full."""
    if old.n_tuples[0] == old.of_tuple.size:
        old = old._replace(of_tuple=np.pad(old.of_tuple, (0, old.of_tuple.size)))
    if not hashtable.full(old.numbers):
        return old
    numbers = hashtable.grown(old.numbers)
    capacity = numbers.slots.size // 4
    more = capacity + 1 - old.counts.size
    return old._replace(
        numbers=numbers,
        keys=np.pad(old.keys, (0, more)),
        counts=np.pad(old.counts, (0, more)),
        tree=counttree.grown(old.tree, capacity),
        budget=np.pad(old.budget, (0, more)),
        updated=np.pad(old.updated, (0, more)),
        f_step=np.pad(old.f_step, (0, more)),
        t_step=np.pad(old.t_step, (0, more)),
    )


@kernel
def _accumulate(s: State, steps: Steps, keys: Keys, times: Times, start: int) -> int:
    """Adds the tuples from number `start` on until an array is full; returns the number of the next tuple."""
    for i in range(start, keys.size):
        if hashtable.full(s.numbers) or s.n_tuples[0] == s.of_tuple.size:
            return i
        _add(s, steps, keys[i], times[i])
    return keys.size


@kernel
def _add(s: State, steps: Steps, key: np.uint64, now: np.int64) -> None:
    """Adds one tuple: lines 3 to 31."""
    x = mix64(key)
    slot = hashtable.find(s.numbers, x)
    k = int(np.int64(s.numbers.slots[slot + _1]))
    s.n_tuples[0] += 1  # l. 3
    if k != 0:  # l. 4
        s.of_tuple[s.n_tuples[0] - 1] = k  # l. 5
        s.counts[k] += 1  # l. 6
        if s.budget[k] == 0:
            return
        if s.counts[k] - s.tree.counts[k] >= s.f_step[k]:  # l. 7, 9
            _update(s, k, now)  # l. 10 to 12
            s.f_step[k] = max(1.0, steps.per_update * s.counts[k] / s.n_tuples[0])  # l. 13
        elif now - s.updated[k] >= s.t_step[k]:  # l. 8, 15
            _update(s, k, now)  # l. 16 to 18
            s.t_step[k] = max(1.0, (steps.end - now) / max(s.budget[k], 1))  # l. 19
    else:
        k = int(s.numbers.used[0]) + 1  # l. 25
        hashtable.put(s.numbers, slot, x, np.uint64(k))  # l. 26
        s.of_tuple[s.n_tuples[0] - 1] = k
        s.keys[k], s.counts[k], s.budget[k], s.updated[k] = key, 1, steps.budget, now  # l. 28
        counttree.insert(s.tree, k, 1)  # l. 27
        s.t_step[k] = max(1.0, (steps.end - now) / steps.budget)  # l. 29
        s.f_step[k] = steps.first  # l. 30


@kernel
def _update(s: State, k: int, now: np.int64) -> None:
    counttree.remove(s.tree, k)
    counttree.insert(s.tree, k, s.counts[k])
    s.budget[k] -= 1
    s.updated[k] = now
    s.n_updates[0] += 1


@kernel
def _list_tuples(of_tuple: NDArray[np.int32], next_slot: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    for i in range(of_tuple.size):
        out[next_slot[of_tuple[i]]] = i
        next_slot[of_tuple[i]] += 1


@kernel
def _inversions(ranks: NDArray[np.int64], sums: NDArray[np.int64]) -> int:
    """Counts the pairs whose first rank is the smaller; `sums` is a Fenwick tree of the ranks seen so far."""
    inversions = 0
    for rank in ranks:
        node = rank
        while node > 0:
            inversions += sums[node]
            node -= node & -node
        node = rank + 1
        while node < sums.size:
            sums[node] += 1
            node += node & -node
    return inversions
