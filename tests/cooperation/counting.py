"""A partitioner whose policy shows whether messages were lost or doubled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless import Keys, Times, Workers
from skewless.partitioner import Partitioner


class Tally(NamedTuple):
    own: NDArray[np.int64]  # tuples since the last policy
    known: NDArray[np.int64]  # version of that policy, tuples of all sources in it


class Total(NamedTuple):
    known: NDArray[np.int64]


@dataclass(eq=False)
class Counting(Partitioner[Tally, Total]):
    """Counts tuples; the policy is their total, so that a lost or doubled message shows."""

    name: ClassVar[str] = "counting"
    splits_keys: ClassVar[bool] = False

    def fresh(self) -> Tally:
        return Tally(np.zeros(1, np.int64), np.zeros(2, np.int64))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        workers[:] = 0
        self._state.own[0] += keys.size

    def merge(self, snapshots: Sequence[Tally]) -> Total:
        version, total = max(tuple(s.known.tolist()) for s in snapshots)
        return Total(np.array([version + 1, total + sum(int(s.own[0]) for s in snapshots)]))

    def adopt(self, policy: Total, reported: Tally | None = None) -> None:
        if policy.known[0] > self._state.known[0]:
            own = self._state.own - (self._state if reported is None else reported).own
            self._state = Tally(own, policy.known.copy())
