"""The laws of the contract hold for every partitioner, and break for those that break them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Never

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from skewless import Keys, Partitioner, Times, Workers, partitioner, streams
from skewless.testing import LAWS, Law, LawBroken, Tuples, check_partitioner
from tests.variants import N_WORKERS, TUPLES, VARIANTS


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_law(law: Law, name: str, params: dict[str, Any]) -> None:
    # A function of its own for each: hypothesis nests the settings of one with every test, too deep in the end.
    @given(tuples=TUPLES, n_workers=N_WORKERS, seed=st.sampled_from([0, 7, 2**64 - 1]))
    def holds(tuples: Tuples, n_workers: int, seed: int) -> None:
        law(lambda n: partitioner(name, n, seed=seed, **params), n_workers, tuples)

    holds()


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_check_partitioner_accepts_ours(name: str, params: dict[str, Any]) -> None:
    check_partitioner(type(partitioner(name, 2)), **params)


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
def test_check_partitioner_finds(fault: str) -> None:
    with pytest.raises(LawBroken, match="Mine, "):
        check_partitioner(Mine, fault=fault)


def test_check_partitioner_finds_split_keys() -> None:
    class Whole(Mine):
        splits_keys: ClassVar[bool] = False

    with pytest.raises(LawBroken, match="a key went to two workers"):
        check_partitioner(Whole)


@pytest.mark.parametrize("name", ["am", "cam"])
def test_affinity_keeps_keys_whole_only_if_nothing_is_forgotten(name: str) -> None:
    assert not partitioner(name, 8).splits_keys
    assert partitioner(name, 8, cardinality="hll").splits_keys
    keys = streams.zipf(5000, keys=50, exponent=1.0)
    pairs = {*zip(keys.tolist(), partitioner(name, 8).route(keys).tolist(), strict=True)}
    assert len(pairs) == len(np.unique(keys))
