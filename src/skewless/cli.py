"""The `skewless` command: lists partitioners and simulates them on a stream."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from skewless import partitioners, streams
from skewless.arguments import require, whole
from skewless.arrays import Keys
from skewless.partitioner import Partitioner, Window
from skewless.partitioners import ALL, parameters, partitioner
from skewless.report import as_figure, as_records, as_table, compare

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ModuleNotFoundError as missing:
    raise SystemExit(f"the skewless command needs {missing.name}: pip install 'skewless[cli]'") from None

app = typer.Typer(
    help="Lists the partitioners of Skewless, and simulates how evenly they spread the keys of a stream.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
JSON = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    """Runs the command; bad input ends it with an error message and exit code 2, without a traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError) as error:
        Console(stderr=True).print(f"skewless: {error}", style="red", highlight=False, markup=False)
        sys.exit(2)


@app.command("list")
def list_partitioners(as_json: JSON = False) -> None:
    """List the partitioners with a summary and their parameters.

    Example: `skewless list`
    """
    if as_json:
        print(json.dumps([_described(cls) for cls in ALL], indent=2))
        return
    table = Table("partitioner", "keys", "plans", "parameters", "what it does")
    for cls in ALL:
        about = _described(cls)
        table.add_row(
            f"[bold]{cls.name}[/]",
            "split" if about["splits_keys"] else "whole",
            "ahead" if cls.plans_ahead else "-",
            ", ".join(f"{name}={default}" for name, default in about["parameters"].items()) or "-",
            about["summary"],
        )
    Console().print(table)


def _described(cls: type[Partitioner[Any, Any]]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "splits_keys": cls(1).splits_keys,
        "plans_ahead": cls.plans_ahead,
        "parameters": {name: default if default is None else str(default) for name, default in parameters(cls).items()},
        "summary": partitioners.summary(cls),
    }


@app.command()
def simulate(
    stream: Annotated[
        str,
        typer.Option(
            help="The keys to route: uniform, zipf:EXPONENT, matched:SHARE_OF_TOP_KEY, lognormal:MU,SIGMA, "
            "drifting:EXPONENT,EVERY, alternating:EXPONENT,EVERY (they change after EVERY tuples), words (of the "
            "Python standard library's source), or trace:FILE[#COLUMN] (a Parquet, CSV or text file)."
        ),
    ] = "zipf:1.0",
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 16,
    names: Annotated[
        str,
        typer.Option(
            "--partitioners",
            help="Names separated by commas, each with optional parameters: pkg,pkg:choices=5,cam:cardinality=hll.",
        ),
    ] = ",".join(cls.name for cls in ALL),
    tuples: Annotated[int, typer.Option(help="Length of the stream; words and trace may be shorter.")] = 1_000_000,
    keys: Annotated[
        int, typer.Option(help="Number of distinct keys of a synthetic stream; lognormal has its own.")
    ] = 100_000,
    sources: Annotated[int, typer.Option(help="Number of sources that route the stream.")] = 1,
    sync_every: Annotated[
        str,
        typer.Option(
            help="How often sources exchange what they have learned, and planners plan: after this number of batches, "
            "always or never."
        ),
    ] = "1",
    split: Annotated[str, typer.Option(help="How tuples are assigned to sources: uniform or by_key.")] = "uniform",
    window: Annotated[str, typer.Option(help="Measure the last SIZE[/SLIDE] tuples instead of all so far.")] = "",
    batch: Annotated[int, typer.Option(help="Tuples between two measurements.")] = 50_000,
    seed: Annotated[int, typer.Option(help="Seed of the stream and of the hash functions.")] = 0,
    as_json: JSON = False,
    plot: Annotated[Path | None, typer.Option(help="Write a plot of imbalance over time to this .html file.")] = None,
) -> None:
    """Route a stream of keys with several partitioners and rank them by balance, fragments and speed.

    Example: `skewless simulate --stream zipf:1.2 --workers 32 --partitioners hash,pkg,level`
    """
    whole("--tuples", tuples, 1)
    chosen = [(spec, _partitioner(spec, workers, seed)) for spec in names.split(",")]
    options = {
        "sources": sources,
        "sync_every": _sync_every(sync_every),
        "split": split,
        "window": _window(window) if window else None,
        "batch": batch,
    }
    require(plot is None or plot.suffix == ".html", f"--plot writes an .html file, not {plot}")
    require(plot is None or plot.absolute().parent.is_dir(), f"the directory of {plot} does not exist")
    data = _stream(stream, tuples, keys, seed)
    require(data.size > 0, f"the stream {stream} has no tuples")
    distinct, counts = np.unique(data, return_counts=True)
    title = (
        f"{stream}: {data.size:,} tuples, {distinct.size:,} keys, the hottest {counts.max() / data.size:.1%}; "
        f"{workers:,} workers, {sources} source{'s' if sources > 1 else ''}"
    )
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=data.size * len(chosen))
        runs = compare(chosen, data, lambda name, done: bar.update(task, advance=done, description=name), **options)
    if as_json:
        print(json.dumps({"stream": stream, "workers": workers, "sources": sources, "records": as_records(runs)}))
    else:
        Console().print(title, highlight=False, markup=False)
        Console().print(as_table(runs))
    if plot is not None:
        try:
            figure = as_figure(runs, title)
        except ModuleNotFoundError:
            raise ValueError("--plot needs plotly: pip install 'skewless[plot]'") from None
        figure.write_html(plot, include_plotlyjs=True)
        Console(stderr=True).print(f"wrote {plot}")


