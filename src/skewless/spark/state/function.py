"""A user's function of a key's rows and state, and the tasks that call it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from skewless.spark.schema import arrow_schema, rows_schema
from skewless.spark.state.group_state import BatchTime, Timeout
from skewless.spark.state.processor import Processing
from skewless.spark.state.task import Columns, Function, FunctionWithSetup, Task
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.rows import StreamKey
from skewless.store import Manifest, StateStore
from skewless.table import RoutingTable


@dataclass(frozen=True, kw_only=True)
class TaskInput:
    """The rows of a batch, and the state and settings of the tasks that handle them."""

    df: DataFrame  # the rows before they were routed
    key: StreamKey
    position: str  # the name of the column with the positions of keys
    tasks: int  # their number
    store: StateStore
    manifest: Manifest
    table: RoutingTable
    version: int  # of the state after the batch
    files: Checkpoint


@dataclass(frozen=True, kw_only=True)
class KeyFunction:
    """A function of a key, its rows and its state."""

    call: Function | FunctionWithSetup
    output: StructType
    state: StructType
    timeout: Timeout = "NoTimeout"
    in_pandas: bool = False
    timed: bool = False  # do rows have a time?

    @property
    def is_processor(self) -> bool:
        return isinstance(self.call, Processing)

    def for_initial_state(self) -> KeyFunction:
        """Returns the processor as a function of the rows of the initial state."""
        assert isinstance(self.call, Processing)
        return replace(self, call=replace(self.call, is_initial=True))

    def task(self, given: TaskInput, now: int, watermark: int) -> Task:
        """Returns the callable that Spark runs on the routed rows.

        now, watermark: the times of the batch, in milliseconds.
        """
        columns = Columns(
            keys=given.key.columns,
            position=given.position,
            rows=rows_schema(given.df.drop(*given.key.added)),
            output=arrow_schema(self.output),
            hidden=given.key.added,
        )
        return Task(
            function=self.call,
            in_pandas=self.in_pandas,
            columns=columns,
            store=given.store,
            manifest=given.manifest,
            table=given.table,
            version=given.version,
            clock=BatchTime(
                now=now,
                watermark=watermark,
                timeout=self.timeout,
                timed=self.timed,
                width=len(self.state),
                timers=self.is_processor,
            ),
            output_directory=given.files.path(f"output/{given.version}"),
            hot_copies=f"skewless-{given.manifest.name}",
            n_tasks=given.tasks,
        )
