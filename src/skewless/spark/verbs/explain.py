"""Explains what a verb would do with a DataFrame, and why, without running it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

from pyspark.sql import DataFrame

from skewless.arguments import require
from skewless.spark.decision import Decision, decide
from skewless.spark.exact import Exact
from skewless.spark.keys import Key, Keyed, keyed
from skewless.spark.request import PartitionerLike, Request, Verb
from skewless.spark.verbs.join import sides

PAIRED = ("cogroup", "join")  # operators of two DataFrames
HOTTEST = 5  # keys that are named


@dataclass(frozen=True)
class Explanation:
    """What a verb would do, and why; print it to read it.

    >>> print(sl.explain(df, "user"))                                                            # doctest: +SKIP
    """

    operator: str
    n_workers: int
    chosen: str  # the name of the partitioner; also "hash" if the work is left to Spark
    before: float  # the longest of plain Spark's tasks, over an even share of the work
    after: float  # the same as decided
    hot: list[tuple[tuple[Any, ...], int]]  # the hottest keys, and their rows
    split: int  # keys that the plan splits
    reason: str
    profile: str  # the keys, as `Profile.describe` says them
    decision: Decision = field(repr=False)  # that the verb would follow

    @classmethod
    def of(cls, decision: Decision) -> Explanation:
        """Describes a decision. Runs a job that looks up the hottest keys, and one for a profile if it has none.

        decision: what `decide` returned.

        >>> sl.Explanation.of(sl.explain(df, "user").decision).n_workers                         # doctest: +SKIP
        64
        """
        decision = decision.with_keys()
        return cls(
            operator=decision.request.operator,
            n_workers=decision.n_workers,
            chosen=decision.partitioner,
            before=decision.before,
            after=decision.after,
            hot=[(key.values, key.rows) for key in decision.hottest[:HOTTEST]],
            split=decision.split,
            reason=decision.reason,
            profile="; right side: ".join(profile.describe(decision.n_workers) for profile in decision.profiles),
            decision=decision,
        )

    @property
    def is_left_to_spark(self) -> bool:
        """Whether Spark's own plan is kept."""
        return self.decision.routing is None

    def __str__(self) -> str:
        names = ", ".join(f"{', '.join(map(str, key))} ({rows:,} rows)" for key, rows in self.hot)
        split = "1 key" if self.split == 1 else f"{self.split} keys"
        verdict = "leave it to Spark" if self.is_left_to_spark else f"balance by {self.chosen}, {split} split"
        return (
            f"{self.operator} over {self.n_workers:,} workers: {verdict}\n"
            f"  the longest task has {self.before:.2f} times an even share in plain Spark, {self.after:.2f} by plan\n"
            f"  why: {self.reason}\n"
            f"  keys: {self.profile}\n"
            f"  hottest: {names or 'none'}"
        )


def explain(
    df: DataFrame,
    *keys: Key,
    operator: Verb = "applyInPandas",
    n_workers: int | None = None,
    partitioner: PartitionerLike | Exact = "auto",
    sample: float | None = None,
    other: DataFrame | None = None,
    how: str = "inner",
    into: str | None = None,
) -> Explanation:
    """Explains what a verb would do with these keys, and why. Runs jobs that look at the keys, but not the verb.

    df: the rows; the left side of a cogroup or a join.
    keys: as the verb takes them.
    operator: the verb. "agg" is for aggregates that Spark combines; "collect_list" and "ArrowAggregate" are for those
        whose keys may be split.
    n_workers, partitioner, sample: as the verb takes them.
    other: the right side of a cogroup or a join, which has the same keys.
    how: the kind of a join.
    into: as `repartition` takes it.

    >>> print(sl.explain(df, "user"))                                                            # doctest: +SKIP
    >>> print(sl.explain(left, "user", operator="join", other=right, how="left"))                # doctest: +SKIP
    """
    require(operator in get_args(Verb), f"operator is one of {', '.join(get_args(Verb))}, not {operator!r}")
    paired = operator in PAIRED
    require(other is not None or not paired, f"{operator} takes two DataFrames: give the right one as `other`")
    require(other is None or paired, f"{operator} takes one DataFrame: `other` is for {' and '.join(PAIRED)}")
    numbered = into is not None
    require(not numbered or operator == "repartition", f"into is a parameter of repartition, not of {operator}")
    if operator == "join" and other is not None:
        require(sample is None, "a join decides itself what share of the rows to look at: leave sample out")
        pair, how = sides(df, other, keys, how)
        frames: tuple[Keyed, ...] = pair
    else:
        frames = tuple(keyed(side, keys) for side in (df, other) if side is not None)
    return Explanation.of(decide(Request(operator, frames, partitioner, n_workers, sample, how, numbered)))
