"""`check_partitioner` accepts partitioners that keep the laws, and detects those that break one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Never

import numpy as np
import pytest
from numpy.typing import NDArray

from skewless import Keys, Partitioner, Times, Workers
from skewless.testing import LawBroken, check_partitioner


class Counter(NamedTuple):
    turn: NDArray[np.int64]


@dataclass(eq=False)
class Mine(Partitioner[Counter, Never]):
    """A user's own class in plain numpy, with a switch for each way to break the contract."""

    name: ClassVar[str] = "mine"
    splits_keys: ClassVar[bool] = True
    fault: str = ""

    def fresh(self) -> Counter:
        return Counter(np.zeros(1, np.int64))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        workers[:] = (self._state.turn[0] + np.arange(keys.size)) % self.n_workers
        if self.fault == "range":
            workers += 1
        if self.fault != "chunks":
            self._state.turn[0] += keys.size
        if self.fault == "random":
            workers[:] = np.random.default_rng().integers(0, self.n_workers, keys.size)
        if self.fault == "writes":
            keys += np.uint64(1)
        if self.fault == "grows":
            self._state = Counter(np.zeros(self._state.turn.size + keys.size, np.int64))

    def snapshot(self) -> Counter:
        return self._state if self.fault == "aliases" else super().snapshot()


def test_check_partitioner_accepts_a_users_class() -> None:
    check_partitioner(Mine)


@pytest.mark.parametrize("fault", ["range", "chunks", "random", "writes", "grows", "aliases"])
def test_check_partitioner_detects_a_broken_law(fault: str) -> None:
    with pytest.raises(LawBroken, match="Mine, "):
        check_partitioner(Mine, fault=fault)


def test_check_partitioner_detects_split_keys() -> None:
    class Whole(Mine):
        splits_keys: ClassVar[bool] = False

    with pytest.raises(LawBroken, match="a key went to two workers"):
        check_partitioner(Whole)
