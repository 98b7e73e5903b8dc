"""How long planners take for a plan, compared with numpy's sort of the same counts.

A whole plan is what happens between two batches: merge the counts of all sources, plan, and adopt. An update is the
plan alone, from a sorted histogram.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from skewless import partitioner, streams
from skewless.histogram import Histogram
from skewless.partitioners import ALL
from skewless.planning.planner import Planner
from skewless.table import RoutingTable

ROUNDS = 5
SIZES = ((100_000, 64), (100_000, 1000), (1_000_000, 64))  # distinct keys, workers
UPDATE = 50  # bound of kip's update of 2000 hot keys over 1000 workers, as a multiple of numpy's sort
SECONDS = 1.0  # bound of level's whole plan for a million distinct keys


def seconds(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began


def timed(n_keys: int, n_workers: int) -> dict[str, tuple[float, float, float]]:
    """Returns, by name, the medians of: seconds of a whole plan, seconds of an update, update over numpy's sort."""
    counts = np.sort(np.random.default_rng(0).zipf(1.5, n_keys).clip(1, n_keys).astype(np.float64))[::-1]
    keys = streams.as_keys(np.arange(n_keys))
    histogram, shuffled = Histogram(keys, counts), np.random.default_rng(1).permutation(counts)
    stream = np.concatenate((keys, keys[streams.zipf(n_keys, n_keys, 1.0).astype(np.int64)]))
    planners = [p for p in (partitioner(cls.name, n_workers) for cls in ALL) if isinstance(p, Planner)]
    times: dict[str, list[tuple[float, float, float]]] = {p.name: [] for p in planners}
    for p in planners:
        p.observe(stream)
        p.plan(histogram, RoutingTable.hashed(n_workers))
    ready = {p.name: p.snapshot() for p in planners}
    for _ in range(ROUNDS):
        for p in planners:
            p.restore(ready[p.name])
            update = seconds(partial(p.plan, histogram, RoutingTable.hashed(n_workers)))
            whole = seconds(partial(_planned, p, ready[p.name]))
            times[p.name].append((whole, update, update / seconds(partial(np.sort, shuffled))))
    return {name: _medians(rounds) for name, rounds in times.items()}


def _medians(rounds: list[tuple[float, float, float]]) -> tuple[float, float, float]:
    whole, update, ratio = (median(part) for part in zip(*rounds, strict=True))
    return whole, update, ratio


def _planned(p: Planner, snapshot: Any) -> None:
    p.adopt(p.merge([snapshot]))


def main() -> None:
    results = {size: timed(*size) for size in track(SIZES, "planning", console=Console(stderr=True), transient=True)}
    table = Table(title=f"ms of a whole plan / an update (x numpy's sort); medians of {ROUNDS} rounds")
    table.add_column("planner", style="bold")
    for n_keys, n_workers in SIZES:
        table.add_column(f"{n_keys:,} keys\nn = {n_workers:,}", justify="right")
    for name in results[SIZES[0]]:
        cells = [results[size][name] for size in SIZES]
        table.add_row(name, *(f"{1e3 * plan:.0f} / {1e3 * update:.1f} ({times:.1f}x)" for plan, update, times in cells))
    Console(width=120).print(table)
    update, plan = results[100_000, 1000]["kip"][2], results[1_000_000, 64]["level"][0]
    print(f"kip's update for 2,000 hot keys and 1,000 workers: {update:.1f} x numpy's sort (at most {UPDATE} x)")
    print(f"level's plan for 1,000,000 distinct keys: {plan:.2f} s (at most {SECONDS:g} s)")
    sys.exit(0 if update <= UPDATE and plan <= SECONDS else 1)


if __name__ == "__main__":
    main()
