"""Quality measures of a partitioning, each with the equation of the paper that it implements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import Keys, Workers, array_of, check_numbers, checked
from skewless.kernels import kernel
from skewless.kernels.hash import mix64
from skewless.kernels.hashtable import Table, find, full, grown, put, table
from skewless.kernels.sketch import HyperLogLog, estimate, hll_cell, hyperloglog, update
from skewless.partitioners.baselines import Hash

_0, _1 = np.uint64(0), np.uint64(1)
REDUCERS = 0x7265647563657273  # seed of reducers: their hashing must be independent of that of workers
WorkerLoads = NDArray[np.int64] | NDArray[np.float64]


def imbalance(load: WorkerLoads) -> float:
    """Returns max - mean: PKG's I(t), Holistic equation 1, Prompt equations 2 and 3, Dalton equation 1."""
    return float(load.max() - load.mean())


def imbalance_ratio(load: WorkerLoads) -> float:
    """Returns max / mean, Dynamic Repartitioning's load imbalance: 1 is perfect, n_workers if one worker has all."""
    mean = load.mean()
    return float(load.max() / mean) if mean > 0 else 1.0


def normalized(load: WorkerLoads) -> NDArray[np.float64]:
    """Scales loads to 0 (the least) to 1 (the largest): Holistic equations 7 (tuples) and 8 (keys)."""
    spread = load.max() - load.min()
    return (load - load.min()) / spread if spread > 0 else np.zeros(load.size)


def hybrid_load(load: WorkerLoads, cardinality: WorkerLoads, p: float = 0.5) -> NDArray[np.float64]:
    """Returns p x normalized load + (1 - p) x normalized cardinality of each worker: Holistic equation 9."""
    return p * normalized(load) + (1 - p) * normalized(cardinality)


def load_cost(load: WorkerLoads, worker: int) -> float:
    """Returns the cost of a worker's load, in [-1, 1]; `load` includes the new tuple: Dalton equation 3, CI(a)."""
    mean = load.mean()
    return float((load[worker] - mean) / max(load[worker], mean))


def fragment_cost(fragments_of_key: int, n_workers: int) -> float:
    """Returns the cost of a key's fragments, in (0, 1]: Dalton equation 4, CA(k)."""
    return fragments_of_key / n_workers


@dataclass(frozen=True, eq=False)
class Metrics:
    """The quality of a partitioning. All other measures follow from its three fields.

    load: tuples of each worker (L).
    cardinality: distinct keys of each worker (Holistic equation 5, CL).
    keys: distinct keys overall.

    >>> m = Metrics(np.array([3, 1]), np.array([2, 1]), keys=2)
    >>> m.imbalance_ratio, m.fragments, m.key_split_ratio
    (1.5, 3, 1.5)
    >>> m.hybrid_imbalance(p=0.5), m.mpi(size=1, cardinality=0, split=0)
    (0.5, 1.0)
    """

    load: NDArray[np.int64]
    cardinality: NDArray[np.int64]
    keys: int

    @property
    def tuples(self) -> int:
        """The number of tuples."""
        return int(self.load.sum())

    @cached_property
    def imbalance(self) -> float:
        """max - mean of the loads; see `imbalance`. Prompt's BSI."""
        return imbalance(self.load)

    @cached_property
    def imbalance_ratio(self) -> float:
        """max / mean of the loads; see `imbalance_ratio`."""
        return imbalance_ratio(self.load)

    @cached_property
    def cardinality_imbalance(self) -> float:
        """max - mean of the cardinalities: Holistic equation 6 (CI), Prompt equation 4 (BCI)."""
        return imbalance(self.cardinality)

    @cached_property
    def fragments(self) -> int:
        """The number of (key, worker) pairs."""
        return int(self.cardinality.sum())

    @property
    def aggregation_cost(self) -> int:
        """Partial results to be merged: Holistic equations 2 and 4, the sum of the workers' cardinalities."""
        return self.fragments

    @property
    def merging_pays(self) -> bool:
        """Whether merging costs no more than the busiest worker's tuples: the constraint of Holistic equation 3."""
        return self.aggregation_cost <= int(self.load.max())

    @property
    def key_split_ratio(self) -> float:
        """Fragments per key, 1 when all keys are whole: Prompt equation 5 (KSR)."""
        return self.fragments / self.keys if self.keys else 1.0

    def hybrid_imbalance(self, p: float = 0.5) -> float:
        """Returns max - mean of the hybrid loads: Holistic equation 10. p: the weight of tuples against keys."""
        return imbalance(hybrid_load(self.load, self.cardinality, p))

    def mpi(self, size: float = 1 / 3, cardinality: float = 1 / 3, split: float = 1 / 3) -> float:
        """Returns a weighted sum of size imbalance, cardinality imbalance and split ratio: Prompt equation 6 (MPI).

        size, cardinality, split: the weights.
        """
        return size * self.imbalance + cardinality * self.cardinality_imbalance + split * self.key_split_ratio


class ExactMeasurement(NamedTuple):
    """Exact counts of a stream: every (key, worker) pair is remembered."""

    load: NDArray[np.int64]
    cardinality: NDArray[np.int64]
    numbers: Table  # mixed key -> its number + 1, in order of appearance
    pairs: Table  # mixed (number, worker)


