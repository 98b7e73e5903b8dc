"""The partitioners of each picture, and the stream on which all are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skewless import Keys, Partitioner, Window, partitioner, streams
from skewless.partitioners import named, parameters


@dataclass(frozen=True)
class Stream:
    """Batches of a Zipf stream whose hot keys are replaced after every `every` batches."""

    n_workers: int = 16
    exponent: float = 1.2
    n_keys: int = 100_000
    batch: int = 20_000
    n_batches: int = 40
    every: int = 10
    seed: int = 0

    def batches(self) -> list[Keys]:
        """Returns the keys of each batch, in order."""
        n = self.batch * self.n_batches
        keys = streams.drifting(n, self.n_keys, self.exponent, every=self.every * self.batch, seed=self.seed)
        return [keys[start : start + self.batch] for start in range(0, n, self.batch)]

    @property
    def changes(self) -> range:
        """Returns the batches in which new keys become hot."""
        return range(self.every, self.n_batches, self.every)


STREAM = Stream()


@dataclass(frozen=True)
class Member:
    """A partitioner and its parameters."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    alias: str = ""
    foresees: bool = False  # whether it observes the whole stream before it routes

    @property
    def key(self) -> str:
        """Returns its name in the results and in the template of the page."""
        return self.alias or self.name

    @property
    def label(self) -> str:
        """Returns its name with parameters, as shown in pictures."""
        return ", ".join([self.name, *(f"{name}={value}" for name, value in self.params.items())])

    def make(self, stream: Stream) -> Partitioner[Any, Any]:
        """Returns a new partitioner; a window, where it takes one, is a batch in ten slides."""
        windowed = "window" in parameters(named(self.name))
        window: dict[str, Any] = {"window": Window(stream.batch, stream.batch // 10)} if windowed else {}
        return partitioner(self.name, stream.n_workers, **window, **self.params)


@dataclass(frozen=True)
class Family:
    """The partitioners of one picture."""

    name: str  # of the file
    title: str
    how: str  # how it was measured, as a sentence
    members: tuple[Member, ...]
    plans: bool = False


FAMILIES = (
    Family(
        "one_worker",
        "One worker per key, without a plan",
        "A key stays on its first worker; off_greedy sees the whole stream beforehand; shuffle splits every key.",
        (
            *(Member(name) for name in ("hash", "potc", "on_greedy")),
            Member("off_greedy", foresees=True),
            Member("shuffle"),
        ),
    ),
    Family(
        "few_choices",
        "A few choices per key",
        "Each tuple is routed on arrival, by the loads since the beginning.",
        (Member("pkg"), Member("d_choices"), Member("w_choices")),
    ),
    Family(
        "cardinality",
        "Workers with few keys",
        "Each tuple is routed on arrival; a window is one batch.",
        tuple(Member(name) for name in ("cm", "am", "cam", "lm")),
    ),
    Family(
        "learners",
        "Learners",
        "Each tuple is routed on arrival; a window is one batch, in ten slides.",
        (
            Member("dagreedy"),
            Member("dalton"),
            Member("dalton", {"hot": 5, "greedy": True}, alias="greedy"),
        ),
    ),
    Family(
        "whole_plans",
        "Planners that keep keys whole",
        "A batch is routed by the table learned from earlier batches.",
        (
            *(Member(name) for name in ("kip", "scan", "redist", "readj", "mixed")),
            Member("level", {"split": False}, alias="level_whole"),
        ),
        plans=True,
    ),
    Family(
        "split_plans",
        "Planners that split keys",
        "A batch is routed by the table learned from earlier batches.",
        (Member("prompt"), Member("level"), Member("auto")),
        plans=True,
    ),
)
MEMBERS = tuple(member for family in FAMILIES for member in family.members)
