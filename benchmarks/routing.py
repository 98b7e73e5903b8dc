"""How fast partitioners route, as ratios to our own hash in the same run, with bounds.

Every round times each partitioner once, for each number of workers, on the same tuples. A ratio is the median over the
rounds of (its time / hash's time in that round), so that a slow moment of a shared machine has no effect.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from skewless import Keys, Partitioner, Window, partitioner, simulate, streams
from skewless.cooperation.protocol import exchange
from skewless.partitioners import ALL

N_KEYS, TUPLES, ROUNDS = 100_000, 1_000_000, 7
EXPONENTS, N_WORKERS = (0.0, 1.0, 1.5), (16, 64, 1024)
BOUNDS = {  # at n = 64
    "pkg": 8,
    "potc": 12,
    "am": 12,
    "cam": 12,
    "cm": 30,
    "lm": 30,
    "d_choices": 25,
    "dagreedy": 50,
    "dalton windowed": 30,
}
FLAT = {"pkg": 1.5, "cam": 1.5}  # the time at n = 1024 over that at n = 16
EXTRA: tuple[tuple[str, dict[str, Any]], ...] = (
    ("cm", {"cardinality": "hll"}),
    ("am", {"cardinality": "hll"}),
    ("pkg", {"choices": 5}),
    ("dalton", {"window": Window(60_000, 1000)}),
    ("dalton", {"window": Window(60_000, 1000), "hot": 5, "greedy": True}),
)


def _shown(param: tuple[str, Any]) -> str:
    name, value = param
    return "windowed" if isinstance(value, Window) else name if value is True else str(value)


def ready(n_workers: int, keys: Keys) -> dict[str, Partitioner[Any, Any]]:
    """Returns all partitioners, compiled and after their first batch (tables grown, plans made)."""
    contenders = {cls.name: partitioner(cls.name, n_workers) for cls in ALL}
    for name, params in EXTRA:
        label = f"{name} {' '.join(_shown(param) for param in params.items())}"
        contenders[label] = partitioner(name, n_workers, **params)
    for p in contenders.values():
        if p.plans_ahead:
            p.observe(keys)
            exchange([p])
        p.route(keys)
    return contenders


def timed(keys: Keys) -> dict[tuple[str, int], list[float]]:
    """Returns the seconds of each round, by name and number of workers; runs are interleaved."""
    partitioners = {(name, n): p for n in N_WORKERS for name, p in ready(n, keys).items()}
    seconds: dict[tuple[str, int], list[float]] = {contender: [] for contender in partitioners}
    for _ in range(ROUNDS):
        for contender, p in partitioners.items():
            began = perf_counter()
            p.route(keys)
            seconds[contender].append(perf_counter() - began)
    return seconds


def ratio(seconds: list[float], others: list[float]) -> float:
    return median(mine / other for mine, other in zip(seconds, others, strict=True))


def routing() -> bool:
    """Prints the table and returns whether all bounds hold."""
    times_by_exponent = {
        exponent: timed(streams.zipf(TUPLES, N_KEYS, exponent))
        for exponent in track(EXPONENTS, "timing", console=Console(stderr=True), transient=True)
    }
    table = Table(title=f"ns per tuple (x hash); {N_KEYS:,} keys, {TUPLES:,} tuples, median of {ROUNDS} rounds")
    table.add_column("partitioner", style="bold")
    for exponent in EXPONENTS:
        for n in N_WORKERS:
            table.add_column(f"Zipf {exponent:g}\nn = {n}", justify="right")
    table.add_column("bound at\nn = 64", justify="right")
    broken = []
    for name in dict.fromkeys(name for name, _ in times_by_exponent[EXPONENTS[0]]):
        cells, worst = [], 0.0
        for exponent in EXPONENTS:
            for n in N_WORKERS:
                mine = times_by_exponent[exponent][name, n]
                times = ratio(mine, times_by_exponent[exponent]["hash", n])
                worst = max(worst, times if n == 64 else 0.0)
                cells.append(f"{1e9 * median(mine) / TUPLES:.1f}\n({times:.1f}x)")
        if name in BOUNDS and worst > BOUNDS[name]:
            broken.append(f"{name} takes {worst:.1f} x hash at n = 64, more than {BOUNDS[name]} x")
        table.add_row(name, *cells, f"{BOUNDS[name]}x" if name in BOUNDS else "")
    Console(width=140).print(table)
    for name, bound in FLAT.items():
        for exponent in EXPONENTS:
            growth = ratio(times_by_exponent[exponent][name, 1024], times_by_exponent[exponent][name, 16])
            print(f"{name} at n = 1024 over n = 16, Zipf {exponent:g}: {growth:.2f} x (at most {bound} x)")
            if growth > bound:
                broken.append(f"{name} grows by {growth:.2f} x from 16 to 1024 workers, more than {bound} x")
    print("\n".join(broken) if broken else "all bounds hold")
    return not broken


def a_billion_tuples() -> None:
    """Routes 10^9 tuples over 10^4 workers with pkg, in pieces, to show that memory does not grow."""
    total, piece = 10**9, 5_000_000

    def pieces() -> Iterator[Keys]:
        for start in track(range(0, total, piece), "10^9 tuples", console=Console(stderr=True), transient=True):
            yield streams.zipf(piece, N_KEYS, 1.0, start=start)

    began = perf_counter()
    memory = []
    for record in simulate(partitioner("pkg", 10_000), pieces(), cardinality="hll", batch=piece):
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        last = record
    print(
        f"{last.tuples:,} tuples over 10,000 workers with pkg: {perf_counter() - began:.0f} s, "
        f"max / mean {last.imbalance_ratio:.2f}, about {last.fragments:,} fragments; "
        f"peak memory {memory[9]:.0f} MB after 5 %, {memory[-1]:.0f} MB at the end"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--long", action="store_true", help="also route 10^9 tuples over 10^4 workers (minutes)")
    long = parser.parse_args().long
    kept = routing()
    if long:
        a_billion_tuples()
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
