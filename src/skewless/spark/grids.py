"""Plans where the hot keys of a join meet: a grid of workers for each, by how often it occurs on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys
from skewless.histogram import Histogram
from skewless.table import HOT, RoutingTable

# Whether a join may return a row of the left side, and of the right side, alone instead of in a pair. If such a row is
# copied, its copies must not come out as well.
KEEPS: dict[str, tuple[bool, bool]] = {
    "inner": (False, False),
    "left": (True, False),
    "semi": (True, False),
    "anti": (True, False),
    "right": (False, True),
    "full": (True, True),
}
PIECE = 0.25  # a piece of a hot key is at most this part of a worker's mean load
MARGIN = 0.1  # the gain on the busiest worker that pays for departing from Spark's plan, or for reading a side twice


class Side(Protocol):
    """The key counts of one side of a join."""

    @property
    def histogram(self) -> Histogram: ...

    @property
    def nulls(self) -> float:
        """Rows with a NULL in their key: they match nothing."""
        ...


class Counted(NamedTuple):
    """The key counts of one side of a join, made earlier."""

    histogram: Histogram
    nulls: float = 0.0


@dataclass(frozen=True, eq=False)
class Grids:
    """The workers on which the two sides of a key meet.

    Hot key k has rows[k] x columns[k] cells, each on a worker of its own.
    A row of the left side goes to all cells of one row of the grid, a row of the right side to all cells of one column:
    any two of them meet in exactly one cell.
    """

    table: RoutingTable  # of all other keys
    keys: Keys  # hot
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    starts: NDArray[np.int64]  # of the cells of each key
    workers: NDArray[np.int32]  # of the cells, row by row
    distinct: bool = False  # one row of a hot key's right side is enough, and the others are dropped
    shares: RoutingTable | None = None  # how the rows of the hot keys are spread; None: evenly

    @property
    def copies(self) -> tuple[bool, bool]:
        """Whether rows of the left side are copied, and whether rows of the right side are."""
        return bool((self.columns > 1).any()), bool((self.rows > 1).any())

    @property
    def transposed(self) -> NDArray[np.int32]:
        """The workers of the cells, column by column."""
        parts = [np.empty(0, np.int32)]
        for number in range(self.keys.size):
            parts.append(self._cells(number).reshape(self.rows[number], self.columns[number]).T.reshape(-1))
        return np.concatenate(parts)

    def loads(self, costs: JoinCosts) -> NDArray[np.float64]:
        """Returns the cost of each worker."""
        if self.distinct:
            costs = costs.with_distinct_right(np.isin(costs.keys, self.keys))
        numbers = {int(key): number for number, key in enumerate(costs.keys.tolist())}
        tail = ~np.isin(costs.keys, self.keys)
        load = self.table.loads(costs.keys[tail], costs.whole[tail], costs.rest + costs.nulls)
        for number, key in enumerate(self.keys.tolist()):
            if key in numbers:
                load[self._cells(number)] += self._costs_of_cells(number, numbers[key], costs)
        return load

    def _costs_of_cells(self, number: int, of_key: int, costs: JoinCosts) -> NDArray[np.float64]:
        """Returns what each cell of a hot key costs; in `costs` it is key number `of_key`."""
        shape = np.array([[self.rows[number], self.columns[number]]])
        if self.shares is None:
            return np.repeat(costs.of_cells(of_key, shape), shape.prod())
        shares = self.shares.shares(int(self.keys[number]))
        parts = np.array([shares[worker] for worker in self._cells(number).tolist()])
        left, right = costs.left[of_key], costs.right[of_key]
        left, right = (left * parts, right) if self.rows[number] > 1 else (left, right * parts)
        return np.asarray(left + right + costs.per_pair * left * right)

    def _cells(self, number: int) -> NDArray[np.int32]:
        return self.workers[self.starts[number] : self.starts[number + 1]]


@dataclass(frozen=True, eq=False)
class JoinCosts:
    """What keys cost in a join: their rows on both sides, and the rows that come out."""

    keys: Keys
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    rest: float  # of all other keys
    nulls: float  # of rows with a NULL in their key, on the sides whose rows may come out alone
    per_pair: float  # the cost of a row that comes out

    @classmethod
    def of(cls, sides: Sequence[Side], how: str) -> JoinCosts:
        left, right = (side.histogram for side in sides)
        both = left + right
        return cls(
            keys=both.keys,
            left=left.count_of(both.keys),
            right=right.count_of(both.keys),
            rest=both.rest,
            nulls=float(sum(side.nulls for side, keeps in zip(sides, KEEPS[how], strict=True) if keeps)),
            per_pair=0.0 if how in ("semi", "anti") else 1.0,
        )

    @property
    def whole(self) -> NDArray[np.float64]:
        """The cost of each key on one worker."""
        return self.left + self.right + self.per_pair * self.left * self.right

    @property
    def histogram(self) -> Histogram:
        """The costs as if they were tuples, for partitioners."""
        order = np.lexsort((self.keys, -self.whole))
        return Histogram(self.keys[order], self.whole[order], self.rest + self.nulls)

    def hashed(self, n_workers: int) -> float:
        """Returns the cost of the busiest worker under plain hashing, which sends all NULLs to one worker."""
        plain = RoutingTable.hashed(n_workers).loads(self.keys, self.whole, self.rest)
        plain[0] += self.nulls
        return float(plain.max())

    def mean(self, n_workers: int) -> float:
        """Returns the mean cost of a worker."""
        return (float(self.whole.sum()) + self.rest + self.nulls) / n_workers

    def of_cells(self, number: int, shapes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns what one cell of a key's grid costs, for each of these shapes of the grid."""
        left, right = self.left[number] / shapes[:, 0], self.right[number] / shapes[:, 1]
        return np.asarray(left + right + self.per_pair * left * right)

    def with_distinct_right(self, hot: NDArray[np.bool_]) -> JoinCosts:
        """Returns the costs if the right side has only one row of each hot key."""
        return replace(self, right=np.where(hot, np.minimum(self.right, 1.0), self.right))


