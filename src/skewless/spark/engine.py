"""The loop of a stream: one batch after the other, each from what the last one left, and learned from afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from time import perf_counter, time
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from pyspark.sql import DataFrame

from skewless import elastic
from skewless.arrays import require
from skewless.histogram import Histogram
from skewless.partitioner import Partitioner
from skewless.spark.checkpoint import Checkpoint
from skewless.spark.exact import Sourced, Sources
from skewless.spark.learn import Cooperation, Learner, Lesson, Plan
from skewless.spark.lock import Held
from skewless.spark.profile import profile
from skewless.spark.sink import emit
from skewless.table import RoutingTable

Sink: TypeAlias = Callable[[DataFrame, int], object] | str
COMMITS = 10  # that are kept, for people who look
OBSERVED = 50_000  # rows of a batch that are enough to learn from while it runs; there will be others


class Batch(NamedTuple):
    """What an operator is given."""

    df: DataFrame
    number: int
    state: dict[str, Any] | None  # that the batch before it left
    by: RoutingTable | Sourced | None  # what routes its rows; None leaves them to Spark
    files: Checkpoint
    portion: float  # of the rows, whose keys are to be counted at least; 0: no histogram of them is wanted


@dataclass(frozen=True)
class Found:
    """What became of a batch."""

    state: dict[str, Any]  # for the commit: the next batch begins with it
    output: DataFrame | None  # None: there is nothing to tell
    histogram: Histogram | None  # of the keys, if it was wanted
    record: dict[str, Any]
    left: Sources | None = None  # what sources know that routed the rows themselves


class Operator(Protocol):
    """What a stream does with each batch."""

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def left_to_spark(self) -> bool:
        """Whether hot keys do no harm, so that "auto" routes nothing."""
        ...

    def identity(self, df: DataFrame) -> dict[str, str]:
        """What must not change while there is a checkpoint."""
        ...

    def run(self, given: Batch) -> Found:
        """One batch, from the state that the one before it left."""
        ...

    def forget(self, state: dict[str, Any], files: Checkpoint) -> None:
        """Delete what nothing needs after a commit."""
        ...


@dataclass(frozen=True)
class Engine:
    """What Spark calls with each batch, in a process of its choice: all that lasts is in files.

    Batch b reads what b - 1 left and overwrites b, so that a replay changes nothing; a batch that is committed is not
    run again. The sink has been called when a batch is committed.
    """

    directory: str
    operator: Operator
    sink: Sink
    placing: Partitioner[Any, Any] | RoutingTable | None  # None: rows are left to Spark
    exact: bool  # does the partitioner route each row itself, or by its tables?
    statistics: str | float  # "last", "present", or the share of the present batch that is looked at
    interval: float | None  # seconds between batches
    limits: tuple[int, int] | None  # workers: least and most

    def __call__(self, df: DataFrame, batch: int) -> None:
        running = self._running()
        files = running.files
        if batch <= running.committed:
            return
        began = perf_counter()
        before = files.read(f"commits/{batch - 1}.json") if batch else None
        require(batch == 0 or before is not None, f"{files.place(f'commits/{batch - 1}.json')} is missing")
        plan = self._plan(running, df, batch, before)
        planned = perf_counter()
        table = None if plan is None else plan.table
        portion = 0.0
        if isinstance(table, RoutingTable) and self.statistics == "last":
            portion = min(1.0, OBSERVED / max(before["record"]["rows"], 1)) if before else 1.0
        found = self.operator.run(Batch(df, batch, before and before["state"], table, files, portion))
        worked = perf_counter()
        running.lock.check()
        if found.output is not None:
            self._emit(found.output, batch)
        emitted = perf_counter()
        scale = self._scaled(before, found, plan, emitted - began)
        record: dict[str, Any] = {
            "batch": batch,
            "at": round(time(), 3),
            **_balance(found.record.get("loads")),
            "workers": None if table is None else table.n_workers,
            "hot_keys": table.keys.size if isinstance(table, RoutingTable) else None,
            "moved": 0.0 if plan is None else plan.moved,
            "decision": "left to Spark: it combines rows before it sends them" if plan is None else plan.reason,
            "scaling": scale["reason"] if scale else "",
            "seconds": {
                "plan": round(planned - began, 4),
                "work": round(worked - planned, 4),
                "emit": round(emitted - worked, 4),
                "total": round(emitted - began, 4),
                "planning": 0.0 if plan is None else round(plan.seconds, 4),
            },
            **found.record,
        }
        files.write(f"commits/{batch}.json", {"state": found.state, "scale": scale, "record": record})
        running.committed = batch
        files.record(record)
        if running.learner is not None and plan is not None:
            longest = max(found.record.get("loads") or [0])
            running.learner.later(batch, Lesson(found.histogram, found.left, longest, worked - planned))
        self._tidy(files, found.state, batch)

    def _running(self) -> _Running:
        """What this process keeps of the query between batches."""
        known = _RUNNING.get(self.directory)
        if known is None:
            files = Checkpoint(self.directory)
            with ExitStack() as failing:
                lock = failing.enter_context(closing(files.lock()))
                committed = max(files.numbered("commits"), default=-1)
                if committed >= 0:
                    _record_again(files, committed)
                learner: Learner | Cooperation | None = None
                if isinstance(self.placing, Partitioner) and self.exact:
                    learner = Cooperation(files, self.placing)
                elif self.placing is not None:
                    learner = Learner(files, self.placing)
                failing.pop_all()  # it is ours until it is released
            known = _RUNNING[self.directory] = _Running(files, lock, learner, committed)
        return known

    def _plan(self, running: _Running, df: DataFrame, batch: int, before: dict[str, Any] | None) -> Plan | None:
        learner = running.learner
        if learner is None or self.placing is None:
            return None
        wanted = (running.files.read("rescale.json") or {}).get("n_workers") or self.placing.n_workers
        scale = before and before["scale"]
        n_workers = scale["mappers"] if scale else wanted
        if self.limits:
            n_workers = min(max(n_workers, self.limits[0]), self.limits[1])
        plan = learner.plan(batch, n_workers)
        if (
            isinstance(learner, Learner)
            and isinstance(self.placing, Partitioner)
            and (self.statistics != "last" or batch == 0)
        ):
            share = self.statistics if isinstance(self.statistics, float) else 1.0
            seen = profile(df, *self.operator.keys, sample=share)
            if seen.rows:
                plan = learner.now(batch, Lesson(seen.histogram))
        return plan

    def _scaled(
        self, before: dict[str, Any] | None, found: Found, plan: Plan | None, seconds: float
    ) -> dict[str, Any] | None:
        """How many workers the next batch should have, by Prompt's rule; None: as many as before."""
        if plan is None or self.limits is None or self.interval is None:
            return None
        n = plan.table.n_workers
        kept = before and before["scale"]
        scale = elastic.Scale(n, n)
        if kept:
            recent = tuple(elastic.Batch(**entry) for entry in kept["recent"])
            scale = elastic.Scale(**{**kept, "recent": recent, "mappers": n, "reducers": n})
        rows, keys = found.record.get("rows") or 0, found.record.get("keys") or 0
        least, most = self.limits
        rule = elastic.Rule(least=least, most=most)
        new = elastic.scaled(scale, elastic.Batch(seconds, self.interval, rows, keys), rule)
        # One stage of ours does both: where either wants another worker, it gets one.
        wanted = new.mappers if abs(new.mappers - n) >= abs(new.reducers - n) else new.reducers
        return asdict(new) | {"mappers": wanted, "reducers": wanted}

    def _emit(self, output: DataFrame, batch: int) -> None:
        if isinstance(self.sink, str):
            emit(output, self.sink, batch)
        else:
            self.sink(output, batch)

    def _tidy(self, files: Checkpoint, state: dict[str, Any], batch: int) -> None:
        self.operator.forget(state, files)
        for kind, ending, kept in _KINDS:
            files.forget(kind, [number for number in files.numbered(kind) if number <= batch - kept], ending)


@dataclass
class _Running:
    """What one process keeps of a query between two batches. All of it can be found again in files."""

    files: Checkpoint
    lock: Held
    learner: Learner | Cooperation | None
    committed: int


_KINDS = (("commits", ".json", COMMITS), ("tables", ".json", 1), ("sources", ".json", 1))
_RUNNING: dict[str, _Running] = {}


def release(directory: str) -> None:
    """Forget a query that has ended, and let others have its checkpoint."""
    known = _RUNNING.pop(directory, None)
    if known is not None:
        if known.learner is not None:
            known.learner.close()
        known.lock.close()


def _record_again(files: Checkpoint, committed: int) -> None:
    """The record of the last batch, if the query died between its commit and its record."""
    records = files.records()
    if not records or records[-1]["batch"] < committed:
        files.record(files.read(f"commits/{committed}.json")["record"])


def _balance(loads: list[int] | None) -> dict[str, Any]:
    if not loads or not sum(loads):
        return {"imbalance": None, "imbalance_ratio": None}
    load = np.array(loads)
    return {
        "imbalance": round(float(load.max() - load.mean()), 3),
        "imbalance_ratio": round(float(load.max() / load.mean()), 4),
    }
