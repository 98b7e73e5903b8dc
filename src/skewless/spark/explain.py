"""What would be done with a DataFrame and why, before it is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from pyspark.sql import DataFrame

from skewless.arrays import require
from skewless.partitioners.auto import Auto
from skewless.spark.batch import BATCH_COSTS, MILD, little, mild, workers_for
from skewless.spark.profile import profiles, reads
from skewless.table import RoutingTable

Operator = Literal["repartition", "applyInPandas", "applyInArrow", "cogroup", "over", "agg", "ArrowAggregate"]
SPLITTING = ("ArrowAggregate",)  # may a key's rows be worked on in parts?
NATIVE = ("repartition", "over")  # is it Spark's own work that is done with the rows?
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
        verdict = "leave it to Spark" if self.chosen == "hash" else f"balance by {self.chosen}, {self.split} keys split"
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
) -> Explanation:
    """What the verb would do with these keys, and why; profiles them, and runs nothing else.

    operator: the verb, or "ArrowAggregate" for agg with one of those, for which keys may be split.
    sample: the share of rows to look at, as the verbs take it.
    """
    require(operator in get_args(Operator), f"operator is one of {', '.join(get_args(Operator))}, not {operator!r}")
    known = [reads(df)]
    workers = workers_for(df, n_workers, known)
    (found,) = profiles([(df, keys)], sample, n_workers=workers, known=known)
    hashed = RoutingTable.hashed(workers)
    p = Auto(workers, split=operator in SPLITTING, costs=BATCH_COSTS)
    table, decision = p.decided(found.histogram, hashed)
    chosen, reason = decision.chosen, decision.reason
    if n_workers is None and mild(found.histogram, workers):
        chosen, table = "hash", hashed
        reason = f"hashing spreads these keys well: to balance them brings less than {MILD - 1:.0%}"
    if n_workers is None and little(known, native=operator in NATIVE):
        chosen, table = "hash", hashed
        reason = "Spark is done with so little data soon; if its rows are much work, say n_workers"
    if operator == "agg":
        chosen, table = "hash", hashed
        reason = "Spark combines aggregates before it sends rows anywhere: a hot key is one row of each map task"
    return Explanation(
        operator,
        workers,
        chosen,
        found.straggler(workers),
        found.straggler(workers, table),
        found.hottest(HOTTEST),
        int((np.diff(table.starts) > 1).sum()),
        reason,
        found.describe(workers),
    )
