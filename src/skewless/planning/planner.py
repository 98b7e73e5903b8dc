"""Base class of planners: they count a batch, plan a routing table from the counts, and route by it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import NO_TIMES, Keys, Times, Workers, checked, copied, fingerprint, n_bytes, precedence
from skewless.histogram import Histogram
from skewless.kernels import hashtable, kernel
from skewless.kernels.hash import below, mix64
from skewless.kernels.hashtable import Table
from skewless.kernels.position import key_position
from skewless.kernels.routing import WHOLE
from skewless.migration import Moving, Verdict, worth_it
from skewless.partitioner import Partitioner
from skewless.planning import counters
from skewless.planning.counters import Counters
from skewless.table import RoutingTable

_0, _1 = np.uint64(0), np.uint64(1)
_WEYL = np.uint64(2654435769)  # 2**32 times the golden ratio: multiples of it fill [0, 2**32) evenly at any length


class Policy(NamedTuple):
    """A routing table as arrays, for messages between sources."""

    hosts: NDArray[np.int32]
    keys: NDArray[np.uint64]
    starts: NDArray[np.int64]
    workers: NDArray[np.int32]
    parts: NDArray[np.int64]
    version: NDArray[np.int64]
    rule: NDArray[np.int64]  # fingerprint of the planner
    memo: NDArray[np.float64]  # notes of a planner to itself; see `noted`


def as_policy(table: RoutingTable, rule: NDArray[np.int64]) -> Policy:
    """Returns a table as a policy of the planner with this fingerprint."""
    policy = Policy(
        hosts=table.hosts,
        keys=table.keys,
        starts=table.starts,
        workers=table.workers,
        parts=table.parts,
        version=np.array([table.version], np.int64),
        rule=rule,
        memo=np.empty(0),
    )
    return copied(policy)


def table_of(policy: Policy, n_workers: int) -> RoutingTable:
    """Returns the table of a policy."""
    p = copied(policy)
    return RoutingTable(
        n_workers=n_workers,
        hosts=p.hosts,
        keys=p.keys,
        starts=p.starts,
        workers=p.workers,
        parts=p.parts,
        version=int(p.version[0]),
    )


class Planned(NamedTuple):
    """State of a planner: what it has counted, and the plan that it follows."""

    rule: NDArray[np.int64]  # fingerprint of class and parameters
    counters: Counters
    policy: Policy
    numbers: Table  # mixed key -> its number in the policy + 1
    ends: NDArray[np.int64]  # of each fragment: the first coin that goes to the next one
    spent: NDArray[np.int64]  # tuples of each hot key since the policy was adopted
    memo: NDArray[np.float64]  # what a subclass keeps besides: costs measured by `auto`, room of workers in `level`


@dataclass(eq=False)
class Planner(Partitioner[Planned, Policy]):
    """`observe` counts, `merge` plans from all counts and the table in force, `adopt` puts a plan into force.

    A subclass defines `make_table`, a pure function of a histogram and the last table. Tuples of a split key go to its
    workers in proportion to their parts, in an order that keeps these proportions at every length, not only in the long
    run.

    moving: what it costs to move keys; a plan that gains less than that is dropped. None: moves cost nothing.
    memory: how many keys a source counts, up to 16 times as many while hot keys change; None: all. When there are more,
        it forgets the lighter half of them and samples fewer tuples, each with a larger weight (Dynamic
        Repartitioning's counters).
    """

    plans_ahead: ClassVar[bool] = True
    averages: ClassVar[bool] = False  # whether it plans from earlier batches too, not only from the last one

    moving: Moving | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            self.memory = whole("memory", self.memory, 16)
        super().__post_init__()

    @abstractmethod
    def make_table(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        """Returns the table for a batch with these counts, of at least one key; `old` has as many workers."""

    def plan(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        """Returns the table for a batch with these counts. old: the table before, for any number of workers."""
        sound = bool(np.isfinite(histogram.counts).all() and (histogram.counts > 0).all())
        require(sound, "a plan is made from finite counts of more than 0")
        old = old.resized(self.n_workers)
        return self.make_table(histogram, old) if histogram.keys.size else old

    def weighed(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        """Returns the plan if its gain exceeds the cost of its moves, else the table in force."""
        new = self.plan(histogram, old)
        stays = self.moving is not None and not self.worth(old, new, histogram, self.moving).worth
        return old if stays else new

    def worth(self, old: RoutingTable, new: RoutingTable, histogram: Histogram, moving: Moving) -> Verdict:
        """Decides whether a new table gains more than its moves cost."""
        return worth_it(old, new, histogram, moving)

    def fresh(self) -> Planned:
        policy = as_policy(RoutingTable.hashed(self.n_workers), np.array([fingerprint(self)], np.int64))
        return _in_force(counters.counters(self.memory), policy, np.empty(0))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_follow, keys, NO_TIMES, workers)

    def observe(self, keys: Keys, times: Times | None = None) -> None:
        keys, _ = checked(keys, times)
        self.run(_tally, keys, NO_TIMES, np.empty(0, np.int32))

    def count(self, histogram: Histogram, *, seed: int | None = None) -> None:
        """Adds the counts of a batch to its own; no sample is drawn, so `seed` has no effect."""
        self._state = self._state._replace(counters=counters.with_counts(self._state.counters, histogram))

    def learn(self, histogram: Histogram, *, seed: int | None = None) -> RoutingTable:
        self.count(histogram)
        self._adopt_own()
        return self.table()

    def forecast(self, histogram: Histogram, old: RoutingTable | None = None) -> RoutingTable:
        return self.condensed(self.plan(histogram, self.table() if old is None else old), histogram)

    def resized(self, n_workers: int) -> Self:
        """Returns a planner for another number of workers that keeps all counts and leaves most keys where they are."""
        new = replace(self, n_workers=n_workers)
        last = table_of(self._state.policy, self.n_workers).resized(n_workers)
        policy = as_policy(replace(last, version=last.version + 1), new._state.rule)
        # The notes hold for the former number of workers only: drop them.
        new._state = _in_force(self._state.counters, policy, new._state.memo)
        return new

    def grown(self, state: Planned) -> Planned:
        return state._replace(counters=counters.grown(state.counters))

    def memory_bound(self, n_keys: int) -> int:
        # Counts, past, and at most a plan for each key: its number, and its workers, two per key and n more.
        counted = counters.most_bytes(n_keys, self.memory)
        return n_bytes(self.fresh()) + counted + hashtable.most_bytes(n_keys) + 64 * (n_keys + self.n_workers)

    def counted(self, snapshots: Sequence[Planned]) -> Histogram:
        """Returns the counts that the next plan is made from."""
        counted = [snapshot.counters for snapshot in snapshots]
        return counters.of_stream(counted) if self.averages else counters.of_batch(counted)

    def merge(self, snapshots: Sequence[Planned]) -> Policy:
        require(len(snapshots) >= 1, "merge needs at least 1 snapshot")
        last = max((snapshot.policy for snapshot in snapshots), key=precedence)
        if not any(snapshot.counters.counts.used[0] for snapshot in snapshots):
            return copied(last)
        return self.planned(snapshots, last)._replace(version=last.version + 1)

    def planned(self, snapshots: Sequence[Planned], last: Policy) -> Policy:
        """Returns the policy that follows `last`, from snapshots that have counted something."""
        counted = self.counted(snapshots)
        new = self.weighed(counted, table_of(last, self.n_workers))
        return as_policy(new, last.rule)._replace(memo=self.noted(new, counted))

    def noted(self, plan: RoutingTable, histogram: Histogram) -> NDArray[np.float64]:
        """Returns what a policy carries besides its table, as Policy.memo."""
        return np.empty(0)

    def adopt(self, policy: Policy, reported: Planned | None = None) -> None:
        state = self._state
        ours = type(policy) is Policy and np.array_equal(policy.rule, state.rule)
        require(ours, f"this policy is not of {self.name} with {self.n_workers} workers and the same parameters")
        table_of(policy, self.n_workers)  # raises if this is not a valid table
        if precedence(policy) > precedence(state.policy):
            counted = counters.after_plan(state.counters, (reported or state).counters)
            self._state = _in_force(counted, copied(policy), state.memo)

    def table(self, sample: Keys | None = None) -> RoutingTable:
        """Returns the plan for the next batches, from all batches remembered: one alone would mistake noise for change.

        sample: not needed.
        """
        in_force = table_of(self._state.policy, self.n_workers)
        if self.averages or self._state.counters.past.used[0] == 0:
            return in_force
        seen = counters.of_past(self._state.counters)
        plan = self.condensed(self.weighed(seen, in_force), seen)
        return replace(plan, version=in_force.version)

    def condensed(self, plan: RoutingTable, histogram: Histogram) -> RoutingTable:
        """Returns a plan small enough for Spark: by default unchanged; some planners list every key."""
        return plan


def _in_force(counted: Counters, policy: Policy, memo: NDArray[np.float64]) -> Planned:
    mixed = counters.mixed_keys(policy.keys)
    numbers = hashtable.filled(mixed, np.arange(1, mixed.size + 1, dtype=np.uint64))
    # The parts of every key sum to WHOLE, so those of the keys before it are whole ones.
    ends = np.cumsum(policy.parts) - WHOLE * np.repeat(np.arange(mixed.size), np.diff(policy.starts))
    return Planned(
        rule=policy.rule,
        counters=counted,
        policy=policy,
        numbers=numbers,
        ends=ends,
        spent=np.zeros(mixed.size, np.int64),
        memo=memo,
    )


@kernel
def _tally(s: Planned, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    return counters.tally(s.counters, keys, start)


@kernel
def _follow(s: Planned, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        workers[i] = planned_worker(s, keys[i])
    return keys.size


@kernel
def planned_worker(s: Planned, key: np.uint64) -> int:
    """Returns the worker of the next tuple of a key under the policy."""
    p = s.policy
    number = s.numbers.slots[hashtable.find(s.numbers, mix64(key)) + _1]
    if number == _0:
        return int(p.hosts[below(key_position(key), np.uint64(p.hosts.size))])
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
    return int(p.workers[fragment])
