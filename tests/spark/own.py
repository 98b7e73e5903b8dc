"""Partitioners as a user would write them, with only what the contract asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Never

import numpy as np
from numpy.typing import NDArray

from skewless import Keys, Partitioner, Times, Workers


class Plan(NamedTuple):
    """The workers of the heaviest keys."""

    keys: NDArray[np.uint64]  # sorted
    workers: NDArray[np.int32]


class Counted(NamedTuple):
    """What a planner has counted since its last plan, and that plan."""

    keys: NDArray[np.uint64]
    counts: NDArray[np.int64]
    plan: Plan
    n_workers: NDArray[np.int64]  # snapshots with another value here are refused


@dataclass(eq=False)
class HeaviestFirst(Partitioner[Counted, Plan]):
    """A planner: each of the heaviest keys goes to the worker with the least load so far, all others are hashed."""

    name: ClassVar[str] = "heaviest_first"
    splits_keys: ClassVar[bool] = False
    plans_ahead: ClassVar[bool] = True
    heavy: int = 32  # keys in a plan

    def fresh(self) -> Counted:
        plan = Plan(np.empty(0, np.uint64), np.empty(0, np.int32))
        return Counted(np.empty(0, np.uint64), np.empty(0, np.int64), plan, np.array([self.n_workers]))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        workers[:] = keys % np.uint64(self.n_workers)
        plan = self._state.plan
        if plan.keys.size:
            at = np.minimum(np.searchsorted(plan.keys, keys), plan.keys.size - 1)
            planned = plan.keys[at] == keys
            workers[planned] = plan.workers[at[planned]]

    def observe(self, keys: Keys, times: Times | None = None) -> None:
        batch, counts = np.unique(keys, return_counts=True)
        total, sums = _summed([(self._state.keys, self._state.counts), (batch, counts)])
        self._state = self._state._replace(keys=total, counts=sums)

    def merge(self, snapshots: Sequence[Counted]) -> Plan:
        keys, counts = _summed([(snapshot.keys, snapshot.counts) for snapshot in snapshots])
        load, workers = np.zeros(self.n_workers), {}
        for number in np.lexsort((keys, -counts))[: self.heavy].tolist():
            workers[int(keys[number])] = int(load.argmin())
            load[load.argmin()] += counts[number]
        planned = sorted(workers)
        return Plan(np.array(planned, np.uint64), np.array([workers[key] for key in planned], np.int32))

    def adopt(self, policy: Plan, reported: Counted | None = None) -> None:
        seen = self.fresh() if reported is None else self._state
        if reported is not None:  # counts what came after the snapshot that the plan was made with
            keys, counts = _summed([(seen.keys, seen.counts), (reported.keys, -reported.counts)])
            seen = seen._replace(keys=keys[counts > 0], counts=counts[counts > 0])
        self._state = seen._replace(plan=policy)

    def memory_bound(self, n_keys: int) -> int:
        return 8 + 16 * n_keys + 12 * self.heavy


Counts = tuple[NDArray[np.uint64], NDArray[np.int64]]


def _summed(parts: list[Counts]) -> Counts:
    keys, numbers = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
    counts = np.bincount(numbers, np.concatenate([counts for _, counts in parts]), keys.size)
    return keys, counts.astype(np.int64)


class Loads(NamedTuple):
    tuples: NDArray[np.int64]
    keys: NDArray[np.uint64]  # sorted
    workers: NDArray[np.int32]
    n_workers: NDArray[np.int64]


@dataclass(eq=False)
class FirstSeen(Partitioner[Loads, Never]):
    """A learner that keeps keys whole: a new key goes to the worker with the fewest tuples, and stays there."""

    name: ClassVar[str] = "first_seen"
    splits_keys: ClassVar[bool] = False

    def fresh(self) -> Loads:
        tuples, n_workers = np.zeros(self.n_workers, np.int64), np.array([self.n_workers])
        return Loads(tuples, np.empty(0, np.uint64), np.empty(0, np.int32), n_workers)

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        tuples = self._state.tuples
        where = dict(zip(self._state.keys.tolist(), self._state.workers.tolist(), strict=True))
        for number, key in enumerate(keys.tolist()):
            workers[number] = where.setdefault(key, int(tuples.argmin()))
            tuples[workers[number]] += 1
        order = sorted(where)
        chosen = np.array([where[key] for key in order], np.int32)
        self._state = Loads(tuples, np.array(order, np.uint64), chosen, self._state.n_workers)

    def memory_bound(self, n_keys: int) -> int:
        return 8 + 8 * self.n_workers + 12 * n_keys


class Turn(NamedTuple):
    tuples: NDArray[np.int64]
    n_workers: NDArray[np.int64]


@dataclass(eq=False)
class Emptiest(Partitioner[Turn, Never]):
    """A learner that splits keys: every tuple goes to the worker with the fewest."""

    name: ClassVar[str] = "emptiest"
    splits_keys: ClassVar[bool] = True

    def fresh(self) -> Turn:
        return Turn(np.zeros(self.n_workers, np.int64), np.array([self.n_workers]))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        for number in range(keys.size):
            workers[number] = self._state.tuples.argmin()
            self._state.tuples[workers[number]] += 1
