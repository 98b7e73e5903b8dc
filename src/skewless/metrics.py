"""How good a partitioning is: each measure with the equation of the paper that it implements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, Workers, array_of, checked, require, whole
from skewless.kernels import kernel
from skewless.kernels.hash import mix64
from skewless.kernels.hashtable import Table, find, full, grown, put, table
from skewless.kernels.sketch import HyperLogLog, estimate, hll_cell, hyperloglog, update
from skewless.partitioners.baselines import Hash

_0, _1 = np.uint64(0), np.uint64(1)
REDUCERS = 0x7265647563657273  # a seed of their own: keys must not come to reducers as they came to workers
Loads = NDArray[np.int64] | NDArray[np.float64]


def imbalance(load: Loads) -> float:
    """max - mean: PKG's I(t), Holistic equation 1, Prompt equations 2 (blocks) and 3 (buckets), Dalton equation 1."""
    return float(load.max() - load.mean())


def imbalance_ratio(load: Loads) -> float:
    """max / mean: DR's load imbalance. 1 is perfect, n_workers means that one worker does it all."""
    mean = load.mean()
    return float(load.max() / mean) if mean > 0 else 1.0


def scaled(load: Loads) -> NDArray[np.float64]:
    """Between the least (0) and the largest (1) of all workers: Holistic equations 7 (tuples) and 8 (keys)."""
    spread = load.max() - load.min()
    return (load - load.min()) / spread if spread > 0 else np.zeros(load.size)


def hybrid_load(load: Loads, cardinality: Loads, p: float = 0.5) -> NDArray[np.float64]:
    """p of the scaled load and 1 - p of the scaled cardinality of each worker: Holistic equation 9."""
    return p * scaled(load) + (1 - p) * scaled(cardinality)


def load_cost(load: Loads, worker: int) -> float:
    """What worker's load costs, in [-1, 1]; `load` counts the new tuple already: Dalton equation 3, CI(a)."""
    mean = load.mean()
    return float((load[worker] - mean) / max(load[worker], mean))


def fragment_cost(fragments_of_key: int, n_workers: int) -> float:
    """What a key's fragments cost, in (0, 1]: Dalton equation 4, CA(k)."""
    return fragments_of_key / n_workers


@dataclass(frozen=True, eq=False)
class Metrics:
    """What a partitioning of some tuples costs. All other measures follow from these three."""

    load: NDArray[np.int64]  # tuples of each worker: L
    cardinality: NDArray[np.int64]  # distinct keys of each worker: Holistic equation 5, CL
    keys: int  # distinct keys of all

    @property
    def tuples(self) -> int:
        return int(self.load.sum())

    @cached_property
    def imbalance(self) -> float:
        """max - mean of the loads; see `imbalance`. Prompt's BSI."""
        return imbalance(self.load)

    @cached_property
    def imbalance_ratio(self) -> float:
        """max / mean of the loads; DR's load imbalance."""
        return imbalance_ratio(self.load)

    @cached_property
    def cardinality_imbalance(self) -> float:
        """max - mean of the cardinalities: Holistic equation 6 (CI), Prompt equation 4 (BCI)."""
        return imbalance(self.cardinality)

    @cached_property
    def fragments(self) -> int:
        """(key, worker) pairs."""
        return int(self.cardinality.sum())

    @property
    def aggregation_cost(self) -> int:
        """Partial results to be merged: Holistic equations 2 and 4, the sum of the workers' cardinalities."""
        return self.fragments

    @property
    def key_split_ratio(self) -> float:
        """Fragments per key, 1 when all keys are whole: Prompt equation 5 (KSR)."""
        return self.fragments / self.keys if self.keys else 1.0

    def hybrid_imbalance(self, p: float = 0.5) -> float:
        """max - mean of the hybrid loads: Holistic equation 10."""
        return imbalance(hybrid_load(self.load, self.cardinality, p))

    def mpi(self, size: float = 1 / 3, cardinality: float = 1 / 3, split: float = 1 / 3) -> float:
        """Size imbalance, cardinality imbalance and split ratio in one: Prompt equation 6 (MPI)."""
        return size * self.imbalance + cardinality * self.cardinality_imbalance + split * self.key_split_ratio


class Exactly(NamedTuple):
    """Where the tuples of a stream went so far, with every (key, worker) pair remembered."""

    load: NDArray[np.int64]
    cardinality: NDArray[np.int64]
    numbers: Table  # mixed key -> its number + 1, in order of appearance
    pairs: Table  # mixed (number, worker)


