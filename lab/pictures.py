"""Measures all partitioners under drift, draws load per worker and fragments, and writes docs/partitioners.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.drawing import Panel, picture
from lab.families import FAMILIES, MEMBERS, STREAM, Family, Member, Stream
from skewless import Keys, Metrics, Partitioner, RoutingTable, measure
from skewless.cooperation.protocol import exchange
from skewless.histogram import Histogram
from skewless.migration import moves

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "partitioners.md"
TEMPLATE = Path(__file__).parent / "partitioners.md"
RESULTS = Path(__file__).parent / "results" / "pictures.json"
# The first is shown; the claims must hold for all. Of the seeds 6 to 23, three broke one claim each.
SEEDS = range(6)


@dataclass(frozen=True, eq=False)
class Run:
    """The measures of each batch of a stream, in order."""

    stream: Stream
    load: NDArray[np.int64]  # [batch, worker]
    keys: NDArray[np.int64]  # [batch]: distinct keys
    fragments: NDArray[np.int64]  # [batch]
    moves: NDArray[np.float64]  # [batch]: share of tuples that the previous table would have routed differently

    @cached_property
    def relative(self) -> NDArray[np.float64]:
        """Returns loads as multiples of the mean of their batch."""
        return np.asarray(self.load / self.load.mean(axis=1, keepdims=True))

    @cached_property
    def ratios(self) -> NDArray[np.float64]:
        """Returns the imbalance ratio of each batch."""
        return np.asarray(self.relative.max(axis=1))

    @property
    def ratio(self) -> float:
        """Returns the mean imbalance ratio of all batches."""
        return float(self.ratios.mean())

    @property
    def after(self) -> float:
        """Returns the mean imbalance ratio of the batches right after a change."""
        return float(self.ratios[self.stream.changes].mean())

    @property
    def settled(self) -> float:
        """Returns the mean imbalance ratio of the batches right before a change."""
        return float(self.ratios[self.stream.every - 1 :: self.stream.every].mean())

    @property
    def splits(self) -> NDArray[np.float64]:
        """Returns the fragments per key of each batch."""
        return np.asarray(self.fragments / self.keys)

    @property
    def split(self) -> float:
        """Returns the mean of all batches of the fragments per key."""
        return float(self.splits.mean())

    @property
    def moved(self) -> float:
        """Returns a planner's mean share of tuples that a batch routes differently from the batch before."""
        return float(self.moves[1:].mean())


def run(member: Member, stream: Stream, batches: Sequence[Keys]) -> Run:
    """Routes the batches in order and measures each on its own."""
    p = member.make(stream)
    if member.foresees:
        p.observe(np.concatenate(batches))
        exchange([p])
    by_table = p.plans_ahead and not member.foresees
    measured = list(_route_by_tables(p, batches) if by_table else _route_directly(p, batches))
    return Run(
        stream=stream,
        load=np.stack([metrics.load for metrics, _ in measured]),
        keys=np.array([metrics.keys for metrics, _ in measured], np.int64),
        fragments=np.array([metrics.fragments for metrics, _ in measured], np.int64),
        moves=np.array([round(share, 6) for _, share in measured]),
    )


def _route_directly(p: Partitioner[Any, Any], batches: Sequence[Keys]) -> Iterator[tuple[Metrics, float]]:
    for keys in batches:
        yield measure(keys, p.route(keys), p.n_workers), 0.0


def _route_by_tables(p: Partitioner[Any, Any], batches: Sequence[Keys]) -> Iterator[tuple[Metrics, float]]:
    """Routes as a stream does: a batch by the table learned from earlier ones."""
    last = p.table()
    for keys in batches:
        table = p.table()
        yield measure(keys, table.route(keys), p.n_workers), moved(last, table, keys)
        last = table
        p.observe(keys)
        exchange([p])


def moved(old: RoutingTable, new: RoutingTable, keys: Keys) -> float:
    """Returns the share of these tuples that the new table routes differently."""
    distinct, counts = np.unique(keys, return_counts=True)
    return moves(old, new, Histogram(distinct, counts.astype(np.float64))).mass


