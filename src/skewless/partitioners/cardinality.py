"""CM, AM, cAM and LM of the Holistic paper: they take the number of keys on a worker into account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Never

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import NO_TIMES, Keys, Times, Workers, checked, n_bytes, ticking
from skewless.kernels import bits, hashtable, kernel, sketch
from skewless.kernels.hash import Hasher, candidates, first, following, hasher, mixed, stride
from skewless.kernels.hashtable import Table
from skewless.kernels.lowest import Floor, floor, lowered, lowest
from skewless.kernels.sketch import HyperLogLog, hyperloglog
from skewless.kernels.window import NEVER, WindowClock, clock, passed
from skewless.partitioner import Partitioner, Window, check_window

_0, _1 = np.uint64(0), np.uint64(1)
MOST_CHOICES = 63  # one bit of a table's value per candidate


class WorkerCosts(NamedTuple):
    """What a decision depends on, the same for exact and estimated cardinalities."""

    hasher: Hasher
    choices: NDArray[np.int64]
    rule: NDArray[np.float64]  # [AFFINITY, LOAD_WEIGHT]
    clock: WindowClock
    load: NDArray[np.int64]  # L
    cardinality: NDArray[np.float64]  # CL: distinct keys, counted or estimated
    most: NDArray[np.float64]  # [MOST_TUPLES, MOST_KEYS]; the least are found by their floors
    least_load: Floor
    least_cardinality: Floor


# Of WorkerCosts.rule: whether to prefer workers that hold the key (0 or 1); p, the weight of load against keys.
AFFINITY, LOAD_WEIGHT = range(2)
MOST_TUPLES, MOST_KEYS = range(2)  # of WorkerCosts.most: the largest load and the largest cardinality of a worker


class ExactCounts(NamedTuple):
    """State that remembers each key."""

    costs: WorkerCosts
    held: Table  # mixed key -> a bit for each candidate that holds it


class Estimated(NamedTuple):
    """State that estimates the number of keys on each worker."""

    costs: WorkerCosts
    held: HyperLogLog


@dataclass(eq=False)
class ByCardinality(Partitioner[Any, Never]):
    """Base class of the four, which differ in affinity and in the weight of load against cardinality.

    choices: candidates per key.
    cardinality: "exact" remembers each key; "hll" keeps 4 KB a worker whatever the number of keys.
    window: begin anew every window.size (algorithm 1, lines 3 to 5); None: never.
    """

    affinity: ClassVar[bool] = False

    choices: int = 2
    cardinality: Literal["exact", "hll"] = "exact"
    window: Window | None = None

    def __post_init__(self) -> None:
        self.choices = whole("choices", self.choices, 1, MOST_CHOICES)
        require(self.cardinality in ("exact", "hll"), f'cardinality is "exact" or "hll", not {self.cardinality!r}')
        check_window(self.window)
        super().__post_init__()

    @property
    def load_weight(self) -> float:
        """The paper's p: how much tuples count against distinct keys, from 0 to 1."""
        return 0.0

    @property
    def splits_keys(self) -> bool:
        # A sketch may forget where a key went, and a window does: affinity keeps keys whole only without these.
        return not self.affinity or self.cardinality == "hll" or self.window is not None

    def fresh(self) -> Any:
        costs = WorkerCosts(
            hasher=hasher(self.n_workers, self.seed),
            choices=np.array([min(self.choices, self.n_workers)], np.int64),
            rule=np.array([self.affinity, self.load_weight]),
            clock=clock(self.window.size if self.window else NEVER),
            load=np.zeros(self.n_workers, np.int64),
            cardinality=np.zeros(self.n_workers),
            most=np.zeros(2),
            least_load=floor(),
            least_cardinality=floor(),
        )
        exact = self.cardinality == "exact"
        return ExactCounts(costs, hashtable.table()) if exact else Estimated(costs, hyperloglog(self.n_workers))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        ticks = ticking(self._state.costs.clock.now, times, keys.size) if self.window else NO_TIMES
        self.run(_by_table if self.cardinality == "exact" else _by_sketch, keys, ticks, workers)

    def grown(self, state: ExactCounts) -> ExactCounts:
        return state._replace(held=hashtable.grown(state.held))

    def memory_bound(self, n_keys: int) -> int:
        return n_bytes(self.fresh()) + (hashtable.most_bytes(n_keys) if self.cardinality == "exact" else 0)

    def candidates(self, keys: Keys) -> NDArray[np.int32]:
        return candidates(self._state.costs.hasher, checked(keys)[0], self.choices)


