"""The contract: a partitioner turns key hashes into worker numbers, in order, and can say what it has learned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from skewless.arrays import LATEST, MOST_WORKERS, Keys, Times, Workers, alike, checked, copied, n_bytes, require, whole
from skewless.table import RoutingTable

S = TypeVar("S", bound=tuple[Any, ...])  # a partitioner's state
P = TypeVar("P")  # the policy that sources share

MOST_SLIDES = 4096


@dataclass(frozen=True)
class Window:
    """How long a tuple counts, in the unit of `times` (without times: in tuples).

    `slide` is how often the window moves on; left out, the window tumbles.
    """

    size: int
    slide: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole("a window's size", self.size, 1, LATEST))
        if self.slide == 0:
            object.__setattr__(self, "slide", self.size)
        object.__setattr__(self, "slide", whole("a window's slide", self.slide, 1, self.size))
        require(
            self.slides <= MOST_SLIDES,
            f"a window of {self.size} with a slide of {self.slide} has {self.slides} slides; at most {MOST_SLIDES} "
            "are kept: take a longer slide",
        )

    @property
    def slides(self) -> int:
        return -(-self.size // self.slide)


@dataclass(eq=False)
class Partitioner(ABC, Generic[S, P]):
    """Decides, tuple by tuple, which worker gets a key.

    A subclass is a dataclass whose fields are its parameters, with two methods: `fresh` gives an empty state and
    `assign` fills in the workers of some keys while the state carries on. It may share what it knows with others of
    its kind (`merge`, `adopt`). The state is a NamedTuple of arrays and the only thing that changes.

    `skewless.testing.check_partitioner` holds a class to the laws of this contract.
    """

    name: ClassVar[str]  # in the registry, the command line, plots and docs
    splits_keys: ClassVar[bool]  # may one key reach several workers under one policy?
    plans_ahead: ClassVar[bool] = False  # must it see a batch (observe, merge, adopt) before it routes?

    n_workers: int
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        self.n_workers = whole("n_workers", self.n_workers, 1, MOST_WORKERS)
        self.seed = whole("seed", self.seed, 0, 2**64 - 1)
        self._state = self.fresh()

    @abstractmethod
    def fresh(self) -> S:
        """The state of a partitioner that has seen nothing."""

    @abstractmethod
    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        """Write the worker of keys[i] to workers[i], in order, and carry the state on. Input is checked already."""

    def route(self, keys: Keys, times: Times | None = None) -> Workers:
        """The worker of each key. Sequential: the state carries on from call to call."""
        keys, times = checked(keys, times)
        workers = np.empty(keys.size, np.int32)
        self.assign(keys, times, workers)
        return workers

    def observe(self, keys: Keys, times: Times | None = None) -> None:
        """Learn without deciding: as if the keys had been routed. Planners count them instead."""
        self.route(keys, times)

    def snapshot(self) -> S:
        """All that it has learned, as arrays of its own."""
        return copied(self._state)

    def restore(self, snapshot: S) -> Self:
        """Carry on from a snapshot of a partitioner with the same parameters."""
        require(
            alike(snapshot, self._state),
            f"this snapshot is not of {self.name} with {self.n_workers} workers and the same parameters",
        )
        self._state = copied(snapshot)
        return self

    def merge(self, snapshots: Sequence[S]) -> P | None:
        """What several sources know together, in any order; None where sources have nothing to tell each other."""
        return None

    def adopt(self, policy: P, told: S | None = None) -> None:
        """Decide by this policy, which `merge` of one of its kind made, from now on. Twice is the same as once.

        told: the snapshot of its own that the policy was made with; what it has seen since counts for the next one.
        Left out: the policy knows all that it has seen.
        """
        raise TypeError(f"{self.name} has no policy to adopt: its sources need not talk")

    def table(self, sample: Keys | None = None) -> RoutingTable:
        """What it would do next, as a table that Spark runs natively.

        Unless it keeps such a table itself, it is distilled from what a copy of it decides on a sample of keys.
        """
        if sample is None:
            raise ValueError(f"{self.name} keeps no table of its own: give a sample of keys to distill one from")
        return RoutingTable.distill(sample, deepcopy(self).route(sample), self.n_workers)

    def candidates(self, keys: Keys) -> NDArray[np.int32]:
        """The workers that each key may go to, first choice first; only for those that choose among a few."""
        raise TypeError(f"{self.name} does not choose among a few candidates per key")

    def memory_bound(self, n_keys: int) -> int:
        """The most bytes its state may take after n_keys different keys. Unless said otherwise, it does not grow."""
        return n_bytes(self.fresh())

    def run(
        self, loop: Callable[[S, Keys, Times, Workers, int], int], keys: Keys, times: Times, workers: Workers
    ) -> None:
        """Drive a compiled loop, which stops before the tuple that its state has no room for; then the state grows."""
        done = loop(self._state, keys, times, workers, 0)
        while done < keys.size:
            self._state = self.grown(self._state)
            done = loop(self._state, keys, times, workers, done)

    def grown(self, state: S) -> S:
        """The same state with more room, for a loop that stopped."""
        raise NotImplementedError(f"the state of {self.name} does not grow")


def fingerprint(partitioner: Partitioner[Any, Any]) -> int:
    """Tells kinds and parameters apart, in the state of those for which arrays alone would not."""
    return int(np.uint64(xxhash.xxh64_intdigest(repr(partitioner).encode())).astype(np.int64))


NO_TIMES: Times = np.empty(0, np.int64)


def ticking(now: NDArray[np.int64], times: Times | None, n_tuples: int) -> Times:
    """The times of tuples: as given, or one unit after the tuple before. now[0] is the time after the last one."""
    if times is None:
        times = np.arange(now[0], now[0] + n_tuples, dtype=np.int64)
    if n_tuples:
        now[0] = times[-1] + 1
    return times


def windowed(window: object) -> None:
    """Refuse what is neither a window nor None."""
    if window is not None and not isinstance(window, Window):
        raise TypeError(f"window is a Window(size, slide) or None, not {window!r}")
