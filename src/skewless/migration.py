"""Moves of keys and hosts between routing tables, and whether they are worth their cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require
from skewless.arrays import Keys
from skewless.division import aligned
from skewless.histogram import Histogram
from skewless.table import RoutingTable


@dataclass(frozen=True)
class Moves:
    """The keys and hosts whose workers differ between two tables."""

    keys: Keys  # hot in one of the tables, ascending
    hosts: NDArray[np.int64]  # numbered as in the table with more hosts; hot keys of either do not move with them
    mass: float  # the share of all tuples that changes its worker


def moves(old: RoutingTable, new: RoutingTable, histogram: Histogram | None = None) -> Moves:
    """Returns every key and host whose workers differ, and the share of tuples that moves.

    old, new: the tables.
    histogram: key counts, for the share; by default tuples are spread evenly over all hosts.

    >>> moves(RoutingTable.hashed(2), RoutingTable.hashed(2)).mass
    0.0
    """
    histogram = histogram or Histogram(np.empty(0, np.uint64), np.empty(0), rest=1.0)
    before, after = aligned(old.hosts, new.hosts)
    keys = [key for key in np.union1d(old.keys, new.keys).tolist() if old.shares(key) != new.shares(key)]
    mass = float(arriving(old, new, histogram).sum()) / (histogram.total or 1.0)
    return Moves(np.array(keys, np.uint64), np.flatnonzero(before != after), mass)


def arriving(old: RoutingTable, new: RoutingTable, histogram: Histogram) -> NDArray[np.float64]:
    """Returns, for each worker of the new table, the tuples of keys that it did not get under the old one."""
    keys, counts = histogram.keys, histogram.counts
    listed = np.isin(keys, np.union1d(old.keys, new.keys))
    was, will = (table.hosts[table.host_of(keys[~listed])] for table in (old, new))
    arrived = np.bincount(will[was != will], counts[~listed][was != will], new.n_workers).astype(np.float64)
    before, after = aligned(old.hosts, new.hosts)
    arrived += np.bincount(after[before != after], minlength=new.n_workers) * (histogram.rest / after.size)
    for key, count in zip(keys[listed].tolist(), counts[listed].tolist(), strict=True):
        former = old.shares(key)
        for worker, part in new.shares(key).items():
            arrived[worker] += count * max(0.0, part - former.get(worker, 0.0))
    return arrived


@dataclass(frozen=True)
class Moving:
    """The cost of moving keys, to compare with the gain of a plan.

    batches: how many batches the plan will serve.
    state: tuples of state per tuple of a batch; a window of 5 batches keeps 5.
    cost: cost of moving one tuple of state, where processing one tuple costs 1.

    >>> Moving(batches=5)
    Moving(batches=5, state=1.0, cost=1.0)
    """

    batches: float = 10.0
    state: float = 1.0
    cost: float = 1.0

    def __post_init__(self) -> None:
        for name in ("batches", "state", "cost"):
            value = getattr(self, name)
            require(value >= 0, f"{name} is 0 or more, not {value}")


@dataclass(frozen=True)
class Verdict:
    """Whether a plan is worth its moves; gain and cost are in tuples of the busiest worker."""

    worth: bool
    gain: float  # over all batches that the plan will serve
    cost: float  # of the moves, once
    reason: str


def worth_it(
    old: RoutingTable,
    new: RoutingTable,
    histogram: Histogram,
    moving: Moving | None = None,
    *,
    speeds: NDArray[np.float64] | None = None,
    key_cost: float = 0.0,
) -> Verdict:
    """Decides whether the busiest worker gains more over the coming batches than receiving moved keys costs.

    old, new: the tables. histogram: counts of a batch. moving: cost of moves; by default Moving().
    speeds: of the workers, 1 on average. key_cost: what a key costs besides its tuples, in tuples.

    >>> import numpy as np
    >>> keys, counts = np.arange(64, dtype=np.uint64), np.full(64, 10.0)
    >>> new = RoutingTable.distill(keys, np.repeat(np.arange(4, dtype=np.int32), 16), 4)
    >>> old = RoutingTable.distill(keys, np.repeat(np.arange(4, dtype=np.int32), [16, 16, 12, 20]), 4)
    >>> worth_it(old, new, Histogram(keys, counts)).reason
    'moved: 500 tuples gained over 10 batches, 50 lost by moving'
    >>> worth_it(old, new, Histogram(keys, counts), Moving(batches=1)).reason
    'stayed: 50 tuples gained over 1 batches, 50 lost by moving'
    """
    moving = moving or Moving()
    keys, counts, rest = histogram.keys, histogram.counts + key_cost, histogram.rest
    fast = np.ones(new.n_workers) if speeds is None else speeds
    before, after = (float((table.loads(keys, counts, rest) / fast).max()) for table in (old, new))
    gain = moving.batches * (before - after)
    cost = moving.cost * moving.state * float((arriving(old, new, histogram) / fast).max())
    weighed = f"{gain:,.0f} tuples gained over {moving.batches:,.0f} batches, {cost:,.0f} lost by moving"
    return Verdict(gain > cost, gain, cost, f"{'moved' if gain > cost else 'stayed'}: {weighed}")
