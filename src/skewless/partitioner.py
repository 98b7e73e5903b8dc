"""The contract of partitioners, which turn key hashes into worker numbers, one after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import LATEST, MOST_WORKERS, Keys, Times, Workers, alike, checked, copied, n_bytes
from skewless.histogram import Histogram
from skewless.table import RoutingTable

S = TypeVar("S", bound=tuple[Any, ...])  # a partitioner's state
P = TypeVar("P")  # the policy that sources share

MOST_SLIDES = 4096


class Forecast(NamedTuple):
    """The table that a partitioner would make for a batch, and why."""

    table: RoutingTable
    chosen: str  # name of the partitioner whose table it is
    reason: str


@dataclass(frozen=True)
class Window:
    """How long a tuple counts, in the unit of `times` (without times: in tuples).

    size: the length of the window.
    slide: how often the window moves on; by default it tumbles.

    >>> Window(60, 20).slides
    3
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
        """The number of slides in a window."""
        return -(-self.size // self.slide)


@dataclass(eq=False)
class Partitioner(ABC, Generic[S, P]):
    """Decides for each tuple which worker gets its key. Every engine (simulator, Spark batch, Spark stream) uses only
    what is declared here, so a class of your own is treated like the built-in ones.

    A subclass is a dataclass whose fields are its parameters. It has a `name`, says whether it `splits_keys`, and
    defines two methods: `fresh` returns an empty state, `assign` fills in the workers of an array of keys and updates
    the state. The state is a NamedTuple of arrays and the only thing that changes. All other methods have defaults:

    - To share knowledge between sources, define `merge` (snapshots to a policy) and `adopt` (follow a policy).
    - A planner sets `plans_ahead = True` and defines `observe`, `merge` and `adopt`: it sees a batch before routing it.
    - Engines that have counts instead of tuples call `count`, `learn` and `forecast`; the defaults draw a sample with
      these counts.

    `skewless.testing.check_partitioner` tests a class against the laws of this contract.

    n_workers: the number of workers; results of `route` are in [0, n_workers).
    seed: determines its hash functions and random choices.

    >>> import numpy as np
    >>> from dataclasses import dataclass
    >>> from typing import ClassVar, NamedTuple, Never
    >>> class Turn(NamedTuple):
    ...     worker: np.ndarray
    >>> @dataclass(eq=False)
    ... class InTurn(Partitioner[Turn, Never]):
    ...     name: ClassVar[str] = "in_turn"
    ...     splits_keys: ClassVar[bool] = True
    ...     def fresh(self):
    ...         return Turn(np.zeros(1, np.int64))
    ...     def assign(self, keys, times, workers):
    ...         workers[:] = (self._state.worker[0] + np.arange(keys.size)) % self.n_workers
    ...         self._state.worker[0] += keys.size
    >>> keys = np.array([7, 7, 8, 9], np.uint64)
    >>> InTurn(3).route(keys).tolist()
    [0, 1, 2, 0]

    A planner observes a batch, makes a policy of what it has learned, adopts the policy, and routes the batch by it:

    >>> import skewless
    >>> planner = skewless.partitioner("kip", 2)
    >>> planner.observe(keys)
    >>> planner.adopt(planner.merge([planner.snapshot()]))
    >>> planner.route(keys).tolist()
    [1, 1, 0, 0]
    >>> again = skewless.partitioner("kip", 2).restore(planner.snapshot())
    >>> again.route(keys).tolist()
    [1, 1, 0, 0]
    """

    name: ClassVar[str]  # in the registry, on the command line, in plots and documentation
    plans_ahead: ClassVar[bool] = False  # whether it must see a batch (observe, merge, adopt) before it routes it

    n_workers: int
    _: KW_ONLY
    seed: int = 0

    @property
    @abstractmethod
    def splits_keys(self) -> bool:
        """Whether one key may reach several workers under one policy: a class variable, or a property."""

    @property
    def sources_agree(self) -> bool:
        """Whether sources with the same policy send a whole key to the same worker, whatever tuples each has seen.

        Engines ask for it only where keys are not split.
        """
        return self.plans_ahead

    @property
    def reason(self) -> str:
        """Why its current table is as it is, for progress reports."""
        return self.name

    def __post_init__(self) -> None:
        self.n_workers = whole("n_workers", self.n_workers, 1, MOST_WORKERS)
        self.seed = whole("seed", self.seed, 0, 2**64 - 1)
        self._state = self.fresh()

    @abstractmethod
    def fresh(self) -> S:
        """Returns the state of a partitioner that has seen nothing; see the example of the class."""

    @abstractmethod
    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        """Writes the worker of keys[i] to workers[i], in order, and updates the state.

        keys, times: as in `route`, already checked.
        """

    def route(self, keys: Keys, times: Times | None = None) -> Workers:
        """Returns the worker of each key, in order; the state carries on from call to call.

        keys: 64-bit hashes.
        times: the event time of each key, where the engine has it (the simulator does, Spark does not). Left out, a
            partitioner with a window counts tuples instead.
        """
        keys, times = checked(keys, times)
        workers = np.empty(keys.size, np.int32)
        self.assign(keys, times, workers)
        return workers

    def observe(self, keys: Keys, times: Times | None = None) -> None:
        """Learns from keys without routing them, as if they had been routed; a planner counts them instead.

        keys, times: as in `route`.
        """
        self.route(keys, times)

    def count(self, histogram: Histogram, *, seed: int | None = None) -> None:
        """Learns from a batch whose keys were counted elsewhere. By default it observes a sample with these counts.

        histogram: the counts. seed: determines the sample; by default the seed of the partitioner.
        """
        self.observe(histogram.sample(self.seed if seed is None else seed))

    def learn(self, histogram: Histogram, *, seed: int | None = None) -> RoutingTable:
        """Learns from the counts of a batch and returns the table for the next one.

        A planner also adopts the plan that it makes from them. histogram, seed: as in `count`.

        >>> import skewless
        >>> planner, histogram = skewless.partitioner("kip", 2), Histogram(np.array([7], np.uint64), np.array([6.0]))
        >>> planner.count(histogram)
        >>> planner.learn(histogram).shares(7)
        {1: 1.0}
        """
        self.count(histogram, seed=seed)
        self._adopt_own()
        return self.table(histogram.sample(self.seed if seed is None else seed))

    def forecast(self, histogram: Histogram, old: RoutingTable | None = None) -> RoutingTable:
        """Returns the table that it would make for a batch with these counts; the partitioner does not change.

        By default a new copy, which has learned nothing yet, makes it.

        histogram: the counts. old: the table in force before, for partitioners that avoid moving keys; by default
            their own table.

        >>> import skewless
        >>> histogram = Histogram(np.array([7], np.uint64), np.array([6.0]))
        >>> skewless.partitioner("kip", 2).forecast(histogram).shares(7)
        {1: 1.0}
        """
        copy = replace(self)
        if self.plans_ahead:
            copy.count(histogram)
            copy._adopt_own()
        return copy.table(histogram.sample(self.seed))

    def explained(self, histogram: Histogram, old: RoutingTable | None = None) -> Forecast:
        """Returns the table of `forecast`, with the name of the partitioner that made it and the reason.

        histogram, old: as in `forecast`.

        >>> import skewless
        >>> histogram = Histogram(np.array([7, 8, 9], np.uint64), np.array([6.0, 3.0, 3.0]))
        >>> skewless.partitioner("auto", 2).explained(histogram).reason
        'hash stays: 6 a batch; nothing costs less'
        """
        return Forecast(self.forecast(histogram, old), self.name, self.reason)

    def timed(
        self, table: RoutingTable, before: RoutingTable, histogram: Histogram, *, busiest: int, seconds: float
    ) -> None:
        """Learns from how long a batch took. By default it ignores that.

        table: the table of the batch. before: the table of the previous batch. histogram: the key counts of the batch.
        busiest: tuples on its busiest worker. seconds: how long the batch took.

        >>> import skewless
        >>> table, histogram = RoutingTable.hashed(2), Histogram(np.array([7], np.uint64), np.array([6.0]))
        >>> skewless.partitioner("auto", 2).timed(table, table, histogram, busiest=6, seconds=0.5)
        """

    def resized(self, n_workers: int) -> Self:
        """Returns a partitioner with the same parameters for n_workers workers; by default it starts afresh.

        >>> import skewless
        >>> skewless.partitioner("pkg", 2).resized(3).n_workers
        3
        """
        return replace(self, n_workers=n_workers)

    def snapshot(self) -> S:
        """Returns a copy of all that it has learned."""
        return copied(self._state)

    def restore(self, snapshot: S) -> Self:
        """Continues from a snapshot of a partitioner with the same parameters; returns itself."""
        require(
            alike(snapshot, self._state),
            f"this snapshot is not of {self.name} with {self.n_workers} workers and the same parameters",
        )
        self._state = copied(snapshot)
        return self

    def merge(self, snapshots: Sequence[S]) -> P | None:
        """Returns the policy that follows from the snapshots of several sources, in any order.

        None where sources have nothing to share.
        """
        return None

    def adopt(self, policy: P, reported: S | None = None) -> None:
        """Follows a policy, which `merge` of a partitioner with the same parameters made, from now on.

        To adopt a policy twice is the same as to adopt it once.

        reported: the snapshot of this partitioner that went into the policy; what it saw later counts for the next
            one. By default the policy includes all that this partitioner has seen.
        """
        raise TypeError(f"{self.name} has no policy to adopt: its sources exchange nothing")

    def table(self, sample: Keys | None = None) -> RoutingTable:
        """Returns what it would do next as a table, which Spark evaluates natively.

        sample: keys from which the table is distilled, by routing them with a copy; needed unless the partitioner
            keeps a table of its own.

        >>> import skewless
        >>> skewless.partitioner("shuffle", 2).table(np.array([7, 7, 7, 7], np.uint64)).shares(7)
        {0: 0.5, 1: 0.5}
        """
        if sample is None:
            raise ValueError(f"{self.name} keeps no table of its own: give a sample of keys to distill one from")
        return RoutingTable.distill(sample, deepcopy(self).route(sample), self.n_workers)

    def _adopt_own(self) -> None:
        """Adopts the plan that this partitioner makes alone, if it is a planner; others have nothing to adopt."""
        policy = self.merge([self.snapshot()]) if self.plans_ahead else None
        if policy is not None:
            self.adopt(policy)

    def candidates(self, keys: Keys) -> NDArray[np.int32]:
        """Returns the workers that each of the keys may go to, first choice first, if it chooses among a few.

        >>> import skewless
        >>> skewless.partitioner("pkg", 4).candidates(np.array([7, 8], np.uint64)).tolist()
        [[3, 0], [1, 2]]
        """
        raise TypeError(f"{self.name} does not choose among a few candidates per key")

    def memory_bound(self, n_keys: int) -> int:
        """Returns the most bytes that its state may take after n_keys distinct keys; by default it does not grow.

        >>> import skewless
        >>> skewless.partitioner("hash", 2).memory_bound(1000)
        16
        """
        return n_bytes(self.fresh())

    def run(
        self, loop: Callable[[S, Keys, Times, Workers, int], int], keys: Keys, times: Times, workers: Workers
    ) -> None:
        """Runs a compiled loop. The loop stops before a tuple that its state has no room for; then the state grows.

        loop: gets the state, keys, times, workers and the index of its first tuple; returns the index where it stopped.
        keys, times, workers: as in `assign`.

        >>> from skewless.arrays import NO_TIMES
        >>> from skewless.partitioners.baselines import Shuffle
        >>> keys, workers = np.array([7, 8], np.uint64), np.empty(2, np.int32)
        >>> Shuffle(3).run(lambda state, keys, times, workers, start: keys.size, keys, NO_TIMES, workers)
        """
        done = loop(self._state, keys, times, workers, 0)
        while done < keys.size:
            self._state = self.grown(self._state)
            done = loop(self._state, keys, times, workers, done)

    def grown(self, state: S) -> S:
        """Returns the same state with more room, for a loop that stopped.

        >>> import skewless
        >>> state = skewless.partitioner("kip", 2).grown(skewless.partitioner("kip", 2).snapshot())
        """
        raise NotImplementedError(f"the state of {self.name} does not grow: define grown, or let its loop finish")


AnyPartitioner: TypeAlias = Partitioner[Any, Any]


def check_window(window: object) -> None:
    """Raises a TypeError unless this is a Window or None."""
    if window is not None and not isinstance(window, Window):
        raise TypeError(f"window is a Window(size, slide) or None, not {window!r}")