def claims(runs: Mapping[str, Run]) -> dict[str, bool]:
    """Returns the claims of the page and whether they hold; all runs are of one stream, by the key of their member."""
    of = SimpleNamespace(**runs)
    stream = of.hash.stream
    bound, first = hottest(stream), stream.every - 1
    later = [change + 1 for change in stream.changes]
    whole = [run for run in runs.values() if np.array_equal(run.fragments, run.keys)]
    evenest = sorted(runs.values(), key=lambda run: run.ratio)[:2]
    ends = [of.scan.settled, of.redist.settled, of.readj.settled]
    members = {family.name: [runs[member.key] for member in family.members] for family in FAMILIES}
    return {
        "whole keys are never more even than the hottest key": all(
            bool((run.ratios > 0.9999 * bound).all()) for run in whole
        ),
        "off_greedy does not even out batches": of.off_greedy.ratio > 1.05 * bound.mean(),
        "on_greedy is as even as can be up to the first change": of.on_greedy.ratios[first] < 1.01 * bound[first]
        and of.on_greedy.after > 1.02 * bound.mean(),
        "shuffle is even": of.shuffle.ratio < 1.01,
        "pkg is not below half of the hottest key": of.pkg.settled > 0.99 * bound.mean() / 2,
        "pkg is less even after a change, and gives some workers little": of.pkg.after > 1.1 * of.pkg.settled
        and of.pkg.relative[stream.changes].min() < 0.2,
        "d_choices begins better than pkg and ends like it": of.d_choices.ratios[first] < 0.8 * of.pkg.ratios[first]
        and abs(of.d_choices.ratios[-1] / of.pkg.ratios[-1] - 1) < 0.01,
        "w_choices is nearly even again after every change": of.w_choices.settled < 1.05 < of.w_choices.after,
        "cam is nearly as even as whole keys can be": of.cam.ratio < 1.1 * bound.mean(),
        "am is less even than cam": of.am.ratio > 1.05 * of.cam.ratio,
        "cm and lm are behind pkg": min(of.cm.settled, of.lm.settled) > 1.2 * of.pkg.settled,
        "learners split few keys": all(1 < run.split < 1.02 for run in members["learners"]),
        "dalton, hot=5, greedy=True is the most even but for shuffle": evenest == [of.shuffle, of.greedy],
        "dagreedy splits least of all that split": of.dagreedy.split
        == min(run.split for run in runs.values() if run.split > 1),
        "kip and whole level are nearly as even as can be in the second batch after a change": all(
            bool((run.ratios[later] < 1.05 * bound[later]).all()) for run in (of.kip, of.level_whole)
        ),
        "scan, redist and readj end within 2 % of each other": max(ends) < 1.02 * min(ends),
        "readj moves least of the three, mixed most of all": of.readj.moved < min(of.scan.moved, of.redist.moved)
        and of.mixed.moved == max(run.moved for run in members["whole_plans"]),
        "prompt and level are nearly even in the second batch after a change": all(
            bool((run.ratios[later] < 1.2).all()) for run in (of.prompt, of.level)
        ),
        "in the first batch after a change they still keep the hottest key whole": all(
            bool((run.ratios[stream.changes] > 0.9999 * bound[stream.changes]).all()) for run in (of.prompt, of.level)
        ),
        "auto is as even as level": of.auto.ratio < 1.03 * of.level.ratio,
        "level moves less than a fifth of what prompt does": of.level.moved < 0.2 * of.prompt.moved,
    }


def hottest(stream: Stream) -> NDArray[np.float64]:
    """Returns the load of the hottest key in each batch, as a multiple of a worker's mean load."""
    counts = [int(np.unique(keys, return_counts=True)[1].max()) for keys in stream.batches()]
    return np.array(counts) * stream.n_workers / stream.batch


