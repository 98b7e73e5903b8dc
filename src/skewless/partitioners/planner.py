"""What all planners share: they count a batch, plan a routing table from the counts, and route by it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from skewless.arrays import Keys, Times, Workers, checked, copied, n_bytes, require
from skewless.kernels import hashtable, kernel
from skewless.kernels.hash import mix64, spark_hash, unmix64
from skewless.kernels.hashtable import Table
from skewless.partitioner import NO_TIMES, Partitioner
from skewless.table import WHOLE, RoutingTable

_0, _1 = np.uint64(0), np.uint64(1)
_WEYL = np.uint64(2654435769)  # 2**32 times the golden ratio: multiples of it fill [0, 2**32) evenly at any length
HISTORY = 0.8  # what a batch weighs against the next one, as in the DR authors' code
DRIFT = 0.1  # a change of more than this share of the mass makes the past worthless
GRAIN = 16  # the past is kept in sixteenths of a tuple


@dataclass(frozen=True)
class Histogram:
    """How often each key occurred, heaviest first (ties by key)."""

    keys: Keys
    counts: NDArray[np.float64]

    @property
    def total(self) -> float:
        return float(self.counts.sum())

    def heavier_than(self, share: float) -> int:
        """How many keys have more than this share of all tuples."""
        return int(np.searchsorted(-self.counts, -share * self.total))


class Policy(NamedTuple):
    """A routing table as arrays, for messages between sources."""

    hosts: NDArray[np.int32]
    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]
    workers: NDArray[np.int32]
    parts: NDArray[np.int64]
    version: NDArray[np.int64]


def as_policy(table: RoutingTable) -> Policy:
    version = np.array([table.version], np.int64)
    return copied(Policy(table.hosts, table.keys, table.starts, table.workers, table.parts, version))


def as_table(policy: Policy, n_workers: int) -> RoutingTable:
    p = copied(policy)
    return RoutingTable(n_workers, p.hosts, p.keys, p.starts, p.workers, p.parts, version=int(p.version[0]))


class Planned(NamedTuple):
    rule: NDArray[np.uint64]  # tells planners of different kinds and parameters apart
    counts: Table  # mixed key -> occurrences since the last plan
    past: Table  # mixed key -> occurrences in the batches before, in 1 / GRAIN, the older the less
    policy: Policy
    numbers: Table  # mixed key -> its number in the policy + 1
    ends: NDArray[np.int64]  # of each fragment: the first coin that goes to the next one
    spent: NDArray[np.int64]  # tuples of each hot key since the policy was adopted


@dataclass(eq=False)
class Planner(Partitioner[Planned, Policy]):
    """`observe` counts, `merge` plans from all counts and the table in force, `adopt` puts a plan into force.

    A subclass plans: a pure function of a histogram and the last table. Tuples of a split key go to its workers by
    their parts, in an order that keeps to the parts at every length, not only in the long run.
    """

    plans_ahead: ClassVar[bool] = True
    averages: ClassVar[bool] = False  # does it plan from the past too, or for the batch at hand?

    @abstractmethod
    def plan(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        """The table for tuples like those counted."""

    def fresh(self) -> Planned:
        rule = np.array([xxhash.xxh64_intdigest(repr(self).encode())], np.uint64)
        policy = as_policy(RoutingTable.hashed(self.n_workers))
        return _in_force(rule, hashtable.table(), hashtable.table(), policy)

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_follow, keys, NO_TIMES, workers)

    def observe(self, keys: Keys, times: Times | None = None) -> None:
        keys, _ = checked(keys, times)
        self.run(_tally, keys, NO_TIMES, np.empty(0, np.int32))

    def grown(self, state: Planned) -> Planned:
        return state._replace(counts=hashtable.grown(state.counts))

    def memory_bound(self, n_keys: int) -> int:
        # Counts, past, and at the most a plan for each key: its number, and its workers, two a key and n more.
        return n_bytes(self.fresh()) + 3 * hashtable.most_bytes(n_keys) + 64 * (n_keys + self.n_workers)

    def merge(self, snapshots: Sequence[Planned]) -> Policy:
        require(len(snapshots) >= 1, "merge needs at least 1 snapshot")
        last = max((snapshot.policy for snapshot in snapshots), key=precedence)
        tables = [hashtable.entries(snapshot.counts) for snapshot in snapshots]
        if not any(keys.size for keys, _ in tables):
            return copied(last)
        if self.averages:
            pasts = [hashtable.entries(snapshot.past) for snapshot in snapshots]
            both = (remembered(past, counts) for past, counts in zip(pasts, tables, strict=True))
            tables = [hashtable.entries(table) for table in both]
        histogram = counted(tables)
        new = self.plan(histogram, as_table(last, self.n_workers))
        return as_policy(new)._replace(version=last.version + 1)

    def adopt(self, policy: Policy) -> None:
        state = self._state
        as_table(policy, self.n_workers)  # refuses what is not a table of these workers
        if precedence(policy) > precedence(state.policy):
            past = remembered(hashtable.entries(state.past), hashtable.entries(state.counts))
            self._state = _in_force(state.rule, hashtable.table(), past, copied(policy))

    def table(self, sample: Keys | None = None) -> RoutingTable:
        """The plan for batches to come: from all that is remembered, where one batch would tell noise for news."""
        in_force = as_table(self._state.policy, self.n_workers)
        if self.averages:
            return in_force
        histogram = counted([hashtable.entries(self._state.past)])
        if histogram.keys.size == 0:
            return in_force
        plan = self.condensed(self.plan(histogram, in_force), histogram)
        return replace(plan, version=in_force.version)

    def condensed(self, plan: RoutingTable, histogram: Histogram) -> RoutingTable:
        """A plan small enough for Spark: as it is, unless it has a place for every key."""
        return plan


def _in_force(rule: NDArray[np.uint64], counts: Table, past: Table, policy: Policy) -> Planned:
    mixed = np.empty(policy.keys.size, np.uint64)
    _mixed(policy.keys, mixed)
    numbers = hashtable.filled(mixed, np.arange(1, mixed.size + 1, dtype=np.uint64))
    # The parts of every key sum to WHOLE, so those of the keys before it are whole ones.
    ends = np.cumsum(policy.parts) - WHOLE * np.repeat(np.arange(mixed.size), np.diff(policy.starts))
    return Planned(rule, counts, past, policy, numbers, ends, np.zeros(mixed.size, np.int64))


def precedence(policy: Any) -> tuple[int, list[bytes]]:
    """The later version goes first; sources that planned apart, under one version, are settled by their bytes."""
    return int(policy.version[0]), [field.tobytes() for field in policy]


Entries: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.uint64]]  # mixed keys and values, as tables have them


def counted(tables: list[Entries]) -> Histogram:
    """The histogram of several sources."""
    mixed, counts = _summed(tables)
    keys = unmix64(mixed)
    order = np.lexsort((keys, -counts))
    return Histogram(keys[order], counts[order])


def _summed(tables: list[Entries]) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    mixed, inverse = np.unique(np.concatenate([keys for keys, _ in tables]), return_inverse=True)
    weights = np.concatenate([counts for _, counts in tables]).astype(np.float64)
    return mixed, np.bincount(inverse, weights, minlength=mixed.size).astype(np.float64)


def remembered(past: Entries, counts: Entries) -> Table:
    """The past faded and the last batch added to it; the last batch alone if the distribution has changed."""
    if counts[0].size == 0:
        return hashtable.filled(*past)
    faded = past[0], np.floor(past[1] * HISTORY).astype(np.uint64)
    grains = counts[0], counts[1] * np.uint64(GRAIN)
    tables = [grains] if drift(past, counts) > DRIFT else [faded, grains]
    mixed, sums = _summed(tables)
    return hashtable.filled(mixed[sums > 0], sums[sums > 0].astype(np.uint64))


def drift(past: Entries, counts: Entries) -> float:
    """The share of the mass that is on other keys than before, beyond what chance does to a batch of this size."""
    tuples = max(float(counts[1].sum()), 1.0)
    heavy = max(0.001, 20 / tuples)  # a key of fewer tuples tells nothing
    before, after = (dict(zip(*_heavier(entries, heavy), strict=True)) for entries in (past, counts))
    changes = ((before.get(key, 0.0), after.get(key, 0.0)) for key in {*before, *after})
    return sum(max(0.0, abs(p - q) - 3 * sqrt(max(p, q) / tuples)) for p, q in changes) / 2


def _heavier(entries: Entries, share: float) -> tuple[list[int], list[float]]:
    """The keys with more than this share of the mass, and their shares."""
    keys, counts = entries
    shares = counts / max(float(counts.sum()), 1.0)
    return keys[shares > share].tolist(), shares[shares > share].tolist()


@kernel
def _mixed(keys: Keys, out: Keys) -> None:
    for i in range(keys.size):
        out[i] = mix64(keys[i])


@kernel
def _tally(s: Planned, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        if hashtable.full(s.counts):
            return i
        x = mix64(keys[i])
        slot = hashtable.find(s.counts, x)
        hashtable.put(s.counts, slot, x, s.counts.slots[slot + _1] + _1)
    return keys.size


@kernel
def _follow(s: Planned, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    p = s.policy
    last = np.uint64(p.hosts.size - 1)
    for i in range(start, keys.size):
        x = mix64(keys[i])
        number = s.numbers.slots[hashtable.find(s.numbers, x) + _1]
        if number == _0:
            workers[i] = p.hosts[spark_hash(keys[i]) & last]
        else:
            fragment = p.starts[number - _1]
            if p.starts[number] - fragment > 1:
                s.spent[number - _1] += 1
                coin = np.int64((np.uint64(s.spent[number - _1]) * _WEYL) & np.uint64(WHOLE - 1))
                last_fragment = p.starts[number] - 1
                while fragment < last_fragment:
                    middle = (fragment + last_fragment) // 2
                    if coin < s.ends[middle]:
                        last_fragment = middle
                    else:
                        fragment = middle + 1
            workers[i] = p.workers[fragment]
    return keys.size
