"""What would be done with a DataFrame and why, before it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from pyspark.sql import DataFrame

from skewless.arrays import require
from skewless.partitioners.auto import Auto
from skewless.spark.batch import BATCH_COSTS, LITTLE, MILD, little, mild, workers_for
from skewless.spark.grids import MARGIN, gridded
from skewless.spark.join import Sides
from skewless.spark.profile import hottest, profiles, reads, straggler
from skewless.table import RoutingTable

Operator = Literal[
    "repartition", "applyInPandas", "applyInArrow", "cogroup", "over", "agg", "collect_list", "ArrowAggregate", "join"
]
SPLITTING = ("collect_list", "ArrowAggregate")  # may a key's rows be worked on in parts?
NATIVE = ("repartition", "over", "collect_list")  # is it Spark's own work that is done with the rows?
PAIRED = ("cogroup", "join")  # of two DataFrames
HOTTEST = 5  # keys that are named


@dataclass(frozen=True)
class Explanation:
    """Printed, it is for people."""

    operator: str
    n_workers: int
    chosen: str  # "hash" is to leave it to Spark
    before: float  # the longest worker over the mean, if keys are hashed
    after: float  # the same by the plan
    hot: list[tuple[tuple[Any, ...], int]]  # the hottest keys, and their rows
    split: int  # keys that the plan splits
    reason: str
    profile: str

    def __str__(self) -> str:
        names = ", ".join(f"{', '.join(map(str, key))} ({rows:,} rows)" for key, rows in self.hot)
        split = "1 key" if self.split == 1 else f"{self.split} keys"
        verdict = "leave it to Spark" if self.chosen == "hash" else f"balance by {self.chosen}, {split} split"
        return (
            f"{self.operator} over {self.n_workers:,} workers: {verdict}\n"
            f"  the longest worker takes {self.before:.2f} times the mean if hashed, {self.after:.2f} as planned\n"
            f"  why: {self.reason}\n"
            f"  keys: {self.profile}\n"
            f"  hottest: {names or 'none'}"
        )


def explain(
    df: DataFrame,
    *keys: str,
    operator: Operator = "applyInPandas",
    n_workers: int | None = None,
    sample: float | None = None,
    other: DataFrame | None = None,
    how: str = "inner",
) -> Explanation:
    """What the verb would do with these keys, and why; profiles them, and runs nothing else.

    operator: the verb. "agg" is for aggregates that Spark combines; others have their own names, "collect_list" and
        "ArrowAggregate": there keys may be split.
    sample: the share of rows to look at, as the verbs take it.
    other: the right side of a cogroup or a join, which has the same keys.
    how: of a join.
    """
    require(operator in get_args(Operator), f"operator is one of {', '.join(get_args(Operator))}, not {operator!r}")
    paired = " and ".join(PAIRED)
    require(
        other is not None or operator not in PAIRED, f"{operator} is of two DataFrames: give the right one as `other`"
    )
    require(other is None or operator in PAIRED, f"{operator} is of one DataFrame: `other` is for {paired}")
    if operator == "join" and other is not None:
        require(sample is None, "a join says itself what share of the rows it looks at: leave sample out")
        return _joined(Sides.of(df, other, keys, how), n_workers)
    frames = [(side, keys) for side in (df, other) if side is not None]
    known = [reads(side) for side, _ in frames]
    workers = workers_for(df, "auto", n_workers, known)
    found = profiles(frames, sample, n_workers=workers, known=known)
    histogram = found[0].histogram if other is None else found[0].histogram + found[1].histogram
    hashed = RoutingTable.hashed(workers)
    p = Auto(workers, split=operator in SPLITTING, costs=BATCH_COSTS)
    table, decision = p.decided(histogram, hashed)
    chosen, reason = decision.chosen, decision.reason
    if n_workers is None and mild(histogram, workers):
        chosen, table = "hash", hashed
        reason = f"hashing spreads these keys well: to balance them brings less than {MILD - 1:.0%}"
    if n_workers is None and little(known, native=operator in NATIVE):
        chosen, table, reason = "hash", hashed, LITTLE
    if operator == "agg":
        chosen, table = "hash", hashed
        reason = "Spark combines aggregates before it sends rows anywhere: a hot key is one row of each map task"
    return Explanation(
        operator,
        workers,
        chosen,
        straggler(histogram, hashed),
        straggler(histogram, table),
        hottest(frames, histogram, HOTTEST),
        int((np.diff(table.starts) > 1).sum()),
        reason,
        "; beside it ".join(one.describe(workers) for one in found),
    )


def _joined(sides: Sides, n_workers: int | None) -> Explanation:
    """Of a join. What a key costs there are its rows on both sides, and those that come out."""
    known = sides.read()
    workers = workers_for(sides.left, "auto", n_workers, known)
    found, costs = sides.counted(known)
    reason = sides.spared(known, n_workers)
    grids = None if reason else gridded(costs, sides.kind, workers)
    before, mean = costs.hashed(workers), costs.mean(workers) or 1.0
    after, split = before, 0
    if grids is not None:
        after, split = grids.longest, int((grids.rows * grids.columns > 1).sum())
        reason = "hot keys are spread over several workers, and what they must meet is copied there; NULLs are anywhere"
    return Explanation(
        "join",
        workers,
        "hash" if grids is None else "grids",
        before / mean,
        after / mean,
        hottest(sides.frames, found[0].histogram + found[1].histogram, HOTTEST),
        split,
        reason or f"no key is so hot that to spread it would bring {MARGIN:.0%}",
        "; beside it ".join(one.describe(workers) for one in found),
    )