def draw(family: Family, runs: Mapping[str, Run]) -> str:
    """Returns the picture of a family as SVG."""
    stream = runs[family.members[0].key].stream
    caption = (
        f"Zipf {stream.exponent:g}, {stream.n_workers} workers, batches of {stream.batch:,} tuples; "
        "at \N{BLACK DOWN-POINTING TRIANGLE} other keys become hot."
    )
    panels = [Panel(m.label, runs[m.key].relative, runs[m.key].splits) for m in family.members]
    return picture(family.title, (caption, family.how), panels, stream.changes)


def page(runs: Mapping[str, Run]) -> str:
    """Returns the page: the template with its numbers, pictures and tables filled in."""
    stream = next(iter(runs.values())).stream
    return TEMPLATE.read_text().format(
        stream=stream,
        hottest=float(hottest(stream).mean()),
        others=len(SEEDS) - 1,
        pictures={
            family.name: f"![{', '.join(member.label for member in family.members)}: load per worker and fragments per "
            f"key, batch by batch](pictures/{family.name}.svg)"
            for family in FAMILIES
        },
        tables={family.name: _table(family, runs) for family in FAMILIES},
        **runs,
    )


def _table(family: Family, runs: Mapping[str, Run]) -> str:
    head = ["partitioner", "max / mean", "just after a change", "just before the next", "fragments per key"]
    head += ["moved per batch"] if family.plans else []
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    for member in family.members:
        run = runs[member.key]
        row = [f"`{member.label}`", *(f"{value:.2f}" for value in (run.ratio, run.after, run.settled))]
        row += [f"{run.split:.3f}"] + ([f"{run.moved:.1%}"] if family.plans else [])
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def files(runs: Mapping[str, Run]) -> dict[Path, str]:
    """Returns the path and content of every file in docs that this command writes."""
    drawings = {PAGE.parent / "pictures" / f"{family.name}.svg": draw(family, runs) for family in FAMILIES}
    return {PAGE: page(runs), **drawings}


def save(runs: Mapping[str, Run]) -> None:
    """Writes the results, one line for each partitioner."""
    RESULTS.parent.mkdir(exist_ok=True)
    lines = []
    for key, run in runs.items():
        arrays = {name: getattr(run, name).tolist() for name in ("load", "keys", "fragments", "moves")}
        lines.append(f"{json.dumps(key)}: {json.dumps(arrays, separators=(',', ':'))}")
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def load() -> dict[str, Run]:
    """Returns the results that `save` wrote."""
    return {
        key: Run(STREAM, **{name: np.array(values) for name, values in arrays.items()})
        for key, arrays in json.loads(RESULTS.read_text()).items()
    }


def main() -> None:
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ModuleNotFoundError as missing:
        sys.exit(f"the pictures need {missing.name}: run make pictures, or pip install --editable '.[dev]'")
    console = Console(stderr=True)
    with Progress(*Progress.get_default_columns(), console=console, transient=True) as progress:
        task = progress.add_task("", total=len(SEEDS) * len(MEMBERS))
        broken: dict[str, list[int]] = {}
        for stream in (replace(STREAM, seed=seed) for seed in SEEDS):
            batches, runs = stream.batches(), dict[str, Run]()
            for member in MEMBERS:
                progress.update(task, description=f"seed {stream.seed}: {member.label}")
                result = runs[member.key] = run(member, stream, batches)
                if stream == STREAM:
                    shown = f"max / mean {result.ratio:.2f}   fragments per key {result.split:.3f}"
                    console.print(f"{member.label:28} {shown}")
                progress.advance(task)
            if stream == STREAM:
                write(runs)
            for claim, holds in claims(runs).items():
                broken.setdefault(claim, []).extend([] if holds else [stream.seed])
    for claim, seeds in broken.items():
        print(f"FAILS: {claim}, with seeds {', '.join(map(str, seeds))}" if seeds else f"holds: {claim}")
    sys.exit(1 if any(broken.values()) else 0)


def write(runs: Mapping[str, Run]) -> None:
    """Writes the results and the docs."""
    save(runs)
    for path, content in files(runs).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    print(f"wrote {PAGE.relative_to(ROOT)} and {len(FAMILIES)} pictures")


if __name__ == "__main__":
    main()
