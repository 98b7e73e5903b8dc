"""Prompt: cuts a micro-batch into blocks of equal size and equal numbers of keys, and splits few keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import Keys, Workers, checked
from skewless.histogram import Histogram
from skewless.kernels import kernel
from skewless.kernels.fit import emptiest, tightest
from skewless.partitioners.baselines import Hash
from skewless.planning.planner import Planner
from skewless.table import RoutingTable


@dataclass(eq=False)
class Prompt(Planner):
    """Prompt's batch partitioner: balanced bin packing with fragmentable items (section 4.2, algorithm 2).

    Every key heavier than the average one gives a fragment of that size to the next block and keeps the rest for later.
    The other keys are dealt out in zigzag, heaviest first, which evens out sizes without looking at them. Then the
    rests go where their keys are already as far as they fit, and what is left where it fits most tightly. It plans for
    the batch at hand and has a worker for every key of it.

    moving, memory: as for every planner (`skewless.planning.planner.Planner`).

    >>> import skewless
    >>> keys = skewless.streams.zipf(100_000, keys=10_000, exponent=1.0)
    >>> p = skewless.partitioner("prompt", 16)
    >>> p.observe(keys)
    >>> p.adopt(p.merge([p.snapshot()]))
    >>> m = skewless.measure(keys, p.route(keys), 16)
    >>> round(m.imbalance_ratio, 3), round(m.cardinality_imbalance, 1), m.fragments - m.keys
    (1.0, 0.7, 16)

    Abdelhamid, Mahmood, Daghistani, Aref: Prompt: dynamic data-partitioning for distributed micro-batch stream
    processing systems. SIGMOD 2020.

    Departures from the paper: the cut is a whole number of tuples, and so is a block. Rests are taken lightest first,
    so that most find room where their keys are (the paper leaves the order open). Where no block can hold a rest (line
    23), it fills the emptiest and goes on. The zigzag begins after the block that got the last cut, not at the first
    one again, which would get more keys than others. Counts are sorted exactly here; `ingest.accumulator` plans from
    the quasi-sorted list of algorithm 1.
    """

    name: ClassVar[str] = "prompt"
    splits_keys: ClassVar[bool] = True

    def make_table(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        plan = packed(histogram.counts, self.n_workers)
        return replace(RoutingTable.hashed(self.n_workers), version=old.version).with_hot_keys(
            histogram.keys, plan.starts, plan.workers, plan.sizes
        )

    def condensed(self, plan: RoutingTable, histogram: Histogram) -> RoutingTable:
        return plan.condensed(histogram.keys, histogram.counts)


class Fragments(NamedTuple):
    """The workers of keys: key i has the fragments from starts[i] to starts[i + 1]."""

    starts: NDArray[np.int64]
    workers: NDArray[np.int32]
    sizes: NDArray[np.float64]


def packed(counts: NDArray[np.float64], n_workers: int) -> Fragments:
    """Runs algorithm 2 on keys with these counts, in this order, which should be roughly heaviest first.

    >>> import numpy as np
    >>> plan = packed(np.array([5.0, 2.0, 1.0]), 2)
    >>> plan.starts.tolist(), plan.workers.tolist(), plan.sizes.tolist()
    ([0, 2, 3, 4], [0, 1, 1, 1], [4.0, 1.0, 2.0, 1.0])
    """
    most = 2 * counts.size + n_workers
    of_key, workers, sizes = np.empty(most, np.int64), np.empty(most, np.int32), np.empty(most)
    room = np.full(n_workers, ceil(counts.sum() / n_workers - 1e-9), np.float64)
    n = pack(counts, room, np.empty(counts.size), np.empty(counts.size, np.int32), of_key, workers, sizes)
    # A key may have its cut and some of its rest in one block: that is one fragment.
    pairs, inverse = np.unique(of_key[:n] * n_workers + workers[:n], return_inverse=True)
    return Fragments(
        starts=np.searchsorted(pairs, np.arange(counts.size + 1) * n_workers),
        workers=(pairs % n_workers).astype(np.int32),
        sizes=np.bincount(inverse, sizes[:n]).astype(np.float64),
    )


@kernel
def pack(
    counts: NDArray[np.float64],
    room: NDArray[np.float64],
    rest: NDArray[np.float64],
    cut_at: NDArray[np.int32],
    of_key: NDArray[np.int64],
    workers: NDArray[np.int32],
    sizes: NDArray[np.float64],
) -> int:
    """Fills in the fragments (algorithm 2); returns how many there are."""
    n, blocks = 0, room.size
    total = 0.0
    for count in counts:
        total += count
    cut = max(1.0, float(int(total / max(counts.size, 1))))  # l. 3: (N / P) / (K / P)
    for key in range(counts.size):
        rest[key] = max(counts[key] - cut, 0.0)
        if rest[key] > 0.0:  # l. 5: in a list that is not quite sorted, light keys may stand before heavy ones
            block = n % blocks  # l. 8
            of_key[n], workers[n], sizes[n] = key, block, cut  # l. 6
            room[block] -= cut
            cut_at[key] = block  # l. 7
            n += 1
    heavy = n
    for key in range(counts.size):  # l. 10 to 16
        if rest[key] == 0.0:
            turn, step = n // blocks - heavy // blocks, n % blocks
            block = step if turn % 2 == 0 else blocks - 1 - step
            of_key[n], workers[n], sizes[n] = key, block, counts[key]
            room[block] -= counts[key]
            n += 1
    for key in range(counts.size - 1, -1, -1):  # l. 17
        block, left, at_home = int(cut_at[key]), rest[key], True  # l. 18
        while left > 0.0:
            amount = min(left, max(room[block], 0.0))  # l. 19 to 22
            if amount == 0.0 and not at_home:
                amount = left  # no room anywhere: the zigzag overfilled some blocks
            if amount > 0.0:
                of_key[n], workers[n], sizes[n] = key, block, amount
                room[block] -= amount
                left -= amount
                n += 1
            block, at_home = tightest(room, left), False  # l. 23
    return n


def allocate(keys: Keys, sizes: NDArray[np.float64], split: NDArray[np.bool_], n_buckets: int) -> Workers:
    """Returns the reduce bucket of each key cluster of one map task, which decides alone (section 5, algorithm 3).

    Keys that other map tasks have too are hashed, so that all agree. The others are dealt out in rounds, largest first,
    each to the bucket with most room that got none in this round: buckets become even in size and in number of keys.

    keys, sizes: the key clusters of the map task, and their tuples. split: whether other map tasks have the key too.
    n_buckets: the number of reduce buckets.

    >>> import numpy as np
    >>> keys = np.arange(6, dtype=np.uint64)
    >>> allocate(keys, np.array([9.0, 5, 4, 3, 2, 1]), np.zeros(6, bool), 2).tolist()
    [0, 1, 1, 0, 1, 0]
    """
    keys, _ = checked(keys)
    whole("n_buckets", n_buckets, 1)
    fits = keys.size == sizes.size == split.size
    require(fits, f"every key has a size and a flag: {keys.size} keys, {sizes.size} sizes, {split.size} flags in split")
    buckets = Hash(n_buckets).route(keys)
    load = np.bincount(buckets[split], sizes[split], minlength=n_buckets).astype(np.float64)  # l. 2
    _worst_fit(np.flatnonzero(~split)[np.argsort(-sizes[~split], kind="stable")], sizes, load, buckets)
    return buckets


@kernel
def _worst_fit(
    order: NDArray[np.int64], sizes: NDArray[np.float64], load: NDArray[np.float64], buckets: NDArray[np.int32]
) -> None:
    # A bucket with an item waits until all have one (l. 7 to 9): count it as fuller by more than the sum of all sizes.
    far = 1.0
    for bucket in range(load.size):
        far += load[bucket]
    for size in sizes:
        far += size
    for cluster in order:
        buckets[cluster] = emptiest(load)  # l. 6
        load[buckets[cluster]] += sizes[cluster] + far
