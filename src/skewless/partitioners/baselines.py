"""Baselines: hashing, shuffling, and three greedy partitioners that keep keys whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Never

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require
from skewless.arrays import NO_TIMES, Keys, Times, Workers, checked, n_bytes
from skewless.histogram import Histogram
from skewless.kernels import hashtable, kernel
from skewless.kernels.hash import Hasher, candidates, first, hasher, mixed
from skewless.kernels.hashtable import Entries, Table
from skewless.kernels.lowest import Floor, floor, lowered, lowest
from skewless.partitioner import Partitioner
from skewless.partitioners.pkg import least_loaded, probe, sent
from skewless.table import RoutingTable

_0, _1 = np.uint64(0), np.uint64(1)


class Salted(NamedTuple):
    """State of hashing: its salt."""

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

    @property
    def sources_agree(self) -> bool:
        return True

    def forecast(self, histogram: Histogram, old: RoutingTable | None = None) -> RoutingTable:
        return RoutingTable.hashed(self.n_workers)


@kernel
def _hash(s: Salted, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        workers[i] = first(s.hasher, mixed(s.hasher, keys[i]))
    return keys.size


class Turn(NamedTuple):
    """State of shuffling."""

    turn: NDArray[np.int64]  # the worker whose turn it is


@dataclass(eq=False)
class Shuffle(Partitioner[Turn, Never]):
    """Shuffle grouping: the workers in turn, whatever the key (PKG section II-A; Holistic's SH).

    The loads differ by one tuple at most, and every key is on every worker: no partitioner costs more to aggregate.

    >>> import numpy as np, skewless
    >>> skewless.partitioner("shuffle", 4).route(np.zeros(6, np.uint64)).tolist()
    [0, 1, 2, 3, 0, 1]

    Departures from the paper: the seed decides which worker comes first.
    """

    name: ClassVar[str] = "shuffle"
    splits_keys: ClassVar[bool] = True

    def fresh(self) -> Turn:
        return Turn(np.array([self.seed % self.n_workers], np.int64))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        turn = int(self._state.turn[0])
        np.remainder(np.arange(turn, turn + keys.size), self.n_workers, out=workers, casting="unsafe")
        self._state.turn[0] = (turn + keys.size) % self.n_workers


class AssignedKeys(NamedTuple):
    """State of On-Greedy: the worker of every key seen, and the loads that decide about a new key."""

    hasher: Hasher
    load: NDArray[np.int64]  # this source's estimate: its own tuples and `others`
    others: NDArray[np.int64]  # tuples of other sources, when loads were last shared
    least: Floor
    places: Table  # mixed key -> worker + 1; the name is that of saved snapshots


class KeyWorkers(NamedTuple):
    """A policy: the worker of each key, and the load of each worker."""

    keys: NDArray[np.uint64]  # mixed, ascending
    places: NDArray[np.uint64]  # worker + 1
    load: NDArray[np.int64]


@dataclass(eq=False)
class OnGreedy(Partitioner[AssignedKeys, KeyWorkers]):
    """On-Greedy: a new key goes to the worker with the least load, and stays there (PKG section V, Q1).

    >>> import numpy as np, skewless
    >>> skewless.partitioner("on_greedy", 4).route(np.array([7, 7, 7, 8, 9, 7, 8], np.uint64)).tolist()
    [0, 0, 0, 1, 2, 0, 1]

    Departures from the paper: none; ties go to the lowest worker. Sources that sent the same key to different
    workers agree on the lowest of these workers when they exchange what they learned.
    """

    name: ClassVar[str] = "on_greedy"
    splits_keys: ClassVar[bool] = False

    def fresh(self) -> AssignedKeys:
        return AssignedKeys(
            hasher=hasher(self.n_workers, self.seed),
            load=np.zeros(self.n_workers, np.int64),
            others=np.zeros(self.n_workers, np.int64),
            least=floor(),
            places=hashtable.table(),
        )

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_on_greedy, keys, NO_TIMES, workers)

    def grown(self, state: AssignedKeys) -> AssignedKeys:
        return state._replace(places=hashtable.grown(state.places))

    def memory_bound(self, n_keys: int) -> int:
        return n_bytes(self.fresh()) + hashtable.most_bytes(n_keys)

    def merge(self, snapshots: Sequence[AssignedKeys]) -> KeyWorkers:
        keys, workers = _agreed([hashtable.entries(s.places) for s in snapshots])
        return KeyWorkers(keys=keys, places=workers, load=sent(snapshots))

    def adopt(self, policy: KeyWorkers, reported: AssignedKeys | None = None) -> None:
        state = self._state
        probe(state, policy, KeyWorkers, reported)
        own_keys, own_workers = hashtable.entries(state.places)
        new = ~np.isin(own_keys, policy.keys)
        workers = hashtable.filled(
            np.concatenate((policy.keys, own_keys[new])), np.concatenate((policy.places, own_workers[new]))
        )
        self._state = state._replace(places=workers)
        lowered(self._state.least)


@kernel
def _on_greedy(s: AssignedKeys, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        if hashtable.full(s.places):
            return i
        workers[i] = _least_loaded(s, keys[i])
    return keys.size


@kernel
def _least_loaded(s: AssignedKeys, key: np.uint64) -> np.uint64:
    """Returns the worker of a tuple; a new key gets the least loaded of all."""
    x = mixed(s.hasher, key)
    slot = hashtable.find(s.places, x)
    if s.places.slots[slot + _1] == _0:
        hashtable.put(s.places, slot, x, np.uint64(lowest(s.load, s.least)) + _1)
    return _assigned(s, slot)


@kernel
def _assigned(s: AssignedKeys, slot: np.uint64) -> np.uint64:
    """Returns the worker of the key in a slot, and counts the tuple."""
    worker: np.uint64 = s.places.slots[slot + _1] - _1
    s.load[worker] += 1
    return worker


def _agreed(tables: list[Entries]) -> Entries:
    """Returns the union of tables of keys and their workers; a key in several tables gets the lowest of its workers."""
    keys = np.concatenate([table.keys for table in tables])
    workers = np.concatenate([table.values for table in tables])
    order = np.lexsort((workers, keys))
    keys, workers = keys[order], workers[order]
    lowest_of_key = np.ones(keys.size, bool)
    lowest_of_key[1:] = keys[1:] != keys[:-1]
    return Entries(keys[lowest_of_key], workers[lowest_of_key])


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
def _potc(s: AssignedKeys, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        if hashtable.full(s.places):
            return i
        workers[i] = _less_loaded_of_two(s, keys[i])
    return keys.size


@kernel
def _less_loaded_of_two(s: AssignedKeys, key: np.uint64) -> np.uint64:
    """Returns the worker of a tuple; a new key gets the less loaded of its two candidates."""
    x = mixed(s.hasher, key)
    slot = hashtable.find(s.places, x)
    if s.places.slots[slot + _1] == _0:
        hashtable.put(s.places, slot, x, least_loaded(s.hasher, s.load, x, min(2, s.load.size)) + _1)
    return _assigned(s, slot)


class CountedKeys(NamedTuple):
    """State of Off-Greedy."""

    hasher: Hasher
    counts: Table  # mixed key -> occurrences observed
    places: Table  # mixed key -> worker + 1, by the policy adopted; the name is that of saved snapshots


@dataclass(eq=False)
class OffGreedy(Partitioner[CountedKeys, KeyWorkers]):
    """Off-Greedy: knows all frequencies beforehand; heaviest key first, each to the least load (PKG section V, Q1).

    It plans ahead: `observe` counts, `merge` plans, `adopt` puts the plan into force. A key that is not in the plan is
    hashed. It is the longest-processing-time rule, and the yardstick for online algorithms that keep keys whole.

    >>> import numpy as np, skewless
    >>> keys = np.array([1, 2, 2, 3, 3, 3, 4, 4, 4, 4], np.uint64)
    >>> p = skewless.partitioner("off_greedy", 3)
    >>> p.observe(keys)
    >>> p.adopt(p.merge([p.snapshot()]))
    >>> p.route(keys).tolist()
    [2, 2, 2, 1, 1, 1, 0, 0, 0, 0]

    Departures from the paper: none; keys of equal frequency are taken in the order of their hashes.
    """

    name: ClassVar[str] = "off_greedy"
    splits_keys: ClassVar[bool] = False
    plans_ahead: ClassVar[bool] = True

    def fresh(self) -> CountedKeys:
        return CountedKeys(hasher=hasher(self.n_workers, self.seed), counts=hashtable.table(), places=hashtable.table())

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_look_up, keys, NO_TIMES, workers)

    def observe(self, keys: Keys, times: Times | None = None) -> None:
        keys, _ = checked(keys, times)
        self.run(_tally, keys, NO_TIMES, np.empty(0, np.int32))

    def grown(self, state: CountedKeys) -> CountedKeys:
        return state._replace(counts=hashtable.grown(state.counts))

    def learn(self, histogram: Histogram, *, seed: int | None = None) -> RoutingTable:
        """Returns the plan for this batch; the frequencies of other batches do not count."""
        return self.forecast(histogram)

    def memory_bound(self, n_keys: int) -> int:
        return n_bytes(self.fresh()) + 2 * hashtable.most_bytes(n_keys)

    def merge(self, snapshots: Sequence[CountedKeys]) -> KeyWorkers:
        keys, sums = hashtable.sums([hashtable.entries(s.counts) for s in snapshots])
        counts = sums.astype(np.int64)
        heaviest_first = np.argsort(-counts, kind="stable")
        load = np.zeros(self.n_workers, np.int64)
        workers = np.zeros(keys.size, np.uint64)
        _assign_heaviest(counts, heaviest_first, load, floor(), workers)
        return KeyWorkers(keys=keys, places=workers, load=load)

    def adopt(self, policy: KeyWorkers, reported: CountedKeys | None = None) -> None:
        fits = isinstance(policy, KeyWorkers) and policy.load.shape == (self.n_workers,)
        require(fits, f"this policy is not a KeyWorkers of {self.n_workers} workers")
        self._state = self._state._replace(places=hashtable.filled(policy.keys, policy.places))


@kernel
def _look_up(s: CountedKeys, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        x = mixed(s.hasher, keys[i])
        held = s.places.slots[hashtable.find(s.places, x) + _1]
        workers[i] = held - _1 if held != _0 else first(s.hasher, x)
    return keys.size


@kernel
def _tally(s: CountedKeys, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        if hashtable.full(s.counts):
            return i
        x = mixed(s.hasher, keys[i])
        slot = hashtable.find(s.counts, x)
        hashtable.put(s.counts, slot, x, s.counts.slots[slot + _1] + _1)
    return keys.size


@kernel
def _assign_heaviest(
    counts: NDArray[np.int64],
    order: NDArray[np.int64],
    load: NDArray[np.int64],
    least: Floor,
    workers: NDArray[np.uint64],
) -> None:
    """Gives each key to the least loaded worker; workers[key] becomes its number + 1."""
    for key in order:
        worker = lowest(load, least)
        load[worker] += counts[key]
        workers[key] = worker + 1
