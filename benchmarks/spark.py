"""Shared by the benchmarks on Spark: a session, interleaved timing, and claims with bounds."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STREAMING = {
    "spark.sql.streaming.stateStore.providerClass": ROCKS,
    "spark.sql.streaming.pollingDelay": "500ms",  # by default, idle queries list their files all the time
    "spark.sql.session.timeZone": "UTC",
}


def session(slots: int, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Returns a local Spark session with this many task slots."""
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = SparkSession.builder.master(f"local[{slots}]").config("spark.driver.memory", "4g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.shuffle.partitions", str(slots))
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    return builder.config("spark.log.level", "ERROR").getOrCreate()


def running(made: Callable[[], DataFrame]) -> Callable[[int], None]:
    """Returns a competitor for `race`: it makes a DataFrame and computes all of its rows."""
    return lambda _: made().write.format("noop").mode("overwrite").save()


def race(ways: Mapping[str, Callable[[int], None]], rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """Returns the seconds of each competitor in each round.

    The order is another one in each round: with a fixed order, garbage left by one competitor could always be
    collected at the expense of the same other one.

    ways: functions of the number of the round, by name.
    warm: rounds before those that count, in which the JVM compiles and Python workers start.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-warm, rounds):
        for name in Random(number).sample(list(ways), len(ways)):
            began = perf_counter()
            ways[name](number)
            spent = perf_counter() - began
            print(f"round {number + 1}, {name}: {spent:.1f} s", file=sys.stderr)
            if number >= 0:
                seconds[name].append(spent)
    return seconds


def ratio(mine: Sequence[float], others: Sequence[float]) -> float:
    """Returns the median ratio over the rounds, so that a slow moment of a shared machine has no effect."""
    return median(ours / theirs for ours, theirs in zip(mine, others, strict=True))


@dataclass(frozen=True)
class Claim:
    """A measured figure and its bounds."""

    what: str
    figure: float
    at_most: float | None = None
    at_least: float | None = None
    besides: str = ""  # more figures to show

    @property
    def holds(self) -> bool:
        return (self.at_most is None or self.figure <= self.at_most) and self.figure >= (self.at_least or 0.0)

    @property
    def bound(self) -> str:
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "" if self.at_least is None else f"at least {self.at_least:g}"


def judged(title: str, claims: Sequence[Claim]) -> bool:
    """Prints the claims and returns whether all of them hold."""
    shown = Table(title=title, title_justify="left")
    for name in ("", "x", "bound", "", "details"):
        shown.add_column(name, justify="right" if name == "x" else "left")
    for claim in claims:
        verdict = "" if not claim.bound else "holds" if claim.holds else "[red]broken"
        shown.add_row(claim.what, f"{claim.figure:.2f}", claim.bound, verdict, claim.besides)
    Console(width=140).print(shown)
    return all(claim.holds for claim in claims)
