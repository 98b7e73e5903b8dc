"""Simulations are ranked, and shown as a table, as records and as a figure."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from rich.console import Console

from skewless import partitioner, streams
from skewless.report import Run, as_figure, as_records, as_table, compare

KEYS = streams.zipf(4000, 100, 2.0)


def runs(*names: str) -> tuple[list[Run], list[tuple[str, int]]]:
    progress: list[tuple[str, int]] = []
    ways = [(name.upper(), partitioner(name, 4)) for name in names]
    return compare(ways, KEYS, lambda name, tuples: progress.append((name, tuples)), batch=1000), progress


def test_the_best_balance_comes_first_and_progress_adds_up() -> None:
    found, progress = runs("hash", "shuffle", "pkg")
    assert [run.name for run in found] == ["SHUFFLE", "PKG", "HASH"]
    imbalances = [run.last.imbalance for run in found]
    assert imbalances == sorted(imbalances)
    assert progress == [(name, n) for name in ("HASH", "SHUFFLE", "PKG") for n in (0, 1000, 1000, 1000, 1000)]
    assert all(len(run.records) == 4 for run in found)
    assert all(min(r.ns_per_tuple for r in run.records) <= run.ns_per_tuple for run in found)


def test_records_are_plain_numbers() -> None:
    found, _ = runs("pkg")
    records = json.loads(json.dumps(as_records(found)))
    assert [record["tuples"] for record in records] == [1000, 2000, 3000, 4000]
    assert [sum(record["load"]) for record in records] == [1000, 2000, 3000, 4000]
    assert {record["partitioner"] for record in records} == {"PKG"}


@pytest.mark.parametrize("names", [("pkg",), ("pkg", "level")])
def test_the_table_says_if_plans_move_keys(names: tuple[str, ...]) -> None:
    found, _ = runs(*names)
    console = Console(file=StringIO(), width=120)
    console.print(as_table(found))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert all(f"{run.last.fragments:,}" in shown and f"{run.last.imbalance_ratio:.3f}" in shown for run in found)
    assert ("so their keys move between workers" in shown) == ("level" in names)


def test_the_figure_has_imbalance_and_fragments_of_each_run() -> None:
    found, _ = runs("shuffle", "pkg")
    figure = as_figure(found, "a title")
    assert figure.layout.title.text == "a title"
    assert [line.name for line in figure.data] == ["SHUFFLE", "SHUFFLE", "PKG", "PKG"]
    for imbalance, fragments, run in zip(figure.data[::2], figure.data[1::2], found, strict=True):
        assert list(imbalance.x) == [record.tuples for record in run.records]
        assert min(imbalance.y) > 0  # the axis is logarithmic
        assert list(fragments.y) == [record.key_split_ratio for record in run.records]
