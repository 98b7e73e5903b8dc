"""Compares simulations: as a table for the terminal, records for JSON and a figure for the browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from skewless.arrays import Keys
from skewless.cooperation.protocol import exchange
from skewless.partitioner import Partitioner
from skewless.simulate import Record, simulate

if TYPE_CHECKING:
    from plotly.graph_objects import Figure
    from rich.table import Table


@dataclass(frozen=True, eq=False)
class Run:
    """The records of one partitioner on one stream."""

    name: str
    plans_ahead: bool
    records: tuple[Record, ...]

    @property
    def last(self) -> Record:
        """The record of the whole stream, or of its last window."""
        return self.records[-1]

    @property
    def ns_per_tuple(self) -> float:
        """The median of the batches, because other processes slow down some of them."""
        return median(record.ns_per_tuple for record in self.records)


def compare(
    partitioners: Sequence[tuple[str, Partitioner[Any, Any]]],
    keys: Keys,
    progress: Callable[[str, int], None],
    **options: Any,
) -> list[Run]:
    """Simulates each partitioner on the same keys; returns the runs by imbalance, then fragments, then speed.

    partitioners: pairs of a name to show and a partitioner.
    progress: called with the name and the number of tuples routed since the last call.
    options: those of `simulate`.
    """
    runs = []
    for name, partitioner in partitioners:
        progress(name, 0)
        _compile(partitioner, keys)
        records: list[Record] = []
        for record in simulate(partitioner, keys, **options):
            progress(name, record.tuples - (records[-1].tuples if records else 0))
            records.append(record)
        runs.append(Run(name, partitioner.plans_ahead, tuple(records)))
    return sorted(runs, key=lambda run: (run.last.imbalance, run.last.fragments, run.ns_per_tuple))


def _compile(partitioner: Partitioner[Any, Any], keys: Keys) -> None:
    """Compiles the kernels of routing, planning and growing before they are timed."""
    spare = deepcopy(partitioner)
    spare.observe(keys[:1000])
    exchange([spare])
    spare.route(keys[:1000], np.arange(keys[:1000].size, dtype=np.int64))


def as_table(runs: Sequence[Run]) -> Table:
    """Returns the last record of each run as a table for the terminal.

    runs: what `compare` returned.
    """
    from rich.table import Table

    caption = "Best balance first. 1.00 fragments per key means that no key is split."
    if any(run.plans_ahead for run in runs):
        caption += "\nPlanners make a new plan in every batch, so their keys move between workers."
    table = Table(caption=caption, caption_justify="left")
    table.add_column("partitioner", style="bold")
    for column in ("imbalance", "max / mean", "fragments", "per key", "ns per tuple"):
        table.add_column(column, justify="right")
    for run in runs:
        last = run.last
        table.add_row(
            run.name,
            f"{last.imbalance:,.1f}",
            f"{last.imbalance_ratio:.3f}",
            f"{last.fragments:,}",
            f"{last.key_split_ratio:.2f}",
            f"{run.ns_per_tuple:.1f}",
        )
    return table


def as_records(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns a dict of plain numbers and lists for each record.

    runs: what `compare` returned.
    """
    return [
        {"partitioner": run.name, **asdict(record), "load": record.load.tolist()}
        for run in runs
        for record in run.records
    ]


def as_figure(runs: Sequence[Run], title: str) -> Figure:
    """Draws imbalance over time, as figure 3 of the PKG paper does, beside fragments per key.

    runs: what `compare` returned. title: the heading of the figure.
    """
    from plotly.colors import qualitative
    from plotly.subplots import make_subplots

    titles = ("Imbalance: (max - mean) / tuples", "Fragments per key")
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.09, subplot_titles=titles)
    colors = qualitative.Dark24
    for number, run in enumerate(runs):
        at = [record.tuples for record in run.records]
        style = {"color": colors[number % len(colors)], "width": 2}
        # A logarithmic axis has no 0: show perfect balance as an imbalance of half a tuple.
        imbalance = [max(record.imbalance, 0.5) / record.load.sum() for record in run.records]
        figure.add_scatter(x=at, y=imbalance, name=run.name, legendgroup=run.name, line=style, row=1, col=1)
        split = [record.key_split_ratio for record in run.records]
        figure.add_scatter(
            x=at, y=split, name=run.name, legendgroup=run.name, showlegend=False, line=style, row=1, col=2
        )
    figure.update_xaxes(title_text="tuples")
    figure.update_yaxes(type="log", exponentformat="power", dtick=1, row=1, col=1)
    figure.update_layout(title=title, template="plotly_white", hovermode="x unified", font_size=14)
    return figure
