"""Where the hot keys of a join meet: grids of cells, planned from how often keys occur on both sides, or by a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys
from skewless.histogram import Histogram
from skewless.table import HOT, RoutingTable

KEEPS: dict[str, tuple[bool, bool]] = {  # whether a row of the left, of the right side may come out without a match
    "inner": (False, False),
    "left": (True, False),
    "semi": (True, False),
    "anti": (True, False),
    "right": (False, True),
    "full": (True, True),
}
PIECE = 0.25  # a piece of a hot key is at most this part of what a worker has on the average
MARGIN = 0.1  # how much less the longest worker must have, to depart from Spark's plan, or to read a side once more


class Counted(NamedTuple):
    """One side of a join."""

    keys: Histogram
    nulls: float  # rows with a NULL in their key: they match nothing


@dataclass(frozen=True, eq=False)
class Grids:
    """Where hot keys meet. Key k has rows[k] x columns[k] cells, each on a worker of its own.

    A row of the left side goes to all cells of one row of the grid, one of the right side to all cells of one column:
    any two of them meet in exactly one cell.
    """

    table: RoutingTable  # of all other keys
    keys: Keys
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    starts: NDArray[np.int64]  # of the cells of each key
    workers: NDArray[np.int32]  # of the cells, row by row
    longest: float = nan  # what the busiest worker has to do; not known if somebody else says where keys go
    distinct: bool = False  # of a hot key, one row of the right side is enough, and the others are left out
    shares: RoutingTable | None = None  # that says how rows of these, its split keys, are spread; if none, all alike

    @property
    def copies(self) -> tuple[bool, bool]:
        """Whether rows of the left, of the right side are copied."""
        return bool((self.columns > 1).any()), bool((self.rows > 1).any())

    @property
    def transposed(self) -> NDArray[np.int32]:
        """The workers of the cells, column by column."""
        parts = [np.empty(0, np.int32)]
        for number in range(self.keys.size):
            cells = self.workers[self.starts[number] : self.starts[number + 1]]
            parts.append(cells.reshape(self.rows[number], self.columns[number]).T.reshape(-1))
        return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class Costs:
    """What keys cost: their rows on both sides, and the rows that come out."""

    keys: Keys
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    rest: float  # of keys that are not among them
    nulls: float  # of rows with a NULL in their key that come out
    pairs: float  # what a row that comes out costs

    @classmethod
    def of(cls, sides: tuple[Counted, Counted], how: str) -> Costs:
        left, right = (side.keys for side in sides)
        both = left + right
        nulls = sum(side.nulls for side, kept in zip(sides, KEEPS[how], strict=True) if kept)
        of_left, of_right = (side.count_of(both.keys) for side in (left, right))
        return cls(both.keys, of_left, of_right, both.rest, nulls, 0.0 if how in ("semi", "anti") else 1.0)

    @property
    def whole(self) -> NDArray[np.float64]:
        """Of each key, on one worker."""
        return self.left + self.right + self.pairs * self.left * self.right

    @property
    def histogram(self) -> Histogram:
        """For partitioners: so much work is a key, as if it were tuples."""
        order = np.lexsort((self.keys, -self.whole))
        return Histogram(self.keys[order], self.whole[order], self.rest + self.nulls)

    def hashed(self, n_workers: int) -> float:
        """Of the busiest worker in Spark's own plan, which sends all NULLs to one."""
        plain = RoutingTable.hashed(n_workers).loads(self.keys, self.whole, self.rest)
        plain[0] += self.nulls
        return float(plain.max())

    def mean(self, n_workers: int) -> float:
        """Of a worker."""
        return (float(self.whole.sum()) + self.rest + self.nulls) / n_workers

    def of_cells(self, number: int, shapes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Of a cell of a key, for each of these shapes of its grid."""
        left, right = self.left[number] / shapes[:, 0], self.right[number] / shapes[:, 1]
        return np.asarray(left + right + self.pairs * left * right)


def tabled(table: RoutingTable, left: Histogram, right: Histogram, how: str) -> Grids:
    """Keys where a table has them.

    Rows of a split key are spread by its parts on the side that has more of them, and copied on the other. For semi and
    anti joins that is always the right one: a copy of each row of the left might come out.
    """
    lengths, of_left = np.diff(table.starts), left.count_of(table.keys) >= right.count_of(table.keys)
    of_left |= how in ("semi", "anti")
    split = lengths > 1
    own = np.repeat(split, lengths)
    return Grids(
        table.placing(table.keys[~split], np.arange((~split).sum() + 1), table.workers[~own], np.ones((~own).sum())),
        table.keys[split],
        np.where(of_left, lengths, 1)[split],
        np.where(of_left, 1, lengths)[split],
        np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths[split]))),
        table.workers[own],
        shares=table,
    )


def gridded(costs: Costs, how: str, n_workers: int) -> Grids | None:
    """Grids for the keys that matter to balance; None if hashing is about as good.

    What needs a side to be read once more is done only where it pays: to copy rows that may come out without a match,
    and to leave out what semi and anti joins need not see.
    """
    best = _gridded(costs, n_workers, KEEPS[how])
    of_keys = how in ("semi", "anti")
    other = _gridded(costs, n_workers, KEEPS[how] if of_keys else (False, False), distinct=of_keys)
    if other.longest < (1 - MARGIN) * best.longest:
        best = other
    return best if best.longest < (1 - MARGIN) * costs.hashed(n_workers) else None


def _gridded(costs: Costs, n_workers: int, single: tuple[bool, bool], distinct: bool = False) -> Grids:
    """single: whether rows of the left, of the right side must not be copied."""
    hot = costs.whole > max(costs.mean(n_workers) / HOT, 1.0)
    if distinct:
        costs = replace(costs, right=np.where(hot, np.minimum(costs.right, 1.0), costs.right))
    whole, mean = costs.whole, costs.mean(n_workers)
    table = RoutingTable.hashed(n_workers)
    load, homes = table.loads(costs.keys, whole, costs.rest + costs.nulls), table.places_of(costs.keys)
    shapes = np.array([(r, c) for r in range(1, n_workers + 1) for c in range(1, n_workers // r + 1)])
    shapes = shapes[~(single[0] & (shapes[:, 1] > 1)) & ~(single[1] & (shapes[:, 0] > 1))]
    found: list[tuple[int, NDArray[np.int64], NDArray[np.int32]]] = []
    for number in np.flatnonzero(hot)[np.argsort(-whole[hot], kind="stable")].tolist():
        shape = shapes[:1]
        if whole[number] > PIECE * mean:
            cells, size = costs.of_cells(number, shapes), shapes.prod(axis=1)
            # The least work in which all pieces are small; if there is none, what is little for one and for all.
            small = cells <= PIECE * mean
            score = np.where(small, size * cells, np.inf) if small.any() else cells + size * cells / n_workers
            shape = shapes[int(np.argmin(score)) :][:1]
        load[homes[number]] -= whole[number]
        emptiest = np.argsort(load, kind="stable")[: shape.prod()].astype(np.int32)
        load[emptiest] += costs.of_cells(number, shape)
        found.append((number, shape[0], emptiest))
    chosen = np.array([number for number, *_ in found], np.int64)
    sizes = np.array([shape for _, shape, _ in found], np.int64).reshape(-1, 2)
    return Grids(
        table,
        costs.keys[chosen],
        sizes[:, 0],
        sizes[:, 1],
        np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes.prod(axis=1)))),
        np.concatenate([np.empty(0, np.int32), *(workers for *_, workers in found)]),
        float(load.max()),
        distinct,
    )
