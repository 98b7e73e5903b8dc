"""Joins of skewed keys: rows of a hot key are spread over several workers, and what they must meet is copied there."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from math import ceil, sqrt
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from skewless.arrays import require, whole
from skewless.histogram import Histogram
from skewless.spark.batch import WORKER, checksums, parallelism
from skewless.spark.keys import any_null, column, fields_of, hashed, unused
from skewless.spark.profile import profile
from skewless.spark.route import constant, element, perfect, slot_of, worker
from skewless.table import RoutingTable

How = Literal["inner", "left", "right", "full", "semi", "anti"]
_NAMES = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "right": "right",
    "rightouter": "right",
    "full": "full",
    "outer": "full",
    "fullouter": "full",
    "semi": "semi",
    "leftsemi": "semi",
    "anti": "anti",
    "leftanti": "anti",
}
SPLITS: dict[str, tuple[bool, bool]] = {  # which sides may be spread: the other one is copied, so it must not be kept
    "inner": (True, True),
    "left": (True, False),
    "semi": (True, False),
    "anti": (True, False),
    "right": (False, True),
    "full": (False, False),
}
PIECE = 0.25  # a piece of a hot key is at most this part of what a worker has on the average


@dataclass(frozen=True, eq=False)
class Grids:
    """Where hot keys meet. Key k has rows[k] x columns[k] cells, each on a worker of its own.

    A row of the left side goes to all cells of one row of the grid, one of the right side to all cells of one column:
    any two of them meet in exactly one cell.
    """

    table: RoutingTable  # of all other keys
    keys: NDArray[np.uint64]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    starts: NDArray[np.int64]  # of the cells of each key
    workers: NDArray[np.int32]  # of the cells, row by row


def gridded(left: Histogram, right: Histogram, how: str, n_workers: int) -> Grids:
    """Grids for the keys that would keep one worker busy for too long.

    What a key costs is its rows on both sides, and the rows that come out.
    """
    both = left + right
    sides = [dict(zip(side.keys.tolist(), side.counts.tolist(), strict=True)) for side in (left, right)]
    of_left, of_right = (np.array([side.get(key, 0.0) for key in both.keys.tolist()]) for side in sides)
    costs = of_left + of_right + of_left * of_right
    piece = PIECE * (float(costs.sum()) + both.rest) / n_workers
    table = RoutingTable.hashed(n_workers)
    load, homes = table.loads(both.keys, costs, both.rest), table.places_of(both.keys)
    found: list[tuple[int, int, int, NDArray[np.int32]]] = []
    for number in np.argsort(-costs, kind="stable").tolist():
        if costs[number] <= max(piece, 1.0):
            break
        rows, columns = _shape(of_left[number], of_right[number], costs[number] / piece, SPLITS[how], n_workers)
        load[homes[number]] -= costs[number]
        cells = rows * columns
        emptiest = np.argsort(load, kind="stable")[:cells].astype(np.int32)
        load[emptiest] += (
            of_left[number] / rows + of_right[number] / columns + of_left[number] * of_right[number] / cells
        )
        found.append((int(both.keys[number]), rows, columns, emptiest))
    cells_of = [rows * columns for _, rows, columns, _ in found]
    return Grids(
        table,
        np.array([key for key, *_ in found], np.uint64),
        np.array([rows for _, rows, _, _ in found], np.int64),
        np.array([columns for _, _, columns, _ in found], np.int64),
        np.concatenate((np.zeros(1, np.int64), np.cumsum(cells_of, dtype=np.int64))),
        np.concatenate([np.empty(0, np.int32), *(workers for *_, workers in found)]),
    )


def _shape(left: float, right: float, pieces: float, spreads: tuple[bool, bool], most: int) -> tuple[int, int]:
    """Rows and columns of a grid of about so many cells, in proportion to the sides, as far as they may be spread.

    A side is not cut into pieces smaller than what is copied to each of them.
    """
    rows = round(sqrt(max(1.0, pieces * left / max(right, 1.0)))) if all(spreads) else ceil(pieces)
    rows = max(1, min(rows, most, ceil(left / max(right, 1.0)) if not all(spreads) else most)) if spreads[0] else 1
    columns = ceil(pieces / rows) if spreads[1] else 1
    if not spreads[0]:
        columns = min(columns, ceil(right / max(left, 1.0)))
    return rows, max(1, min(columns, most // rows))


def join(
    left: DataFrame, right: DataFrame, on: str | list[str], how: str = "inner", *, n_workers: int | None = None
) -> DataFrame:
    """As left.join(right, on, how), with hot keys spread over several workers; on: columns of both.

    Spark's own plan is left alone where it sends one side to all tasks, and where no key is hot.
    """
    names = (on,) if isinstance(on, str) else tuple(on)
    kind = _NAMES.get(how.lower().replace("_", ""), "")
    require(bool(kind), f"how is one of {', '.join(get_args(How))}, not {how!r}")
    types = [[field.dataType for field in fields_of(side, names)] for side in (left, right)]
    require(types[0] == types[1], f"both sides have keys of the same types, not {types[0]} and {types[1]}: cast one")
    workers = parallelism(left) if n_workers is None else whole("n_workers", n_workers, 1)
    plain = left.join(right, list(names), kind)
    if "Broadcast" in _explained(plain):
        return plain
    grids = gridded(profile(left, *names).histogram, profile(right, *names).histogram, kind, workers)
    if grids.keys.size == 0:
        return plain
    if grids.workers.size > grids.keys.size:
        checksums(left)
    (name,) = unused(left.join(right, list(names), "inner"), WORKER)
    sides = [_placed(side, names, grids, name, is_left) for side, is_left in ((left, True), (right, False))]
    return sides[0].join(sides[1], [name, *names], kind).drop(name)


def _explained(df: DataFrame) -> str:
    """Spark's plan; it is printed only, on Classic and over Connect."""
    with redirect_stdout(StringIO()) as printed:
        df.explain()
    return printed.getvalue()