@dataclass(eq=False)
class Cm(ByCardinality):
    """CM: to the candidate with the fewest distinct keys (Holistic section 4.1, algorithm 2).

    For operations whose cost grows with the number of keys; it ignores the number of tuples.

    choices: candidates per key.
    cardinality: "exact" remembers each key; "hll" keeps 4 KB a worker whatever the number of keys.
    window: begin anew every window.size (algorithm 1, lines 3 to 5); None: never.

    >>> import numpy as np, skewless
    >>> skewless.partitioner("cm", 4).route(np.array([7, 7, 7, 8, 8], np.uint64)).tolist()
    [3, 0, 3, 1, 2]

    Katsipoulakis, Labrinidis, Chrysanthis: A holistic view of stream partitioning costs. PVLDB 10(11), 2017.

    Departures from the paper: the candidates of a key are distinct. Sliding windows too begin anew after their whole
    size, not at each slide: affinity would be lost with every slide otherwise.
    """

    name: ClassVar[str] = "cm"


@dataclass(eq=False)
class Am(ByCardinality):
    """AM: where the key already is; a new key to the candidate with the fewest distinct keys (algorithm 3).

    No aggregation cost: a key is split over time only if the window or a sketch forgets it.

    choices, cardinality, window: as for `cm`.

    >>> import numpy as np, skewless
    >>> skewless.partitioner("am", 4).route(np.array([7, 7, 7, 8, 8], np.uint64)).tolist()
    [3, 3, 3, 1, 1]

    Katsipoulakis, Labrinidis, Chrysanthis: A holistic view of stream partitioning costs. PVLDB 10(11), 2017.

    Departures from the paper: as for `cm`. With three or more choices, a key stays with the first that holds it.
    """

    name: ClassVar[str] = "am"
    affinity: ClassVar[bool] = True


@dataclass(eq=False)
class Cam(ByCardinality):
    """cAM: where the key already is; a new key to the candidate with the fewest tuples (algorithm 4).

    The best of those that keep keys whole without planning, as long as no single key outweighs a worker.

    choices, cardinality, window: as for `cm`.

    >>> import numpy as np, skewless
    >>> skewless.partitioner("cam", 4).route(np.array([7, 7, 7, 8, 8], np.uint64)).tolist()
    [3, 3, 3, 1, 1]

    Katsipoulakis, Labrinidis, Chrysanthis: A holistic view of stream partitioning costs. PVLDB 10(11), 2017.

    Departures from the paper: as for `am`.
    """

    name: ClassVar[str] = "cam"
    affinity: ClassVar[bool] = True

    @property
    def load_weight(self) -> float:
        return 1.0


@dataclass(eq=False)
class Lm(ByCardinality):
    """LM: to the candidate with the least hybrid load of tuples and distinct keys (algorithm 5, equation 9).

    Both loads are scaled to [0, 1] over all workers (equations 7 and 8), so that neither dominates.

    choices, cardinality, window: as for `cm`.
    p: the weight of tuples against distinct keys, from 0 (as `cm`) to 1 (the fewest tuples). All experiments of the
        paper have 0.5.

    >>> import numpy as np, skewless
    >>> skewless.partitioner("lm", 4).route(np.array([7, 7, 7, 8, 8], np.uint64)).tolist()
    [3, 0, 3, 1, 2]

    Katsipoulakis, Labrinidis, Chrysanthis: A holistic view of stream partitioning costs. PVLDB 10(11), 2017.

    Departures from the paper: as for `cm`; where all workers are equal in one of the loads, that term is 0 (the
    equations divide 0 by 0).
    """

    name: ClassVar[str] = "lm"

    p: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.p <= 1, f"p is between 0 and 1, not {self.p}")
        super().__post_init__()

    @property
    def load_weight(self) -> float:
        return self.p


# The four rules in one: with affinity, the first candidate that holds the key, if there is one; else the candidate with
# the least p L' + (1 - p) CL'. CM and AM have p = 0, cAM has 1.


