"""What changes its place from one routing table to another, and whether that is worth it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, require
from skewless.histogram import Histogram
from skewless.table import RoutingTable


@dataclass(frozen=True)
class Moves:
    """What changes its place from one table to another: nothing else does."""

    keys: Keys  # hot in one of the tables, ascending
    hosts: NDArray[np.int64]  # of the table with more hosts; keys that are hot in either table are not meant
    mass: float  # the share of all tuples that goes elsewhere


def moves(old: RoutingTable, new: RoutingTable, histogram: Histogram | None = None) -> Moves:
    """Every key and host whose workers differ, with the mass that moves.

    histogram: what occurs; left out, all tuples are of keys that are not hot, and spread over all hosts alike.
    """
    nothing = np.empty(0, np.uint64), np.empty(0)
    histogram = histogram or Histogram(*nothing, rest=1.0)
    before, after = _hosts(old, new)
    keys = [key for key in np.union1d(old.keys, new.keys).tolist() if old.places(key) != new.places(key)]
    mass = float(arriving(old, new, histogram).sum()) / (histogram.total or 1.0)
    return Moves(np.array(keys, np.uint64), np.flatnonzero(before != after), mass)


def _hosts(old: RoutingTable, new: RoutingTable) -> list[NDArray[np.int32]]:
    """The hosts of both, as many as the larger has."""
    size = max(old.hosts.size, new.hosts.size)
    return [table.hosts.repeat(size // table.hosts.size) for table in (old, new)]


def arriving(old: RoutingTable, new: RoutingTable, histogram: Histogram) -> NDArray[np.float64]:
    """What each worker of the new table gets of these keys that it did not get by the old one."""
    keys, counts = histogram.keys, histogram.counts
    listed = np.isin(keys, np.union1d(old.keys, new.keys))
    was, will = (table.hosts[table.host_of(keys[~listed])] for table in (old, new))
    arrived = np.bincount(will[was != will], counts[~listed][was != will], new.n_workers).astype(np.float64)
    before, after = _hosts(old, new)
    arrived += np.bincount(after[before != after], minlength=new.n_workers) * (histogram.rest / after.size)
    for key, count in zip(keys[listed].tolist(), counts[listed].tolist(), strict=True):
        former = old.places(key)
        for worker, part in new.places(key).items():
            arrived[worker] += count * max(0.0, part - former.get(worker, 0.0))
    return arrived


@dataclass(frozen=True)
class Moving:
    """What it costs to move keys, to be weighed against what a plan gains.

    batches: how many batches the plan is to serve.
    state: tuples that a key keeps as state for each tuple of it in a batch; a window of 5 batches keeps 5.
    cost: of moving one tuple of state, where processing one tuple costs 1.
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
    """Whether a plan is worth its moves, in tuples that the busiest worker is spared or burdened with."""

    worth: bool
    gain: float  # over all batches that the plan is to serve
    cost: float  # once
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
    """Whether the busiest worker gains more over the coming batches than the one that most arrives at must wait.

    speeds: of the workers, 1 on the average. key_cost: what a key costs besides its tuples, in tuples.

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
