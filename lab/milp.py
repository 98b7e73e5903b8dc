"""How far the plans of Prompt and `level` are from the optimum, on batches small enough for an exact solver.

B-BPFI (Prompt section 4.2) has three objectives. Size comes first, since it can always be met: no block holds more than
the mean, rounded up. The other two are compared with the optimum under the plan's own limits: its fragments with the
fewest of any plan whose blocks are as small; its most keys in a block with the least of any plan whose blocks are as
small and whose fragments are as few. Both gaps are 0 for a Pareto-optimal plan.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import Bounds, LinearConstraint, milp

from skewless.histogram import Histogram
from skewless.partitioners.level import Level
from skewless.partitioners.prompt import Prompt
from skewless.planning.planner import Planner
from skewless.table import RoutingTable

BATCHES = 200
Counts = NDArray[np.int64]


class Quality(NamedTuple):
    """The three objectives of a plan."""

    fragments: int
    cardinality: int  # most keys in a block
    size: float  # most tuples in a block


def batch(seed: int) -> tuple[Counts, int]:
    """Returns the counts of a small batch, uniform or skewed, heaviest first, and a number of blocks."""
    rng = np.random.default_rng(seed)
    n_keys = int(rng.integers(4, 10))
    shares = np.arange(1, n_keys + 1) ** -rng.choice([0.0, 0.5, 1.0, 1.5])
    counts = np.ceil(30 * shares * rng.uniform(0.2, 1.0, n_keys)).astype(np.int64)
    return np.sort(counts)[::-1].copy(), int(rng.integers(3, 5))


def achieved(planner: Planner, counts: Counts) -> Quality:
    """Returns the objectives that a planner achieves on these counts."""
    keys = np.arange(counts.size, dtype=np.uint64)
    table = planner.plan(Histogram(keys, counts.astype(np.float64)), RoutingTable.hashed(planner.n_workers))
    sizes = np.zeros((counts.size, planner.n_workers))
    for key, count in enumerate(counts):
        for worker, part in table.shares(key).items():
            sizes[key, worker] = count * part
    # Weights are multiples of 2**-32: round sizes to hide the error.
    return Quality(int((sizes > 0).sum()), int((sizes > 0).sum(axis=0).max()), round(float(sizes.sum(axis=0).max()), 6))


def fewest_fragments(counts: Counts, n_blocks: int, size: int) -> int:
    """Returns the fewest fragments with at most `size` tuples in each block (equations 7 to 10, 12 and 13)."""
    return _solved(counts, n_blocks, size, None)


def least_cardinality(counts: Counts, n_blocks: int, size: int, fragments: int) -> int:
    """Returns the least possible maximum of keys in a block, with at most this block size and this many fragments."""
    return _solved(counts, n_blocks, size, fragments)


def _solved(counts: Counts, n_blocks: int, size: int, fragments: int | None) -> int:
    """Solves the MILP of x, tuples of each key in each block; y, whether there are any; and the most keys in a block.

    x needs no integrality constraint: for any y, tuples flow from keys to blocks, and a flow between integer supplies
    and capacities has an integer solution.
    """
    n, cells = counts.size, counts.size * n_blocks
    identity, none = np.eye(cells), np.zeros((cells, 1))
    of_key, of_block = np.repeat(np.eye(n), n_blocks, axis=1), np.tile(np.eye(n_blocks), n)
    fit = np.minimum(np.repeat(counts, n_blocks), size)
    constraints = [
        LinearConstraint(np.hstack((of_key, np.zeros((n, cells + 1)))), counts, counts),  # eq. 8
        LinearConstraint(np.hstack((of_block, np.zeros((n_blocks, cells + 1)))), -np.inf, size),  # eq. 9
        LinearConstraint(np.hstack((identity, -fit[:, None] * identity, none)), -np.inf, 0.0),  # eq. 10
        LinearConstraint(np.hstack((np.zeros((n_blocks, cells)), of_block, -np.ones((n_blocks, 1)))), -np.inf, 0.0),
    ]
    x, y, most = np.zeros(cells), np.ones(cells), np.ones(1)
    if fragments is not None:
        constraints.append(LinearConstraint(np.concatenate((x, y, 0 * most))[None, :], -np.inf, fragments))
    solution = milp(
        np.concatenate((x, y, 0 * most) if fragments is None else (x, 0 * y, most)),  # eq. 7, or the most keys
        integrality=np.concatenate((x, y, most)),  # eq. 12
        bounds=Bounds(0.0, np.concatenate((fit, y, n * most))),
        constraints=constraints,
    )
    if not solution.success:
        raise ValueError(f"no plan for {counts.tolist()} in {n_blocks} blocks of {size}: {solution.message}")
    return round(solution.fun)


class Gap(NamedTuple):
    """How much a plan exceeds the optimum in each objective, given its values of the objectives before it."""

    fragments: int
    cardinality: int
    size: float


def gap(plan: Quality, counts: Counts, n_blocks: int) -> Gap:
    """Compares a plan with the optimum for these counts."""
    level = ceil(int(counts.sum()) / n_blocks)
    size = max(level, ceil(plan.size))
    return Gap(
        fragments=plan.fragments - fewest_fragments(counts, n_blocks, size),
        cardinality=plan.cardinality - least_cardinality(counts, n_blocks, size, plan.fragments),
        size=max(0.0, plan.size - level),
    )


def main() -> None:
    gaps: dict[str, list[Gap]] = {"prompt": [], "level": []}
    splits, most = [], []
    for seed in track(range(BATCHES), "solving", console=Console(stderr=True), transient=True):
        counts, n_blocks = batch(seed)
        for name, cls in (("prompt", Prompt), ("level", Level)):
            gaps[name].append(gap(achieved(cls(n_blocks), counts), counts, n_blocks))
        size = ceil(int(counts.sum()) / n_blocks)
        fewest = fewest_fragments(counts, n_blocks, size)
        splits.append(fewest - counts.size)
        most.append(least_cardinality(counts, n_blocks, size, fewest) - ceil(counts.size / n_blocks))
    table = Table(title=f"excess over the optimum: mean (maximum) of {BATCHES} batches of 4 to 9 keys in 3 or 4 blocks")
    table.add_column("planner", style="bold")
    for name in ("fragments", "most keys in a block", "most tuples in a block", "Pareto-optimal"):
        table.add_column(name, justify="right")
    for name, excesses in gaps.items():
        columns = (np.array(column) for column in zip(*excesses, strict=True))
        optimal = np.mean([excess == (0, 0, 0.0) for excess in excesses])
        cells = [f"{column.mean():.2f} ({column.max():g})" for column in columns]
        table.add_row(name, *cells, f"{100 * optimal:.0f} %")
    Console(width=120).print(table)
    print(
        f"The optimum with blocks of the mean, rounded up, has {np.mean(splits):.2f} more fragments than keys; "
        f"with as few, its fullest block has {np.mean(most):.2f} keys more than keys / blocks, rounded up."
    )


if __name__ == "__main__":
    main()