def _placed(side: DataFrame, names: tuple[str, ...], grids: Grids, into: str, is_left: bool) -> DataFrame:
    """The rows of a side on their workers; those of hot keys in all cells that they must be in."""
    key, slots = hashed(side, names), perfect(grids.keys)
    mixed = F.xxhash64(key)
    slot = slot_of(slots, mixed)
    coin = F.shiftrightunsigned(F.xxhash64(F.monotonically_increasing_id()), 32)
    n_workers = grids.table.n_workers
    # A NULL in a key matches nothing, so it may be anywhere: everywhere alike.
    anywhere = F.shiftrightunsigned(coin * F.lit(n_workers), 32).cast("int")
    own, other = (grids.rows, grids.columns) if is_left else (grids.columns, grids.rows)
    cells = grids.workers if is_left else _transposed(grids)
    mine = F.shiftrightunsigned(coin * element(own[slots.numbers], slot, "bigint"), 32)
    width = element(other[slots.numbers], slot, "bigint")
    start = element(grids.starts[:-1][slots.numbers], slot, "bigint") + mine * width
    hot = element(slots.hashes, slot, "bigint") == mixed
    places = (
        F.when(any_null(names), F.array(anywhere))
        .when(hot, F.slice(constant(cells), (start + 1).cast("int"), width.cast("int")))
        .otherwise(F.array(worker(grids.table, key)))
    )
    return side.select("*", F.explode(places).alias(into)).repartitionById(n_workers, column(into))


def _transposed(grids: Grids) -> NDArray[np.int32]:
    """The cells of each key column by column."""
    parts = [np.empty(0, np.int32)]
    for number in range(grids.keys.size):
        cells = grids.workers[grids.starts[number] : grids.starts[number + 1]]
        parts.append(cells.reshape(grids.rows[number], grids.columns[number]).T.reshape(-1))
    return np.concatenate(parts)