class Roughly(NamedTuple):
    """Where the tuples of a stream went so far, in 4 KB a worker: cardinalities within about 2 %."""

    load: NDArray[np.int64]
    workers: HyperLogLog
    overall: HyperLogLog


Seen: TypeAlias = Exactly | Roughly


def exactly(n_workers: int) -> Exactly:
    return Exactly(np.zeros(n_workers, np.int64), np.zeros(n_workers, np.int64), table(), table())


def roughly(n_workers: int) -> Roughly:
    return Roughly(np.zeros(n_workers, np.int64), hyperloglog(n_workers), hyperloglog(1))


def counted(seen: Seen, keys: Keys, workers: Workers) -> Seen:
    """`seen` and some more tuples. The given arrays may be written to: go on with the result only."""
    keys, workers = _tuples(keys, workers, seen.load.size)
    if isinstance(seen, Roughly):
        _count_roughly(seen, keys, workers)
        return seen
    done = _count_exactly(seen, keys, workers, 0)
    while done < keys.size:
        seen = seen._replace(
            numbers=grown(seen.numbers) if full(seen.numbers) else seen.numbers,
            pairs=grown(seen.pairs) if full(seen.pairs) else seen.pairs,
        )
        done = _count_exactly(seen, keys, workers, done)
    return seen


def metrics(seen: Seen) -> Metrics:
    """The measures of what was counted, as of now."""
    if isinstance(seen, Exactly):
        return Metrics(seen.load.copy(), seen.cardinality.copy(), int(seen.numbers.used[0]))
    return Metrics(seen.load.copy(), _estimates(seen.workers), int(_estimates(seen.overall)[0]))


def measure(keys: Keys, workers: Workers, n_workers: int) -> Metrics:
    """Measure where tuples went, exactly.

    >>> import numpy as np
    >>> m = measure(np.array([1, 1, 1, 2], np.uint64), np.array([0, 0, 1, 1], np.int32), 2)
    >>> m.load.tolist(), m.keys, m.fragments, m.imbalance, m.key_split_ratio
    ([2, 2], 2, 3, 0.0, 1.5)
    """
    whole("n_workers", n_workers, 1)
    return metrics(counted(exactly(n_workers), keys, workers))


def reducer_cost(keys: Keys, workers: Workers, n_workers: int, n_reducers: int) -> int:
    """Partial results that the busiest reducer merges, keys being hashed to reducers: Dalton equation 2."""
    keys, workers = _tuples(keys, workers, n_workers)
    pairs = np.unique(np.column_stack((keys, workers.astype(np.uint64))), axis=0)
    return int(np.bincount(Hash(n_reducers, seed=REDUCERS).route(pairs[:, 0]), minlength=n_reducers).max())


def _tuples(keys: Keys, workers: Workers, n_workers: int) -> tuple[Keys, Workers]:
    keys, _ = checked(keys)
    workers = array_of("workers", workers, np.int32, "route gives such an array")
    require(keys.size == workers.size, f"every key has a worker: {keys.size} keys came with {workers.size} workers")
    within = workers.size == 0 or (int(workers.min()) >= 0 and int(workers.max()) < n_workers)
    require(within, f"workers are numbered from 0 to {n_workers - 1}")
    return keys, workers


def _estimates(sketches: HyperLogLog) -> NDArray[np.int64]:
    cardinalities = [estimate(z, h) for z, h in zip(sketches.zeros, sketches.harmonic, strict=True)]
    return np.rint(cardinalities).astype(np.int64)


@kernel
def _count_exactly(seen: Exactly, keys: Keys, workers: Workers, start: int) -> int:
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
        # (number, worker) -> one word -> mixed: each step is one-to-one, so no two pairs are taken for one.
        pair = mix64(number * n + worker)
        slot = find(seen.pairs, pair)
        if seen.pairs.slots[slot + _1] == _0:
            put(seen.pairs, slot, pair, _1)
            seen.cardinality[worker] += 1
    return keys.size


@kernel
def _count_roughly(seen: Roughly, keys: Keys, workers: Workers) -> None:
    for i in range(keys.size):
        seen.load[workers[i]] += 1
        register, rank = hll_cell(mix64(keys[i]))
        update(seen.workers, workers[i], register, rank)
        update(seen.overall, 0, register, rank)
