"""The loop of a stream: plan, run, emit, commit and learn, batch after batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import RLock, get_ident
from time import perf_counter, time
from typing import Any, TypeAlias

import numpy as np
from pyspark.sql import DataFrame

from skewless import elastic
from skewless.spark.profile import profile
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.commit import Commit, read_commit
from skewless.spark.streaming.learner import Lesson, Plan
from skewless.spark.streaming.operator import Batch, BatchResult, Operator
from skewless.spark.streaming.running import RunningQuery, StreamRouting
from skewless.spark.streaming.scaling import Scaling
from skewless.spark.streaming.sink import emit
from skewless.table import RoutingTable

Sink: TypeAlias = Callable[[DataFrame, int], object] | str
COMMITS = 10  # how many are kept, for `read_state` and for debugging
OBSERVED = 50_000  # rows of a batch whose keys are counted while it runs: later batches add more
_KEPT = (("commits", COMMITS), ("tables", 1), ("sources", 1))  # files by batch, and how many


@dataclass(eq=False)
class Engine:
    """Runs the batches of a query: Spark calls it with each one.

    Batch b starts from the commit of batch b - 1 and overwrites what an earlier attempt at b left, so that a replay
    changes nothing. A batch is committed after the sink was called, and a committed batch is not run again.

    The engine owns the running parts of its query, which begin with the first batch. They end when a batch fails or
    `release` or `end` is called. They are not pickled: over Connect Spark calls a copy of the engine, in a process that
    ends with the query.
    """

    directory: str
    operator: Operator[Any]
    sink: Sink
    routing: StreamRouting
    scaling: Scaling
    _running: RunningQuery | None = field(default=None, init=False, repr=False)
    _busy: RLock = field(default_factory=RLock, init=False, repr=False)  # held while a batch runs
    _thread: int | None = field(default=None, init=False, repr=False)  # that runs a batch
    _has_ended: bool = field(default=False, init=False, repr=False)

    def __call__(self, df: DataFrame, batch: int) -> None:
        with self._busy:
            if self._has_ended:  # Spark was about to call when the query was stopped
                raise RuntimeError(f"batch {batch} came after the end of its query, and will run after a restart")
            self._thread = get_ident()
            try:
                self._process(df, batch)
            finally:
                self._thread = None

    @property
    def is_in_batch(self) -> bool:
        """Whether this thread is running a batch."""
        return self._thread == get_ident()

    def _process(self, df: DataFrame, batch: int) -> None:
        try:
            if self._running is None:
                self._running = RunningQuery(self.directory, self.routing)
            if batch > self._running.committed:
                self._run(self._running, df, batch)
        except BaseException as failure:
            try:
                self.release()  # Spark ends the query, and the user may start it again at once
            except Exception as error:  # such as a filesystem that is gone; the first error tells more
                failure.add_note(f"afterwards, the checkpoint could not be released: {error}")
            raise

    def release(self) -> None:
        """Waits for a batch that is running, ends the threads of the query and unlocks its checkpoint.

        When a query is stopped, Spark does not wait for its batch: it only stops listening to Python.
        """
        with self._busy:
            running, self._running = self._running, None
            if running is not None:
                running.close()

    def end(self) -> None:
        """Releases everything, and refuses batches from now on: nobody would release what they take."""
        with self._busy:
            self._has_ended = True
            self.release()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_running", "_busy", "_thread")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _running=None, _busy=RLock(), _thread=None)

    def _run(self, running: RunningQuery, df: DataFrame, number: int) -> None:
        files, began = running.files, perf_counter()
        last = read_commit(files, number - 1, self.operator.restored) if number else None
        plan = self._plan(running, df, number, last)
        planned = perf_counter()
        batch = Batch(
            df=df,
            number=number,
            state=None if last is None else last.state,
            router=None if plan is None else plan.router,
            files=files,
            background=running.background,
            portion=self._portion(plan, last),
        )
        result = self.operator.run(batch)
        worked = perf_counter()
        running.lock.check()
        if result.output is not None:
            self._emit(result.output, number)
        emitted = perf_counter()
        scale = self._scaled(last, result, plan, emitted - began)
        seconds = {
            "plan": round(planned - began, 4),
            "work": round(worked - planned, 4),
            "emit": round(emitted - worked, 4),
            "total": round(emitted - began, 4),
            "planning": 0.0 if plan is None else round(plan.seconds, 4),
        }
        about = {"batch": number, "at": round(time(), 3), "scaling": scale.reason if scale else "", "seconds": seconds}
        record = {**about, **_balance(result.record.get("loads")), **_routing(plan), **result.record}
        running.lock.check()  # again: the sink may have taken long
        Commit(state=result.state, scale=scale, record=record).write(files, number)
        running.committed = number
        files.record(record)
        if running.learner is not None:
            longest = max(result.record.get("loads") or [0]) if result.exact else 0
            learned = Lesson(
                histogram=result.histogram, sources=result.sources, longest=longest, seconds=worked - planned
            )
            running.learner.learn(number, learned)
        self._tidy(running, result, number)

    def _plan(self, running: RunningQuery, df: DataFrame, number: int, last: Commit[Any] | None) -> Plan | None:
        """Returns the plan of a batch; None if Spark distributes the rows.

        The number of workers is that of the elastic rule, or else of `Query.rescale`, or else of the partitioner.
        """
        learner, router = running.learner, self.routing.router
        if learner is None or router is None:
            return None
        n_workers = (running.files.read("rescale.json") or {}).get("n_workers") or router.n_workers
        if last is not None and last.scale is not None and self.scaling.follows_load:
            n_workers = last.scale.mappers
        plan = learner.plan(number, self.scaling.within(n_workers))
        statistics = self.routing.statistics
        is_planned_so = plan.from_own_rows or not learner.plans_from_rows  # by an earlier attempt
        if not is_planned_so and (statistics != "last" or number == 0):
            share = statistics if isinstance(statistics, float) else 1.0
            measured = profile(df, *self.operator.keys, sample=share)
            if measured.rows:
                plan = learner.replan(number, Lesson(histogram=measured.histogram))
        return plan

    def _portion(self, plan: Plan | None, last: Commit[Any] | None) -> float:
        """Returns the share of rows whose keys the operator must count, for the plan of the next batch."""
        if plan is None or not isinstance(plan.router, RoutingTable) or self.routing.statistics != "last":
            return 0.0
        return 1.0 if last is None else min(1.0, OBSERVED / max(last.rows, 1))

    def _scaled(
        self, last: Commit[Any] | None, result: BatchResult[Any], plan: Plan | None, seconds: float
    ) -> elastic.Scale | None:
        if plan is None:
            return None
        rows, keys = result.record.get("rows") or 0, result.record.get("keys") or 0
        before = None if last is None else last.scale
        return self.scaling.after(before, plan.router.n_workers, seconds=seconds, rows=rows, keys=keys)

    def _emit(self, output: DataFrame, batch: int) -> None:
        if isinstance(self.sink, str):
            emit(output, self.sink, batch)
        else:
            self.sink(output, batch)

    def _tidy(self, running: RunningQuery, result: BatchResult[Any], batch: int) -> None:
        files: Checkpoint = running.files
        self.operator.forget(result.state, files, running.background)
        for kind, kept in _KEPT:
            files.forget(kind, [number for number in files.numbered(kind) if number <= batch - kept], ".json")


def _routing(plan: Plan | None) -> dict[str, Any]:
    """Returns the fields of a batch's record about its routing."""
    if plan is None:
        return {"workers": None, "hot_keys": None, "moved": 0.0}  # the operator says what was decided
    hot_keys = plan.router.keys.size if isinstance(plan.router, RoutingTable) else None
    return {"workers": plan.router.n_workers, "hot_keys": hot_keys, "moved": plan.moved, "decision": plan.reason}


def _balance(loads: list[int] | None) -> dict[str, Any]:
    if not loads or not sum(loads):
        return {"imbalance": None, "imbalance_ratio": None}
    load = np.array(loads)
    return {
        "imbalance": round(float(load.max() - load.mean()), 3),
        "imbalance_ratio": round(float(load.max() / load.mean()), 4),
    }