@kernel
def _decide(s: WorkerCosts, x: np.uint64, held: np.uint64) -> tuple[int, np.uint64]:
    """Returns the number of the candidate that gets the tuple, and its worker; `held` has a bit per candidate."""
    candidate, step = first(s.hasher, x), stride(s.hasher, x)
    start = candidate
    if held != _0 and s.rule[AFFINITY] == 1.0:
        chosen, holder = bits.lowest_bit(held), candidate
        for j in range(1, s.choices[0]):  # to the last, whichever it is: stopping there would be a branch that flips
            candidate, start = following(s.hasher, candidate, start, step)
            holder = candidate if j == chosen else holder
        return chosen, holder
    p = s.rule[LOAD_WEIGHT]
    load_least, load_range, keys_least, keys_range = 0.0, 1.0, 0.0, 1.0
    if 0.0 < p < 1.0:  # otherwise scaling does not change the order
        load_least = float(s.load[lowest(s.load, s.least_load)])
        load_range = s.most[MOST_TUPLES] - load_least
        keys_least = s.cardinality[lowest(s.cardinality, s.least_cardinality)]
        keys_range = s.most[MOST_KEYS] - keys_least
    chosen, best, least = 0, candidate, np.inf
    for j in range(s.choices[0]):
        if j > 0:
            candidate, start = following(s.hasher, candidate, start, step)
        scaled_load = (s.load[candidate] - load_least) / load_range if load_range > 0.0 else 0.0
        scaled_keys = (s.cardinality[candidate] - keys_least) / keys_range if keys_range > 0.0 else 0.0
        cost = p * scaled_load + (1.0 - p) * scaled_keys
        if cost < least:
            chosen, best, least = j, candidate, cost
    return chosen, best


@kernel
def _add_tuple(s: WorkerCosts, worker: np.uint64) -> None:
    s.load[worker] += 1
    if 0.0 < s.rule[LOAD_WEIGHT] < 1.0:  # only LM needs it, and keeping it costs the others up to 7 ns
        s.most[MOST_TUPLES] = max(s.most[MOST_TUPLES], float(s.load[worker]))


@kernel
def _add_key(s: WorkerCosts, worker: np.uint64, cardinality: float) -> None:
    # An estimate may fall by a percent or two where HyperLogLog changes its formula; what a worker holds does not.
    if cardinality > s.cardinality[worker]:
        s.cardinality[worker] = cardinality
        if cardinality > s.most[MOST_KEYS]:
            s.most[MOST_KEYS] = cardinality


@kernel
def _reset(s: WorkerCosts) -> None:
    s.load[:] = 0
    s.cardinality[:] = 0.0
    s.most[:] = 0.0
    lowered(s.least_load)
    lowered(s.least_cardinality)


@kernel
def _by_table(s: ExactCounts, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        if times.size > 0 and passed(s.costs.clock, times[i]) > 0:
            _reset(s.costs)
            hashtable.clear(s.held)
        if hashtable.full(s.held):
            return i
        x = mixed(s.costs.hasher, keys[i])
        slot = hashtable.find(s.held, x)
        held = s.held.slots[slot + _1]
        chosen, worker = _decide(s.costs, x, held)
        _add_tuple(s.costs, worker)
        bit = _1 << np.uint64(chosen)
        if held & bit == _0:
            hashtable.put(s.held, slot, x, held | bit)
            _add_key(s.costs, worker, s.costs.cardinality[worker] + 1.0)
        workers[i] = worker
    return keys.size


@kernel
def _by_sketch(s: Estimated, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        if times.size > 0 and passed(s.costs.clock, times[i]) > 0:
            _reset(s.costs)
            sketch.empty(s.held)
        x = mixed(s.costs.hasher, keys[i])
        register, rank = sketch.hll_cell(x)
        held = _0
        if s.costs.rule[AFFINITY] == 1.0:
            candidate, step = first(s.costs.hasher, x), stride(s.costs.hasher, x)
            start_of_round = candidate
            for j in range(s.costs.choices[0]):
                if j > 0:
                    candidate, start_of_round = following(s.costs.hasher, candidate, start_of_round, step)
                if sketch.contains(s.held, candidate, register, rank):
                    held |= _1 << np.uint64(j)
        _, worker = _decide(s.costs, x, held)
        _add_tuple(s.costs, worker)
        if held == _0 and sketch.update(s.held, worker, register, rank):
            _add_key(s.costs, worker, sketch.estimate(s.held.zeros[worker], s.held.harmonic[worker]))
        workers[i] = worker
    return keys.size
