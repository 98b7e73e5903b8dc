"""What Prompt's accumulator costs while a batch arrives, what it saves at the end, and how it affects plans.

Its peers sort at the end of the batch: either all tuples, or the keys, which a hash table counted on arrival. Runs are
interleaved; a ratio is the median over the rounds of (a time / the accumulator's time in that round).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from skewless import Keys, partitioner, streams
from skewless.ingest.accumulator import BUDGET, Accumulated, Accumulator
from skewless.metrics import imbalance
from skewless.partitioners.prompt import packed

ROUNDS, N_WORKERS = 9, 64
SIZES = ((100_000, 10_000), (1_000_000, 100_000))  # tuples, keys
BUDGETS = (1, 2, 4, 8, 16)
Counts = NDArray[np.int64]


def kinds(tuples: int, keys: int) -> dict[str, Keys]:
    """Returns Zipf streams, and one whose hot keys change four times within the batch."""
    zipf = {f"Zipf {exponent:g}": streams.zipf(tuples, keys, exponent) for exponent in (0.5, 1.0, 1.5)}
    return {**zipf, "Zipf 1, drifting": streams.drifting(tuples, keys, 1.0, every=tuples // 4)}


def accumulator(keys: Keys, budget: int = BUDGET) -> Accumulator:
    """Returns an empty accumulator for a batch of these keys."""
    n_keys = np.unique(keys).size
    return Accumulator((0, keys.size), expected_tuples=keys.size, expected_keys=n_keys, budget=budget)


def accumulated(keys: Keys, budget: int) -> Accumulated:
    """Returns the sorted list that the accumulator releases at the end of a batch of these keys."""
    a = accumulator(keys, budget)
    a.add(keys, np.arange(keys.size))
    return a.release()


class Times(NamedTuple):
    """Seconds of one round: while the batch arrives, and from its end to the sorted list."""

    accumulate: float
    tally: float
    release: float
    sort_keys: float
    sort_tuples: float


def _timed(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


def by_count(distinct: Keys, counts: Counts) -> tuple[Keys, Counts]:
    """Returns keys and counts, heaviest first."""
    order = np.argsort(-counts, kind="stable")
    return distinct[order], counts[order]


def one_round(keys: Keys, distinct: Keys, counts: Counts) -> Times:
    """Times the accumulator and its peers once.

    distinct, counts: the keys as a hash table would have counted them on arrival.
    """
    a, times, peer = accumulator(keys), np.arange(keys.size), partitioner("prompt", 1)

    return Times(
        accumulate=_timed(lambda: a.add(keys, times)),
        tally=_timed(lambda: peer.observe(keys)),
        release=_timed(a.release),
        sort_keys=_timed(lambda: by_count(distinct, counts)),
        sort_tuples=_timed(lambda: by_count(*np.unique(keys, return_counts=True))),
    )


def speed() -> Table:
    """Returns a table of times: on arrival, and from the end of the batch to the sorted list."""
    table = Table(title=f"budget {BUDGET}, median of {ROUNDS} rounds (x: times the accumulator's)")
    table.add_column("tuples / keys", style="bold")
    for name in ("stream", "accumulate\nns per tuple", "count only\nns per tuple", "release\nms after the end"):
        table.add_column(name, justify="right")
    for name in ("sort counted keys\nms after the end", "sort tuples\nms after the end", "sort tuples\nns per tuple"):
        table.add_column(name, justify="right")
    for tuples, n_keys in track(SIZES, "timing", console=Console(stderr=True), transient=True):
        for name, keys in kinds(tuples, n_keys).items():
            counted = np.unique(keys, return_counts=True)
            one_round(keys, *counted)  # compiles
            rounds = [one_round(keys, *counted) for _ in range(ROUNDS)]
            took = Times(*(median(column) for column in zip(*rounds, strict=True)))
            per_tuple = 1e9 / tuples
            table.add_row(
                f"{tuples:,} / {n_keys:,}",
                name,
                f"{per_tuple * took.accumulate:.0f}",
                f"{per_tuple * took.tally:.0f} ({median(r.tally / r.accumulate for r in rounds):.2f}x)",
                f"{1e3 * took.release:.2f}",
                f"{1e3 * took.sort_keys:.2f} ({median(r.sort_keys / r.release for r in rounds):.1f}x)",
                f"{1e3 * took.sort_tuples:.1f} ({median(r.sort_tuples / r.release for r in rounds):.0f}x)",
                f"{per_tuple * took.sort_tuples:.0f} ({median(r.sort_tuples / r.accumulate for r in rounds):.2f}x)",
            )
    return table


def heavy_sorted(counts: Counts) -> Counts:
    """Returns the counts with the heavy keys, which Prompt splits, sorted exactly and the others in list order."""
    heavy = counts * counts.size > counts.sum()
    return np.concatenate((np.sort(counts[heavy])[::-1], counts[~heavy]))


def quality() -> Table:
    """Returns a table of how the budget for updates affects the order of the list and Prompt's plan from it."""
    tuples, n_keys = SIZES[0]
    table = Table(title=f"{tuples:,} tuples, {n_keys:,} keys; Prompt's plan for {N_WORKERS} blocks")
    table.add_column("stream", style="bold")
    for name in (
        "budget",
        "updates per key",
        "disorder",
        "max - mean\ntuples",
        "max - mean\nkeys",
        "fragments\n- keys",
    ):
        table.add_column(name, justify="right")
    for name, keys in kinds(tuples, n_keys).items():
        lists = {str(budget): (batch := accumulated(keys, budget), batch.counts) for budget in BUDGETS}
        batch, counts = lists[str(BUDGET)]
        lists[f"{BUDGET}, heavy keys sorted"] = batch, heavy_sorted(counts)
        lists["an update per tuple"] = (batch := accumulated(keys, tuples), batch.counts)
        for number, (budget, (batch, counts)) in enumerate(lists.items()):
            plan = packed(counts.astype(np.float64), N_WORKERS)
            table.add_row(
                "" if number else name,
                budget,
                f"{batch.updates / batch.n_keys:.2f}",
                f"{100 * batch.disorder():.2f} %" if counts is batch.counts else "",
                f"{imbalance(np.bincount(plan.workers, plan.sizes)):.1f}",
                f"{imbalance(np.bincount(plan.workers)):.1f}",
                str(plan.workers.size - batch.n_keys),
                end_section=number == len(lists) - 1,
            )
    return table


def main() -> None:
    console = Console(width=140)
    console.print(speed())
    console.print(quality())


if __name__ == "__main__":
    main()