def _partitioner(spec: str, workers: int, seed: int) -> Partitioner[Any, Any]:
    """Makes a partitioner from `name:param=value:param=value`; a window is SIZE or SIZE/SLIDE."""
    name, *settings = spec.strip().split(":")
    params: dict[str, Any] = {}
    for setting in settings:
        param, equals, value = setting.partition("=")
        require(equals == "=", f"a parameter is written param=value, not {setting!r} (in {spec!r})")
        params[param] = _window(value) if param == "window" else _value(value)
    return partitioner(name, workers, seed=seed, **params)


def _value(word: str) -> int | float | bool | str:
    """Converts a parameter's value to an int, a float or a bool if it looks like one."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(word.lower(), word)


def _window(spec: str) -> Window:
    size, _, slide = spec.partition("/")
    require(size.isdigit() and (slide == "" or slide.isdigit()), f"a window is SIZE or SIZE/SLIDE, not {spec!r}")
    return Window(int(size), int(slide or 0))


def _sync_every(spec: str) -> int | None:
    if spec in ("never", "always"):
        return None if spec == "never" else 0
    require(spec.isdigit(), f"--sync-every is a number of batches, always or never, not {spec!r}")
    return int(spec)


def _stream(spec: str, tuples: int, keys: int, seed: int) -> Keys:
    """Makes or reads the stream that `--stream` names."""
    kind, _, rest = spec.partition(":")
    if kind == "trace":
        path, _, column = rest.partition("#")
        return streams.trace(path, column or None)[:tuples]
    if kind == "words" and not rest:
        return streams.words(tuples)
    try:
        numbers = [float(number) for number in rest.split(",")] if rest else []
    except ValueError:
        raise ValueError(f"a stream's parameters are numbers, not {rest!r} (in {spec!r})") from None
    match kind, numbers:
        case "uniform", []:
            return streams.uniform(tuples, keys, seed=seed)
        case "zipf", [exponent]:
            return streams.zipf(tuples, keys, exponent, seed=seed)
        case "matched", [p1]:
            return streams.matched(tuples, keys, p1, seed=seed)
        case "lognormal", [mu, sigma]:
            return streams.lognormal(tuples, mu, sigma, seed=seed)
        case "drifting", [exponent, every]:
            return streams.drifting(tuples, keys, exponent, every=int(every), seed=seed)
        case "alternating", [exponent, every]:
            return streams.alternating(tuples, keys, exponent, every=int(every), seed=seed)
    raise ValueError(
        f"there is no stream {spec!r}; there are uniform, zipf:EXPONENT, matched:SHARE, lognormal:MU,SIGMA, "
        "drifting:EXPONENT,EVERY, alternating:EXPONENT,EVERY, words and trace:FILE[#COLUMN]"
    )
