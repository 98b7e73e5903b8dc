"""Panes, the parts of windows: which windows contain which pane, and the states of panes on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from skewless.spark.keys import column
from skewless.spark.streaming.checkpoint import Checkpoint, read_rows, write_rows

PANE, START = "pane of window", "start of window"  # names of columns that are added to those of the user


@dataclass(frozen=True)
class Span:
    """Windows of a size, one every slide, which start at multiples of the slide; in microseconds.

    A pane is as long as the greatest common divisor of size and slide, so that a window is several whole panes. Panes
    and windows are identified by their starts.

    >>> span = Span(size=60, slide=20)
    >>> span.first(40), span.last(40), span.first_open(100)
    (0, 40, 60)
    """

    size: int
    slide: int

    @property
    def pane_size(self) -> int:
        """The length of a pane."""
        return gcd(self.size, self.slide)

    def first(self, pane: int) -> int:
        """Returns the first window that contains a pane."""
        earliest = pane + self.pane_size - self.size
        return earliest + -earliest % self.slide

    def last(self, pane: int) -> int:
        """Returns the last window that contains a pane."""
        return pane - pane % self.slide

    def first_open(self, watermark: int) -> int:
        """Returns the first window that a watermark has not completed: its end is after the watermark."""
        return (watermark - self.size) // self.slide * self.slide + self.slide

    def pane_of(self, time: Column) -> Column:
        """Returns the pane that a time is in."""
        return time - F.pmod(time, F.lit(self.pane_size))

    def windows_of(self, pane: Column) -> tuple[Column, Column]:
        """Returns the first and the last window that contain a pane."""
        earliest = pane + (self.pane_size - self.size)
        return earliest + F.pmod(-earliest, F.lit(self.slide)), pane - F.pmod(pane, F.lit(self.slide))

    def spread(self, states: DataFrame, first: Column, last: Column) -> DataFrame:
        """Repeats the states of panes for every window from the first to the last; none if last is before first."""
        starts = F.explode(F.sequence(first, last, F.lit(self.slide)))
        return states.where(first <= last).select("*", starts.alias(START)).drop(PANE)


class Panes(NamedTuple):
    """A directory of pane states: those that one batch added, or those of several batches, merged."""

    kind: str  # "panes" or "merged"
    batch: int
    first: int  # pane
    last: int


@dataclass(frozen=True)
class PaneStore:
    """States on disk in Parquet directories by batch: panes, merged panes, and complete windows ("running")."""

    session: SparkSession
    keys: Sequence[StructField]
    states: StructType
    files: Checkpoint

    def panes(self, panes: Sequence[Panes]) -> DataFrame:
        return self._read(PANE, [f"{entry.kind}/{entry.batch}" for entry in panes])

    def windows(self, batch: int) -> DataFrame:
        return self._read(START, [f"running/{batch}"])

    def write(self, states: DataFrame, kind: str, batch: int) -> None:
        write_rows(states, self.files.path(f"{kind}/{batch}"))

    def _read(self, number: str, names: list[str]) -> DataFrame:
        schema = StructType([StructField(number, LongType()), *self.keys, *self.states.fields])
        return read_rows(self.session, schema, *map(self.files.path, names))


def forget(needed: Sequence[tuple[str, int]], files: Checkpoint) -> None:
    """Deletes the directories that are not needed."""
    for kind in ("panes", "merged", "running"):
        files.forget(kind, [batch for batch in files.numbered(kind) if (kind, batch) not in needed])


def pane() -> Column:
    """Returns the column with the panes of rows or states."""
    return column(PANE)
