"""How often keys occur: what plans are made from, and judged by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys
from skewless.table import RoutingTable


@dataclass(frozen=True)
class Histogram:
    """How often each key occurred, heaviest first (ties by key)."""

    keys: Keys
    counts: NDArray[np.float64]
    rest: float = 0.0  # occurrences of keys that were not kept
    noise: float = 0.0  # the variance that chance gave a count, as a part of it; 0: counts are what they are

    @property
    def total(self) -> float:
        return float(self.counts.sum()) + self.rest

    def __add__(self, other: Histogram) -> Histogram:
        """Of the keys of both."""
        keys, inverse = np.unique(np.concatenate((self.keys, other.keys)), return_inverse=True)
        counts = np.bincount(inverse, np.concatenate((self.counts, other.counts)), keys.size).astype(np.float64)
        order = np.lexsort((keys, -counts))
        return Histogram(keys[order], counts[order], self.rest + other.rest, max(self.noise, other.noise))

    def count_of(self, keys: Keys) -> NDArray[np.float64]:
        """How often each of these keys occurred; 0 if it was not kept."""
        both, number = np.unique(np.concatenate((self.keys, keys)), return_inverse=True)
        counts = np.bincount(number[: self.keys.size], self.counts, both.size).astype(np.float64)
        return np.asarray(counts[number[self.keys.size :]])

    def heavier_than(self, share: float) -> int:
        """How many keys have more than this share of all tuples."""
        return int(np.searchsorted(-self.counts, -share * self.total))

    def by_host(self, table: RoutingTable, start: int = 0, each: float = 0.0) -> NDArray[np.float64]:
        """What each host gets from all keys but the first `start`; a key costs `each` besides its tuples.

        Keys that were not kept are taken to be spread evenly.
        """
        hosts, sizes = table.host_of(self.keys[start:]), self.counts[start:] + each
        mass = np.bincount(hosts, sizes, minlength=table.hosts.size).astype(np.float64)
        if self.noise:
            # The best guess at what is to come lies nearer to the mean the more of the spread is chance.
            chance = min(1.0, self.noise * mass.mean() / max(mass.var(), 1e-300))
            mass = mass.mean() + (1 - chance) * (mass - mass.mean())
        return mass + self.rest / mass.size
