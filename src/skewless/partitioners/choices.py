"""D-Choices and W-Choices: more than two candidate workers for the few keys that need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import NO_TIMES, Keys, Times, Workers
from skewless.kernels import kernel
from skewless.kernels.hash import Hasher, first, following, hasher, mixed, stride
from skewless.kernels.lowest import Floor, floor, lowered, lowest
from skewless.kernels.sketch import SpaceSaving, space_saving, sure, tally
from skewless.partitioner import Partitioner
from skewless.partitioners.pkg import Loads, least_loaded, probe, sent

COUNTERS_PER_WORKER = 10  # with fewer, the head test calls too much of the tail hot
HEAD = 5  # a key is in the head when its share is above 1 / (5 n)
_EPSILON = 1e-4


class Cursors(NamedTuple):
    """For each counter, which candidate of its key was last found the least loaded.

    Loads only grow, so no candidate before it is on that level now, and none is below.
    """

    key: NDArray[np.uint64]
    asked: NDArray[np.int64]  # how many candidates were compared
    level: NDArray[np.int64]
    number: NDArray[np.int64]  # of the candidate
    candidate: NDArray[np.uint64]
    start: NDArray[np.uint64]  # of its round


class Headed(NamedTuple):
    """State of D-Choices: loads, and the keys of the head."""

    hasher: Hasher
    load: NDArray[np.int64]  # this source's estimate: its own tuples and `others`
    others: NDArray[np.int64]  # tuples of other sources, as of the last probe
    least: Floor
    heavy: SpaceSaving
    head: NDArray[np.float64]  # the shares of its keys, when d was last solved for
    head_choices: NDArray[np.int64]  # d
    cursors: Cursors
    review: NDArray[np.int64]  # d is solved for again when this many tuples were seen in all


@kernel
def in_head(heavy: SpaceSaving, counter: int, n_workers: int) -> bool:
    """Returns whether the key of a counter certainly has more than 1 / (5 n) of all tuples."""
    return bool(sure(heavy, counter) * HEAD * n_workers > heavy.seen[0])


@dataclass(eq=False)
class DChoices(Partitioner[Headed, Loads]):
    """D-Choices: two candidates for keys of the tail, d for those of the head, d as small as balance allows.

    The head is the keys with a share above 1 / (5 n), found by SpaceSaving. d is the smallest number for which, for
    every prefix of the head, the workers that its keys can reach get no more than their part of the load:
    sum_{i<=h} p_i + (b_h/n)^d sum_{h<i<=|H|} p_i + (b_h/n)^2 p_tail <= b_h/n + epsilon, b_h = n - n ((n-1)/n)^(h d).

    >>> import numpy as np, skewless
    >>> from skewless import streams
    >>> keys = streams.zipf(100_000, keys=10_000, exponent=1.5)
    >>> for name in ("pkg", "d_choices"):
    ...     workers = skewless.partitioner(name, 16).route(keys)
    ...     print(name, round(skewless.measure(keys, workers, 16).imbalance_ratio, 2))
    pkg 3.11
    d_choices 1.0

    Nasir, De Francisci Morales, Kourtellis, Serafini: When two choices are not enough. ICDE 2016.

    Departures from the paper: ten counters a worker; d is solved for when the number of tuples has doubled, at the
    latest every 100 n tuples, not at every tuple; shares are the sure part of a counter, count - error.
    """

    name: ClassVar[str] = "d_choices"
    splits_keys: ClassVar[bool] = True

    def fresh(self) -> Headed:
        counters = COUNTERS_PER_WORKER * self.n_workers
        return Headed(
            hasher=hasher(self.n_workers, self.seed),
            load=np.zeros(self.n_workers, np.int64),
            others=np.zeros(self.n_workers, np.int64),
            least=floor(),
            heavy=space_saving(counters),
            head=np.zeros(counters),
            head_choices=np.array([min(2, self.n_workers)], np.int64),
            cursors=Cursors(
                key=np.zeros(counters, np.uint64),
                asked=np.zeros(counters, np.int64),
                level=np.zeros(counters, np.int64),
                number=np.zeros(counters, np.int64),
                candidate=np.zeros(counters, np.uint64),
                start=np.zeros(counters, np.uint64),
            ),
            review=np.array([1], np.int64),
        )

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_choose, keys, NO_TIMES, workers)

    def merge(self, snapshots: Sequence[Headed]) -> Loads:
        return Loads(sent(snapshots))

    def adopt(self, policy: Loads, reported: Headed | None = None) -> None:
        probe(self._state, policy, Loads, reported)
        lowered(self._state.least)
        self._state.cursors.asked[:] = 0


@dataclass(eq=False)
class WChoices(DChoices):
    """W-Choices: two candidates for keys of the tail, all workers for those of the head.

    As balanced as shuffling at the price of spreading every hot key everywhere: the simple end of D-Choices.

    >>> import numpy as np, skewless
    >>> skewless.partitioner("w_choices", 4).route(np.zeros(8, np.uint64)).tolist()
    [0, 1, 2, 3, 0, 1, 2, 3]

    Nasir, De Francisci Morales, Kourtellis, Serafini: When two choices are not enough. ICDE 2016.

    Departures from the paper: ten counters a worker; ties among all workers go to the lowest.
    """

    name: ClassVar[str] = "w_choices"

    def fresh(self) -> Headed:
        return (
            super()
            .fresh()
            ._replace(head_choices=np.array([self.n_workers], np.int64), review=np.array([np.iinfo(np.int64).max]))
        )


@kernel
def _choose(s: Headed, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        x = mixed(s.hasher, keys[i])
        counter = tally(s.heavy, x)
        if s.heavy.seen[0] >= s.review[0]:
            s.head_choices[0] = solve_choices(s.heavy, s.head, s.load.size)
            s.review[0] += min(s.review[0], 100 * s.load.size)
        if not in_head(s.heavy, counter, s.load.size):
            worker = least_loaded(s.hasher, s.load, x, min(2, s.load.size))
        elif s.head_choices[0] < s.load.size:
            worker = _least_of_many(s, x, counter)
        else:
            worker = np.uint64(lowest(s.load, s.least))
        s.load[worker] += 1
        workers[i] = worker
    return keys.size


@kernel
def _least_of_many(s: Headed, x: np.uint64, counter: int) -> np.uint64:
    """Returns the least loaded of d candidates, resuming the last search (Zipf 1.5, n = 64: 30 ns instead of 58)."""
    c, d, step = s.cursors, s.head_choices[0], stride(s.hasher, x)
    if c.key[counter] == x and c.asked[counter] == d:
        number = c.number[counter]
        candidate: np.uint64 = c.candidate[counter]
        start: np.uint64 = c.start[counter]
        while number < d and s.load[candidate] != c.level[counter]:
            number += 1
            candidate, start = following(s.hasher, candidate, start, step)
        if number < d:
            c.number[counter], c.candidate[counter], c.start[counter] = number, candidate, start
            return candidate
    candidate = first(s.hasher, x)
    start = candidate
    at, best, level, best_start = 0, candidate, s.load[candidate], start
    for number in range(1, d):
        candidate, start = following(s.hasher, candidate, start, step)
        if s.load[candidate] < level:
            at, best, level, best_start = number, candidate, s.load[candidate], start
    c.key[counter], c.asked[counter], c.level[counter] = x, d, level
    c.number[counter], c.candidate[counter], c.start[counter] = at, best, best_start
    return best


@kernel
def solve_choices(heavy: SpaceSaving, head: NDArray[np.float64], n: int) -> int:
    """Returns the smallest d >= 2 that satisfies the constraint of every prefix of the head; n if none below n does."""
    size, total = 0, 0.0
    for counter in range(heavy.counts.size):
        if in_head(heavy, counter, n):
            share = sure(heavy, counter) / heavy.seen[0]
            total += share
            at = size  # insertion, falling: counters are nearly in order already, as hot keys take theirs early
            while at > 0 and head[at - 1] < share:
                head[at] = head[at - 1]
                at -= 1
            head[at] = share
            size += 1
    if size == 0:
        return min(2, n)
    # The first prefix alone asks for p_1 <= b_1 / n + epsilon <= d / n + epsilon: no need to try less.
    for d in range(max(2, int((head[0] - _EPSILON) * n)), n):
        if _balances(head[:size], total, d, n):
            return d
    return n


@kernel
def _balances(head: NDArray[np.float64], total: float, d: int, n: int) -> bool:
    prefix = 0.0
    for h in range(1, head.size + 1):
        prefix += head[h - 1]
        reach = 1.0 - ((n - 1) / n) ** float(h * d)  # b_h / n
        if prefix + reach ** float(d) * (total - prefix) + reach * reach * (1.0 - total) > reach + _EPSILON:
            return False
    return True
