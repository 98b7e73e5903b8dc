"""What everything else is measured against: hashing, shuffling, and three ways to place whole keys greedily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Never

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, Times, Workers, checked, n_bytes, require
from skewless.kernels import hashtable, kernel
from skewless.kernels.hash import Hasher, candidates, first, following, hasher, mixed, stride
from skewless.kernels.hashtable import Table
from skewless.kernels.lowest import Floor, floor, lowered, lowest
from skewless.partitioner import NO_TIMES, Partitioner
from skewless.partitioners.pkg import probe, sent

_0, _1 = np.uint64(0), np.uint64(1)


class Salted(NamedTuple):
    hasher: Hasher


@dataclass(eq=False)
class Hash(Partitioner[Salted, Never]):
    """Key grouping: the hash of a key is its worker (PKG section III, "single choice"; Holistic's FLD).

    One worker per key and no memory, but the worker of a hot key gets all of it.

    >>> import numpy as np, skewless
    >>> skewless.partitioner("hash", 4).route(np.arange(8, dtype=np.uint64)).tolist()
    [1, 2, 3, 3, 2, 3, 1, 3]

    Departures from the paper: multiply-shift on a mixed key instead of Murmur and a remainder.
    """

    name: ClassVar[str] = "hash"
    splits_keys: ClassVar[bool] = False

    def fresh(self) -> Salted:
        return Salted(hasher(self.n_workers, self.seed))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_hash, keys, NO_TIMES, workers)


@kernel
def _hash(s: Salted, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        workers[i] = first(s.hasher, mixed(s.hasher, keys[i]))
    return keys.size


class Turn(NamedTuple):
    turn: NDArray[np.int64]  # the worker whose turn it is


@dataclass(eq=False)
class Shuffle(Partitioner[Turn, Never]):
    """Shuffle grouping: the workers in turn, whatever the key (PKG section II-A; Holistic's SH).

    The loads differ by one at most, and every key is everywhere: the dearest aggregation there is.

    >>> import numpy as np, skewless
    >>> skewless.partitioner("shuffle", 4).route(np.zeros(6, np.uint64)).tolist()
    [0, 1, 2, 3, 0, 1]

    Departures from the paper: the first turn is the seed's.
    """

    name: ClassVar[str] = "shuffle"
    splits_keys: ClassVar[bool] = True

    def fresh(self) -> Turn:
        return Turn(np.array([self.seed % self.n_workers], np.int64))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        turn = int(self._state.turn[0])
        np.remainder(np.arange(turn, turn + keys.size), self.n_workers, out=workers, casting="unsafe")
        self._state.turn[0] = (turn + keys.size) % self.n_workers


class Placed(NamedTuple):
    """Every key seen has a place; a new key gets one by the loads."""

    hasher: Hasher
    load: NDArray[np.int64]  # as this source believes it to be
    others: NDArray[np.int64]  # what other sources had sent when the loads were last shared; the rest is its own
    least: Floor
    places: Table  # mixed key -> worker + 1


class Placement(NamedTuple):
    """A policy: where keys are placed, and the load of each worker."""

    keys: NDArray[np.uint64]  # mixed, ascending
    places: NDArray[np.uint64]  # worker + 1
    load: NDArray[np.int64]


@dataclass(eq=False)
class OnGreedy(Partitioner[Placed, Placement]):
    """On-Greedy: a new key goes to the worker with the least load, and stays there (PKG section V, Q1).

    >>> import numpy as np, skewless
    >>> skewless.partitioner("on_greedy", 4).route(np.array([7, 7, 7, 8, 9, 7, 8], np.uint64)).tolist()
    [0, 0, 0, 1, 2, 0, 1]

    Departures from the paper: none; ties go to the lowest worker. Sources that placed the same key differently agree,
    when they share what they know, on the lower worker.
    """

    name: ClassVar[str] = "on_greedy"
    splits_keys: ClassVar[bool] = False

    def fresh(self) -> Placed:
        return Placed(
            hasher(self.n_workers, self.seed),
            np.zeros(self.n_workers, np.int64),
            np.zeros(self.n_workers, np.int64),
            floor(),
            hashtable.table(),
        )

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_on_greedy, keys, NO_TIMES, workers)

    def grown(self, state: Placed) -> Placed:
        return state._replace(places=hashtable.grown(state.places))

    def memory_bound(self, n_keys: int) -> int:
        return n_bytes(self.fresh()) + hashtable.most_bytes(n_keys)

    def merge(self, snapshots: Sequence[Placed]) -> Placement:
        keys, places = _agreed([hashtable.entries(s.places) for s in snapshots])
        return Placement(keys, places, sent(snapshots))

    def adopt(self, policy: Placement, told: Placed | None = None) -> None:
        state = self._state
        probe(state, policy, Placement, told)
        own_keys, own_places = hashtable.entries(state.places)
        new = ~np.isin(own_keys, policy.keys)
        places = hashtable.filled(
            np.concatenate((policy.keys, own_keys[new])), np.concatenate((policy.places, own_places[new]))
        )
        self._state = state._replace(places=places)
        lowered(self._state.least)


@kernel
def _on_greedy(s: Placed, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        if hashtable.full(s.places):
            return i
        x = mixed(s.hasher, keys[i])
        slot = hashtable.find(s.places, x)
        place = s.places.slots[slot + _1]
        if place == _0:
            place = np.uint64(lowest(s.load, s.least)) + _1
            hashtable.put(s.places, slot, x, place)
        s.load[place - _1] += 1
        workers[i] = place - _1
    return keys.size


def _agreed(
    tables: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The union of several placements; a key in several gets the lowest of its places."""
    keys = np.concatenate([t[0] for t in tables])
    places = np.concatenate([t[1] for t in tables])
    order = np.lexsort((places, keys))
    keys, places = keys[order], places[order]
    kept = np.ones(keys.size, bool)
    kept[1:] = keys[1:] != keys[:-1]
    return keys[kept], places[kept]


@dataclass(eq=False)
class Potc(OnGreedy):
    """Static power of two choices: a new key goes to the less loaded of its two candidates, and stays (PKG III-A).

    >>> import numpy as np, skewless
    >>> skewless.partitioner("potc", 4).route(np.array([7, 7, 7, 8, 9, 7, 8], np.uint64)).tolist()
    [3, 3, 3, 1, 2, 3, 1]

    Departures from the paper: the two candidates are distinct.
    """

    name: ClassVar[str] = "potc"

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_potc, keys, NO_TIMES, workers)

    def candidates(self, keys: Keys) -> NDArray[np.int32]:
        return candidates(self._state.hasher, checked(keys)[0], 2)


@kernel
def _potc(s: Placed, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        if hashtable.full(s.places):
            return i
        x = mixed(s.hasher, keys[i])
        slot = hashtable.find(s.places, x)
        place = s.places.slots[slot + _1]
        if place == _0:
            best = first(s.hasher, x)
            if s.load.size > 1:
                second, _ = following(s.hasher, best, best, stride(s.hasher, x))
                if s.load[second] < s.load[best]:
                    best = second
            place = best + _1
            hashtable.put(s.places, slot, x, place)
        s.load[place - _1] += 1
        workers[i] = place - _1
    return keys.size


class Counted(NamedTuple):
    hasher: Hasher
    counts: Table  # mixed key -> occurrences observed
    places: Table  # mixed key -> worker + 1, by the policy adopted


@dataclass(eq=False)
class OffGreedy(Partitioner[Counted, Placement]):
    """Off-Greedy: knows all frequencies beforehand; heaviest key first, each to the least load (PKG section V, Q1).

    It plans ahead: `observe` counts, `merge` places, `adopt` puts into force. A key without a place is hashed. It is
    the longest-processing-time rule, and what online algorithms that keep keys whole are measured against.

    >>> import numpy as np, skewless
    >>> keys = np.array([1, 2, 2, 3, 3, 3, 4, 4, 4, 4], np.uint64)
    >>> p = skewless.partitioner("off_greedy", 3)
    >>> p.observe(keys)
    >>> p.adopt(p.merge([p.snapshot()]))
    >>> p.route(keys).tolist()
    [2, 2, 2, 1, 1, 1, 0, 0, 0, 0]

    Departures from the paper: none; keys of one frequency are placed in the order of their hashes.
    """

    name: ClassVar[str] = "off_greedy"
    splits_keys: ClassVar[bool] = False
    plans_ahead: ClassVar[bool] = True

    def fresh(self) -> Counted:
        return Counted(hasher(self.n_workers, self.seed), hashtable.table(), hashtable.table())

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_look_up, keys, NO_TIMES, workers)

    def observe(self, keys: Keys, times: Times | None = None) -> None:
        keys, _ = checked(keys, times)
        self.run(_tally, keys, NO_TIMES, np.empty(0, np.int32))

    def grown(self, state: Counted) -> Counted:
        return state._replace(counts=hashtable.grown(state.counts))

    def memory_bound(self, n_keys: int) -> int:
        return n_bytes(self.fresh()) + 2 * hashtable.most_bytes(n_keys)

    def merge(self, snapshots: Sequence[Counted]) -> Placement:
        tables = [hashtable.entries(s.counts) for s in snapshots]
        keys, inverse = np.unique(np.concatenate([t[0] for t in tables]), return_inverse=True)
        counts = np.zeros(keys.size, np.int64)
        np.add.at(counts, inverse, np.concatenate([t[1] for t in tables]).astype(np.int64))
        heaviest_first = np.argsort(-counts, kind="stable")
        load = np.zeros(self.n_workers, np.int64)
        places = np.zeros(keys.size, np.uint64)
        _place(counts, heaviest_first, load, floor(), places)
        return Placement(keys, places, load)

    def adopt(self, policy: Placement, told: Counted | None = None) -> None:
        fits = isinstance(policy, Placement) and policy.load.shape == (self.n_workers,)
        require(fits, f"this policy is no Placement of {self.n_workers} workers")
        self._state = self._state._replace(places=hashtable.filled(policy.keys, policy.places))


@kernel
def _look_up(s: Counted, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        x = mixed(s.hasher, keys[i])
        place = s.places.slots[hashtable.find(s.places, x) + _1]
        workers[i] = place - _1 if place != _0 else first(s.hasher, x)
    return keys.size


@kernel
def _tally(s: Counted, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        if hashtable.full(s.counts):
            return i
        x = mixed(s.hasher, keys[i])
        slot = hashtable.find(s.counts, x)
        hashtable.put(s.counts, slot, x, s.counts.slots[slot + _1] + _1)
    return keys.size


@kernel
def _place(
    counts: NDArray[np.int64],
    order: NDArray[np.int64],
    load: NDArray[np.int64],
    least: Floor,
    places: NDArray[np.uint64],
) -> None:
    for key in order:
        worker = lowest(load, least)
        load[worker] += counts[key]
        places[key] = worker + 1