def tabled(table: RoutingTable, left: Histogram, right: Histogram, how: str) -> Grids:
    """Plans grids by a routing table.

    Rows of a split key are spread by the table on the side that has more of them, and copied on the other. Semi and
    anti joins always copy the right side: copies of a left row would come out twice.
    """
    lengths = np.diff(table.starts)
    spread_left = left.count_of(table.keys) >= right.count_of(table.keys)
    spread_left |= how in ("semi", "anti")
    split = lengths > 1
    of_split = np.repeat(split, lengths)
    n_whole = int((~split).sum())
    return Grids(
        table=table.with_hot_keys(
            table.keys[~split], np.arange(n_whole + 1), table.workers[~of_split], np.ones(n_whole)
        ),
        keys=table.keys[split],
        rows=np.where(spread_left, lengths, 1)[split],
        columns=np.where(spread_left, 1, lengths)[split],
        starts=np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths[split]))),
        workers=table.workers[of_split],
        shares=table,
    )


def gridded(costs: JoinCosts, how: str, n_workers: int) -> Grids | None:
    """Plans grids for the keys that matter to balance; returns None if hashing is about as good.

    Two things need a side to be read twice, and are done only where that pays: copying rows that may come out without a
    match, and dropping the right rows that semi and anti joins need not see.
    """
    best = _packed(costs, n_workers, KEEPS[how])
    of_keys = how in ("semi", "anti")
    other = _packed(costs, n_workers, KEEPS[how] if of_keys else (False, False), distinct=of_keys)
    longest, other_longest = (float(grids.loads(costs).max()) for grids in (best, other))
    if other_longest < (1 - MARGIN) * longest:
        best, longest = other, other_longest
    return best if longest < (1 - MARGIN) * costs.hashed(n_workers) else None


def _packed(costs: JoinCosts, n_workers: int, single: tuple[bool, bool], distinct: bool = False) -> Grids:
    """Gives each hot key, heaviest first, the cheapest grid whose cells are small, on the emptiest workers.

    single: whether rows of the left side must not be copied, and the same for the right side.
    """
    hot = costs.whole > max(costs.mean(n_workers) / HOT, 1.0)
    if distinct:
        costs = costs.with_distinct_right(hot)
    whole, mean = costs.whole, costs.mean(n_workers)
    table = RoutingTable.hashed(n_workers)
    load, homes = table.loads(costs.keys, whole, costs.rest + costs.nulls), table.main_workers(costs.keys)
    shapes = np.array([(r, c) for r in range(1, n_workers + 1) for c in range(1, n_workers // r + 1)])
    shapes = shapes[~(single[0] & (shapes[:, 1] > 1)) & ~(single[1] & (shapes[:, 0] > 1))]
    numbers = np.flatnonzero(hot)[np.argsort(-whole[hot], kind="stable")]
    sizes, cells = np.ones((numbers.size, 2), np.int64), [np.empty(0, np.int32)]
    for rank, number in enumerate(numbers.tolist()):
        shape = shapes[:1]
        if whole[number] > PIECE * mean:
            cost, size = costs.of_cells(number, shapes), shapes.prod(axis=1)
            # The least total work with small cells; otherwise the least cost of a cell plus total work per worker.
            small = cost <= PIECE * mean
            score = np.where(small, size * cost, np.inf) if small.any() else cost + size * cost / n_workers
            shape = shapes[int(np.argmin(score)) :][:1]
        load[homes[number]] -= whole[number]
        emptiest = np.argsort(load, kind="stable")[: shape.prod()].astype(np.int32)
        load[emptiest] += costs.of_cells(number, shape)
        sizes[rank] = shape[0]
        cells.append(emptiest)
    return Grids(
        table=table,
        keys=costs.keys[numbers],
        rows=sizes[:, 0],
        columns=sizes[:, 1],
        starts=np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes.prod(axis=1)))),
        workers=np.concatenate(cells),
        distinct=distinct,
    )