class EstimatedMeasurement(NamedTuple):
    """Approximate counts of a stream in 4 KB per worker: cardinalities have a standard error of 1.6 %."""

    load: NDArray[np.int64]
    workers: HyperLogLog
    overall: HyperLogLog


Measurement: TypeAlias = ExactMeasurement | EstimatedMeasurement


def exact_measurement(n_workers: int) -> ExactMeasurement:
    """Returns empty exact counts."""
    return ExactMeasurement(
        load=np.zeros(n_workers, np.int64),
        cardinality=np.zeros(n_workers, np.int64),
        numbers=table(),
        pairs=table(),
    )


def estimated_measurement(n_workers: int) -> EstimatedMeasurement:
    """Returns empty approximate counts."""
    return EstimatedMeasurement(
        load=np.zeros(n_workers, np.int64), workers=hyperloglog(n_workers), overall=hyperloglog(1)
    )


def counted(seen: Measurement, keys: Keys, workers: Workers) -> Measurement:
    """Adds tuples to counts. `seen` may be overwritten: use only the result afterwards."""
    keys, workers = _tuples(keys, workers, seen.load.size)
    if isinstance(seen, EstimatedMeasurement):
        _count_estimated(seen, keys, workers)
        return seen
    done = _count_exact(seen, keys, workers, 0)
    while done < keys.size:
        seen = seen._replace(
            numbers=grown(seen.numbers) if full(seen.numbers) else seen.numbers,
            pairs=grown(seen.pairs) if full(seen.pairs) else seen.pairs,
        )
        done = _count_exact(seen, keys, workers, done)
    return seen


def metrics(seen: Measurement) -> Metrics:
    """Returns the measures of what was counted so far."""
    if isinstance(seen, ExactMeasurement):
        return Metrics(seen.load.copy(), seen.cardinality.copy(), int(seen.numbers.used[0]))
    return Metrics(seen.load.copy(), _estimates(seen.workers), int(_estimates(seen.overall)[0]))


def measure(keys: Keys, workers: Workers, n_workers: int) -> Metrics:
    """Measures a partitioning exactly.

    keys: the hash of each tuple's key. workers: the worker of each tuple, in [0, n_workers).
    n_workers: the number of workers.

    >>> import numpy as np
    >>> m = measure(np.array([1, 1, 1, 2], np.uint64), np.array([0, 0, 1, 1], np.int32), 2)
    >>> m.load.tolist(), m.keys, m.fragments, m.imbalance, m.key_split_ratio
    ([2, 2], 2, 3, 0.0, 1.5)
    """
    whole("n_workers", n_workers, 1)
    return metrics(counted(exact_measurement(n_workers), keys, workers))


def reducer_cost(keys: Keys, workers: Workers, n_workers: int, n_reducers: int) -> int:
    """Returns how many partial results the busiest reducer merges, with keys hashed to reducers: Dalton equation 2."""
    keys, workers = _tuples(keys, workers, n_workers)
    pairs = np.unique(np.column_stack((keys, workers.astype(np.uint64))), axis=0)
    return int(np.bincount(Hash(n_reducers, seed=REDUCERS).route(pairs[:, 0]), minlength=n_reducers).max())


def _tuples(keys: Keys, workers: Workers, n_workers: int) -> tuple[Keys, Workers]:
    keys, _ = checked(keys)
    workers = array_of("workers", workers, np.int32, "Partitioner.route returns such an array")
    require(keys.size == workers.size, f"every key has a worker: {keys.size} keys came with {workers.size} workers")
    check_numbers("workers", workers, n_workers)
    return keys, workers


def _estimates(sketches: HyperLogLog) -> NDArray[np.int64]:
    cardinalities = [estimate(z, h) for z, h in zip(sketches.zeros, sketches.harmonic, strict=True)]
    return np.rint(cardinalities).astype(np.int64)


@kernel
def _count_exact(seen: ExactMeasurement, keys: Keys, workers: Workers, start: int) -> int:
    n = np.uint64(seen.load.size)
    for i in range(start, keys.size):
        if full(seen.numbers) or full(seen.pairs):
            return i
        worker = np.uint64(workers[i])
        seen.load[worker] += 1
        x = mix64(keys[i])
        slot = find(seen.numbers, x)
        number = seen.numbers.slots[slot + _1]
        if number == _0:
            number = np.uint64(seen.numbers.used[0]) + _1
            put(seen.numbers, slot, x, number)
        # (number, worker) -> one word -> mixed: each step is one-to-one, so pairs cannot collide.
        pair = mix64(number * n + worker)
        slot = find(seen.pairs, pair)
        if seen.pairs.slots[slot + _1] == _0:
            put(seen.pairs, slot, pair, _1)
            seen.cardinality[worker] += 1
    return keys.size


@kernel
def _count_estimated(seen: EstimatedMeasurement, keys: Keys, workers: Workers) -> None:
    for i in range(keys.size):
        seen.load[workers[i]] += 1
        register, rank = hll_cell(mix64(keys[i]))
        update(seen.workers, workers[i], register, rank)
        update(seen.overall, 0, register, rank)
