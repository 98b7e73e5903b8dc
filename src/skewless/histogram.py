"""Histograms: the counts of keys from which plans are made and by which they are judged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys
from skewless.kernels.hash import all_mixed, hasher
from skewless.table import RoutingTable

SAMPLE = 100_000  # the most tuples of a sample


@dataclass(frozen=True)
class Histogram:
    """How often each key occurred, heaviest first (ties by key).

    keys, counts: the keys that were counted one by one, and their tuples.
    rest: tuples of all other keys together.
    noise: variance of a count due to sampling, divided by the count; 0: counts are exact.

    >>> histogram = Histogram(np.array([7, 8], np.uint64), np.array([6.0, 3.0]), rest=1.0)
    >>> histogram.total, histogram.heavier_than(0.5)
    (10.0, 1)
    """

    keys: Keys
    counts: NDArray[np.float64]
    rest: float = 0.0
    noise: float = 0.0

    @property
    def total(self) -> float:
        """The number of tuples."""
        return float(self.counts.sum()) + self.rest

    def __add__(self, other: Histogram) -> Histogram:
        """Returns the sums of the counts."""
        keys, inverse = np.unique(np.concatenate((self.keys, other.keys)), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate((self.counts, other.counts)), keys.size).astype(np.float64)
        order = np.lexsort((keys, -counts))
        return Histogram(keys[order], counts[order], self.rest + other.rest, max(self.noise, other.noise))

    def count_of(self, keys: Keys) -> NDArray[np.float64]:
        """Returns how often each of these keys occurred; 0 if it was not counted by itself."""
        both, number = np.unique(np.concatenate((self.keys, keys)), return_inverse=True)
        counts = np.bincount(number[: self.keys.size], self.counts, both.size).astype(np.float64)
        return np.asarray(counts[number[self.keys.size :]])

    def sample(self, seed: int) -> Keys:
        """Returns a shuffled stream with these counts, of at most 100,000 tuples.

        Each tuple of the rest has a random key of its own.

        >>> Histogram(np.array([7, 8], np.uint64), np.array([2.0, 1.0])).sample(seed=0).tolist()
        [8, 7, 7]
        """
        total = max(self.total, 1.0)
        size = int(min(SAMPLE, np.ceil(total)))
        drawn = np.searchsorted(np.cumsum(self.counts), (np.arange(size) + 0.5) * (total / size), side="right")
        stream = np.random.default_rng(seed + 1).integers(0, 2**64 - 1, size, np.uint64)
        counted = drawn < self.keys.size
        stream[counted] = self.keys[drawn[counted]]
        return np.random.default_rng(seed).permutation(stream)

    def straggler(self, table: RoutingTable) -> float:
        """Returns the straggler factor of a table: the load of the busiest worker over the mean."""
        load = table.loads(self.keys, self.counts, self.rest)
        return float(load.max() / load.mean()) if self.total else 1.0

    def hash_straggler(self, n_workers: int) -> float:
        """Returns the straggler factor of the worst of several hash functions: a single one may be lucky."""
        table, seeds = RoutingTable.hashed(n_workers), range(8)
        variants = [replace(self, keys=all_mixed(hasher(n_workers, seed), self.keys)) for seed in seeds]
        return max(variant.straggler(table) for variant in variants)

    def heavier_than(self, share: float) -> int:
        """Returns how many keys have more than this share of all tuples."""
        return int(np.searchsorted(-self.counts, -share * self.total))

    def by_host(self, table: RoutingTable, start: int = 0, key_cost: float = 0.0) -> NDArray[np.float64]:
        """Returns the load of each host of a table from all keys but the first `start`; the rest is spread evenly.

        key_cost: what a key costs besides its tuples, in tuples.
        """
        hosts, sizes = table.host_of(self.keys[start:]), self.counts[start:] + key_cost
        mass = np.bincount(hosts, sizes, minlength=table.hosts.size).astype(np.float64)
        if self.noise:
            # Shrink towards the mean by the part of the spread that sampling explains.
            chance = min(1.0, self.noise * mass.mean() / max(mass.var(), 1e-300))
            mass = mass.mean() + (1 - chance) * (mass - mass.mean())
        return mass + self.rest / mass.size
