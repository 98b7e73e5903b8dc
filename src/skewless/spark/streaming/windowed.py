"""The rows of a stream by key and window: `sl.stream(...).window(...).agg(...)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from skewless.arguments import require
from skewless.spark.streaming.job import Job
from skewless.spark.streaming.panes import Span
from skewless.spark.streaming.rows import KeyedRows
from skewless.spark.streaming.times import duration
from skewless.spark.streaming.windows import Windows
from skewless.spark.verbs.aggregate import Aggregate, ArrowAggregate
from skewless.spark.verbs.fold import fold_of

SLIDES = 4  # with this many panes or more, updating the previous window is cheaper than merging all panes


@dataclass(frozen=True)
class Windowed:
    """Rows of a stream by key and window; `agg` says what to compute for each."""

    rows: KeyedRows
    span: Span

    def agg(
        self, *in_arrow: ArrowAggregate, mode: Literal["append", "update"] = "append", **aggregates: Aggregate
    ) -> Job:
        """Computes one row for each window and key: `window`, the columns of the key, then the aggregates.

        in_arrow: at most one `sl.ArrowAggregate`, instead of named aggregates.
        mode: "append" emits a window once, when it is complete; "update" emits the windows that a batch has changed.
        aggregates: such as `n=sl.count(), total=sl.sum("amount")`; the names become columns.

        >>> clicks = sl.stream(events, "user", time="ts", watermark="10 seconds")  # doctest: +SKIP
        >>> job = clicks.window("1 minute", "10 seconds").agg(n=sl.count())  # doctest: +SKIP
        """
        require(mode in ("append", "update"), f'mode is "append" or "update", not {mode!r}')
        rows = self.rows
        taken = "window" in (*rows.keys, *rows.key.shown, *aggregates)
        require(not taken, "window is the name of a column of the result: rename the key or aggregate of this name")
        fold = fold_of(tuple({*rows.keys, *rows.key.shown}), in_arrow, aggregates)
        panes = self.span.size // self.span.pane_size
        incremental = mode == "append" and panes >= SLIDES and fold.invertible(fold.schema(rows.df))
        assert rows.time is not None
        windows = Windows(
            key=rows.key,
            time=rows.time,
            span=self.span,
            fold=fold.counted() if incremental else fold,
            mode=mode,
            incremental=incremental,
        )
        return Job(rows, windows, split=True)


def windowed(rows: KeyedRows, size: str, slide: str | None) -> Windowed:
    """Checks and resolves the parameters of `Stream.window`."""
    require(rows.time is not None, 'windows need the time of rows: sl.stream(..., time="ts")')
    length = duration("a window's size", size)
    step = length if slide is None else duration("a window's slide", slide)
    require(length > 0, f"a window is longer than 0, not {size}")
    require(0 < step <= length, f"a slide is more than 0 and at most the size {size}, not {slide}")
    return Windowed(rows, Span(length, step))
