"""Measures and draws how the gain over plain Spark depends on skew, workers and cost per row.

A grouped Python function in which each row waits, timed from the call of the verb to the last row: with plain Spark
(AQE on, small partitions not merged), with whole keys, and as an aggregate whose hot keys are split.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

import skewless.spark as sl
from benchmarks.spark import race, session
from benchmarks.spark_groups import FEW_KEYS, MERGING, ROWS, SCHEMA, aggregate, keyed, waiting
from lab.drawing import FAINT, FONT, GREY, INK, text
from skewless import streams

ROUNDS = 3
ROOT = Path(__file__).parent.parent
RESULTS, PICTURE = ROOT / "lab" / "results" / "spark.json", ROOT / "docs" / "pictures" / "spark.svg"
PAGE, TEMPLATE = ROOT / "docs" / "spark.md", Path(__file__).with_suffix(".md")
WIDTH, HEIGHT, TOP, BOTTOM, LEFT, GAP = 1200, 480, 150, 400, 70, 60


class Point(NamedTuple):
    """One setting; the defaults are the values of what is not varied."""

    exponent: float = 1.5
    workers: int = 16
    cost: float = 3e-3  # seconds per row


SERIES: dict[str, list[Point]] = {
    "skew (exponent of Zipf)": [Point(exponent=exponent) for exponent in (0.6, 1.0, 1.5, 2.0)],
    "workers": [Point(workers=workers) for workers in (4, 8, 16, 32)],
    "milliseconds a row": [Point(cost=cost) for cost in (0.1e-3, 0.5e-3, 3e-3, 6e-3)],
}
SHOWN: dict[str, Callable[[Point], float]] = {
    "skew (exponent of Zipf)": lambda point: point.exponent,
    "workers": lambda point: point.workers,
    "milliseconds a row": lambda point: 1e3 * point.cost,
}
WAYS = {"plain": ("plain Spark", GREY), "whole": ("whole keys", "#2d70ad"), "split": ("split keys", "#c94a0c")}


def measured(spark: SparkSession, point: Point) -> dict[str, float]:
    """Returns the median seconds of each way."""
    df = keyed(spark, streams.zipf(ROWS, FEW_KEYS, point.exponent), width=10)
    spark.conf.set("spark.sql.shuffle.partitions", str(point.workers))
    work = waiting(point.cost)
    ways: dict[str, Callable[[int], Any]] = {
        "plain": lambda _: df.groupBy("k").applyInArrow(work, SCHEMA).toPandas(),
        "whole": lambda _: sl.group_by(df, "k", n_workers=point.workers).applyInArrow(work, SCHEMA).toPandas(),
        "split": lambda _: sl.group_by(df, "k", n_workers=point.workers).agg(aggregate(point.cost)).toPandas(),
    }
    times = race(ways, ROUNDS, warm=0)
    df.unpersist()
    return {name: round(median(spent), 2) for name, spent in times.items()}


def measure() -> None:
    """Measures all points and writes the results."""
    spark = session(max(point.workers for points in SERIES.values() for point in points))
    spark.conf.set(MERGING, "false")
    measured(spark, Point(cost=0.0))  # Python workers start, the JVM compiles
    results: dict[Point, dict[str, float]] = {}
    for points in SERIES.values():
        for point in points:
            results[point] = results.get(point) or measured(spark, point)
            print(point, results[point], flush=True)
    spark.stop()
    series = {name: [point._asdict() | results[point] for point in points] for name, points in SERIES.items()}
    RESULTS.write_text(
        json.dumps({"rows": ROWS, "keys": FEW_KEYS, "rounds": ROUNDS, "series": series}, indent=1) + "\n"
    )


def drawn(results: dict[str, Any]) -> str:
    """Returns an SVG of the seconds by each of the three parameters, on logarithmic scales."""
    most = max(value[way] for values in results["series"].values() for value in values for way in WAYS)
    least = min(value[way] for values in results["series"].values() for value in values for way in WAYS)
    ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if least / 2 < tick < most * 2]
    width = (WIDTH - LEFT - 30 - 2 * GAP) / 3

    def height(seconds: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * log(seconds / ticks[0]) / log(ticks[-1] / ticks[0])

    title = "Skewless against plain Spark, by skew, workers and cost per row"
    rows, keys, rounds = results["rows"], results["keys"], results["rounds"]
    captions = (
        f"Seconds of grouped Python work over {rows:,} rows with {keys:,} keys; a row is a wait; "
        f"{'one run each' if rounds == 1 else f'median of {rounds} runs'}.",
        "Where it is not varied: Zipf 1.5, 16 workers, 3 ms a row. Both scales are logarithmic.",
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" font-family="{FONT}" font-size="15" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        text(24, 34, title, size=21, bold=True),
        *(text(24, 62 + 22 * number, caption, fill=GREY) for number, caption in enumerate(captions)),
    ]
    for number, (name, values) in enumerate(results["series"].items()):
        left = LEFT + number * (width + GAP)
        xs = [SHOWN[name](Point(value["exponent"], value["workers"], value["cost"])) for value in values]
        parts += _panel(name, xs, values, (left, width), ticks, height)
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    name: str,
    parameters: Sequence[float],
    values: Sequence[dict[str, float]],
    across: tuple[float, float],
    ticks: Sequence[float],
    height: Callable[[float], float],
) -> Iterator[str]:
    left, width = across
    yield text(left, TOP - 22, name, size=16, bold=True)
    for tick in ticks:
        yield f'<path d="M{left:.1f} {height(tick):.1f}h{width:.1f}" stroke="{FAINT}"/>'
        yield text(left - 8, height(tick) + 5, f"{tick:g} s", anchor="end", fill=GREY)
    xs = [
        left + 14 + (width - 110) * log(value / parameters[0]) / log(parameters[-1] / parameters[0])
        for value in parameters
    ]
    for x, parameter in zip(xs, parameters, strict=True):
        yield text(x, BOTTOM + 26, f"{parameter:g}", anchor="middle", fill=GREY)
    ends = _apart({way: height(values[-1][way]) for way in WAYS})
    for way, (label, colour) in WAYS.items():
        points = " ".join(f"{x:.1f},{height(value[way]):.1f}" for x, value in zip(xs, values, strict=True))
        yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        for x, value in zip(xs, values, strict=True):
            yield f'<circle cx="{x:.1f}" cy="{height(value[way]):.1f}" r="3.5" fill="{colour}"/>'
        yield text(xs[-1] + 9, ends[way] + 5, f"{label}", size=13, fill=colour)


def _apart(heights: dict[str, float], least: float = 16.0) -> dict[str, float]:
    """Returns heights close to these at which labels do not overlap."""
    apart: dict[str, float] = {}
    for name in sorted(heights, key=lambda way: heights[way]):
        apart[name] = max([heights[name], *(other + least for other in apart.values())])
    return apart


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the results of the last measurement again")
    if not parser.parse_args().draw:
        measure()
    PICTURE.write_text(drawn(json.loads(RESULTS.read_text())))
    PAGE.write_text(TEMPLATE.read_text())


if __name__ == "__main__":
    main()
