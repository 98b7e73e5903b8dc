"""The contract between the streaming engine and an operator: windows, interval joins and keyed state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pyspark.sql import DataFrame

from skewless.histogram import Histogram
from skewless.spark.exact import Sourced, Sources
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.table import RoutingTable


class OperatorState(Protocol):
    """What an operator carries from one batch to the next; small, since it is part of every commit."""

    def to_json(self) -> dict[str, Any]: ...


S = TypeVar("S", bound=OperatorState)


@dataclass(frozen=True, kw_only=True)
class Batch(Generic[S]):
    """A batch of rows, and what an operator needs to process it."""

    df: DataFrame
    number: int
    state: S | None  # after the previous batch; None in the first
    router: RoutingTable | Sourced | None  # None: Spark distributes the rows
    files: Checkpoint
    background: Background[Any]  # for a job that outlasts the batch
    portion: float = 0.0  # the least share of rows to count keys of, for planning; 0: no histogram is needed

    @property
    def table(self) -> RoutingTable:
        """The routing table, for operators that need one."""
        if not isinstance(self.router, RoutingTable):
            raise ValueError("keyed state needs a routing table: it is kept where the table says")
        return self.router


@dataclass(frozen=True, kw_only=True)
class BatchResult(Generic[S]):
    """What an operator made of a batch."""

    state: S  # is committed; the next batch begins with it
    output: DataFrame | None  # None: there are no rows for the sink
    record: dict[str, Any]
    histogram: Histogram | None = None  # of the keys, if it was asked for
    sources: Sources | None = None  # what sources have learned, where they routed the rows themselves
    exact: bool = True  # False: the record may count rows of failed task attempts, too


class Operator(Protocol[S]):
    """What a stream does with each batch. Over Connect it is pickled, so whatever must last is in files."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the key's columns in the rows."""
        ...

    def is_routed(self, asked: bool) -> bool:
        """Returns whether the engine routes rows to workers.

        asked: whether the user names a partitioner or a number of workers.
        """
        ...

    def identity(self, df: DataFrame) -> dict[str, str]:
        """Returns the properties that must not change while a checkpoint is in use."""
        ...

    def restored(self, state: dict[str, Any]) -> S:
        """Restores the state from the JSON in a commit."""
        ...

    def run(self, batch: Batch[S]) -> BatchResult[S]:
        """Processes a batch from the state after the previous one. A replay of a batch returns the same."""
        ...

    def forget(self, state: S, files: Checkpoint, background: Background[Any]) -> None:
        """Deletes the files that nothing needs after a commit."""
        ...
