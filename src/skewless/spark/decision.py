"""Decides for every verb whether to balance its rows or leave them to Spark, how, and why."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import inf
from operator import add
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from pyspark.sql import DataFrame

from skewless.arguments import require, whole
from skewless.histogram import Histogram
from skewless.partitioner import Partitioner
from skewless.partitioners import configured
from skewless.spark import exact
from skewless.spark.checksums import check_splitting
from skewless.spark.exact import Exact, Sourced
from skewless.spark.grids import MARGIN, Grids, JoinCosts, gridded, tabled
from skewless.spark.keys import Keyed, fields_of
from skewless.spark.plans import Reads, explained, parallelism, reads, task_loads
from skewless.spark.profile import Profile, hash_straggler, profiles, straggler
from skewless.table import RoutingTable

PartitionerLike: TypeAlias = str | Partitioner[Any, Any] | RoutingTable
Operator = Literal[
    "repartition", "applyInPandas", "applyInArrow", "cogroup", "over", "agg", "collect_list", "ArrowAggregate", "join"
]
Routing: TypeAlias = RoutingTable | Sourced | Grids

BATCH_COSTS = (1.0, 1.0, 0.0)  # a batch has no state yet, so moves cost nothing
TINY = 2**20  # bytes: the least that AQE gives a task
SMALL = 2**26  # bytes: the most that AQE gives a task; Spark's own operators process it quickly
MILD = 1.25  # straggler factor below which balancing costs more than it gains

_LITTLE = "Spark finishes so little data quickly; if each row is much work, give n_workers"
_COMBINED = "Spark combines these aggregates before the shuffle, so that a hot key is one row of each map task"
_BROADCAST = "Spark broadcasts one side, so that rows of the other are not shuffled"
_HASHED_WELL = f"hashing spreads these keys well: balancing them would gain less than {MILD - 1:.0%}"
_NO_HOT_KEY = f"no key is hot enough: spreading it would gain less than {MARGIN:.0%}"
_SPREAD = "hot keys are spread over several workers, and the rows that match them are copied there"
_log = logging.getLogger("skewless")


class Traits(NamedTuple):
    """The properties of an operator that a decision depends on."""

    splits: bool = False  # may one key be split?
    native: bool = False  # does Spark itself process the rows? A Python function may take any time for each


OPERATORS: dict[Operator, Traits] = {
    "repartition": Traits(native=True),
    "applyInPandas": Traits(),
    "applyInArrow": Traits(),
    "cogroup": Traits(),
    "over": Traits(native=True),
    "agg": Traits(native=True),
    "collect_list": Traits(splits=True, native=True),
    "ArrowAggregate": Traits(splits=True),
    "join": Traits(splits=True),
}


@dataclass(frozen=True, eq=False)
class Request:
    """What a verb asks for."""

    operator: Operator
    frames: tuple[Keyed, ...]  # one, or the left and the right side
    partitioner: PartitionerLike | Exact = "auto"
    n_workers: int | None = None  # None: the default
    sample: float | None = None  # the share of rows to profile; None: all of little data, a small portion of much
    how: str = "inner"  # of a join
    numbered: bool = False  # the result has a column with the worker's number, which Spark's own plan does not give

    @property
    def df(self) -> DataFrame:
        return self.frames[0].df

    @property
    def may_leave(self) -> bool:
        """Whether Spark's own plan is an option: not if the user asks for a partitioner or a number of workers."""
        return self.partitioner == "auto" and self.n_workers is None and not self.numbered

    def checked(self) -> Request:
        """Refuses contradictory parameters before any job runs; returns the request."""
        if self.n_workers is not None:
            whole("n_workers", self.n_workers, 1)
        by, is_join = self.partitioner, self.operator == "join"
        require(
            not (is_join and isinstance(by, Exact)),
            "an Exact routes rows one by one, so the two sides would not meet: a join takes no Exact",
        )
        check_workers(by, self.n_workers)
        if isinstance(by, RoutingTable) and not OPERATORS[self.operator].splits:
            require(not by.splits_keys, f"this table splits keys, but {self.operator} needs each key whole")
        return self


@dataclass(frozen=True, eq=False)
class Decision:
    """How a verb routes its rows, and why; `explain` prints the very object that the verb follows."""

    request: Request
    routing: Routing | None  # None: rows are left to Spark
    partitioner: str  # the name of what planned the routing; "hash" where rows are left to Spark
    reason: str
    n_workers: int
    reads: tuple[Reads, ...] = ()  # what Spark says that it will read; empty if it was not asked
    profiles: tuple[Profile, ...] = ()  # what the decision rests on; empty if no rows were looked at

    def with_profile(self) -> Decision:
        """Returns the same decision with the profile that predictions need; runs a job if there is none yet."""
        sizes = self.reads or tuple(reads(frame.df) for frame in self.request.frames)
        if self.profiles:
            return replace(self, reads=sizes)
        workers = self.n_workers or default_workers(self.request.df, sizes)
        return replace(self, reads=sizes, profiles=_profiled(self.request, sizes, workers), n_workers=workers)

    @property
    def by_key(self) -> RoutingTable | Sourced | None:
        """What routes the rows of all operators but joins."""
        assert not isinstance(self.routing, Grids)
        return self.routing

    @property
    def grids(self) -> Grids | None:
        """What routes the rows of a join."""
        assert self.routing is None or isinstance(self.routing, Grids)
        return self.routing

    @property
    def histogram(self) -> Histogram:
        """How often the keys occur, on both sides together."""
        return reduce(add, (profile.histogram for profile in self.profiles))

    @property
    def before(self) -> float:
        """The straggler factor of plain Spark: the longest task that it runs, over an even share of the work."""
        size = sum(frame.bytes for frame in self.reads)
        if self.request.operator == "join":
            costs = self._costs
            tasks = task_loads(self.request.df.sparkSession, costs.histogram, size, nulls=costs.nulls)
        else:
            tasks = task_loads(self.request.df.sparkSession, self.histogram, size)
        return max(1.0, float(tasks.max() * self.n_workers / (tasks.sum() or 1.0)))

    @property
    def after(self) -> float:
        """The straggler factor as decided."""
        if self.routing is None:
            return self.before
        if isinstance(self.routing, Grids):
            load = self.routing.loads(self._costs)
            return float(load.max() / (self._costs.mean(self.n_workers) or 1.0))
        table = self.routing
        if isinstance(table, Sourced):
            table = table.partitioner.forecast(self.histogram)
        return straggler(self.histogram, table)

    @property
    def split(self) -> int:
        """How many keys are split."""
        if isinstance(self.routing, Grids):
            return int((self.routing.rows * self.routing.columns > 1).sum())
        return int((np.diff(self.routing.starts) > 1).sum()) if isinstance(self.routing, RoutingTable) else 0

    @property
    def _costs(self) -> JoinCosts:
        return JoinCosts.of(self.profiles, self.request.how)


def check_workers(partitioner: PartitionerLike | Exact, n_workers: int | None) -> None:
    """Refuses what is no partitioner, and one for another number of workers."""
    planner = partitioner.partitioner if isinstance(partitioner, Exact) else partitioner
    if isinstance(planner, str):
        return
    if not isinstance(planner, (Partitioner, RoutingTable)):
        raise TypeError(f"a partitioner is a name, an instance, a RoutingTable or an Exact, not {planner!r}")
    name = "the table" if isinstance(planner, RoutingTable) else planner.name
    fits = n_workers in (None, planner.n_workers)
    require(fits, f"{name} is for {planner.n_workers} workers, not for {n_workers}")


def decide(request: Request) -> Decision:
    """Decides what a verb does with its rows. Looks at the keys only where that can change the answer."""
    request = request.checked()
    if request.operator == "agg":
        return _left_to_spark(request, _COMBINED)
    by = request.partitioner
    if isinstance(by, RoutingTable) and not (request.operator == "join" and by.splits_keys):
        return _as_given(request, by)
    by_name = isinstance(by.partitioner if isinstance(by, Exact) else by, str)
    needs_sizes = request.operator == "join" or (by_name and request.n_workers is None)
    sizes = tuple(reads(frame.df) for frame in request.frames) if needs_sizes else ()
    if by == "auto" and (reason := _suffices(request, sizes)):
        return _left_to_spark(request, reason, sizes)
    workers = _workers(request, sizes)
    if isinstance(by, Exact):
        return _routed_by_tuple(request, by, workers, sizes)
    measured = _profiled(request, sizes, workers)
    decision = Decision(request, None, "hash", _HASHED_WELL, workers, sizes, measured)
    if request.operator == "join":
        return _join(decision)
    if request.may_leave and hash_straggler(decision.histogram, workers) <= MILD:
        return decision
    partitioner = chosen(_partitioner(by), workers, OPERATORS[request.operator].splits)
    forecast = partitioner.explained(decision.histogram, RoutingTable.hashed(workers))
    if forecast.table.splits_keys:
        check_splitting(request.df)
    _log.info(
        "%s planned %d hot keys for %d workers: %s",
        partitioner.name,
        forecast.table.keys.size,
        workers,
        measured[0].cost(),
    )
    return replace(decision, routing=forecast.table, partitioner=forecast.chosen, reason=forecast.reason)


def _partitioner(by: PartitionerLike | Exact) -> str | Partitioner[Any, Any]:
    inner = by.partitioner if isinstance(by, Exact) else by
    assert not isinstance(inner, RoutingTable)
    return inner


def _left_to_spark(request: Request, reason: str, sizes: tuple[Reads, ...] = ()) -> Decision:
    # 0 workers: unknown. The verb need not know, and asking Spark takes a while; `with_profile` asks.
    return Decision(request, None, "hash", reason, request.n_workers or 0, sizes)


def _as_given(request: Request, table: RoutingTable) -> Decision:
    if request.operator == "join":
        empty = Histogram(np.empty(0, np.uint64), np.empty(0))
        grids = _checked(tabled(table, empty, empty, request.how), request)
        return Decision(request, grids, "table", "the table was given", table.n_workers)
    if table.splits_keys:
        check_splitting(request.df)
    return Decision(request, table, "table", "the table was given", table.n_workers)


def _suffices(request: Request, sizes: Sequence[Reads]) -> str:
    """Returns why Spark's own plan is good enough, where that is clear without a job; empty if it is not."""
    native = OPERATORS[request.operator].native
    if request.may_leave and sum(frame.bytes for frame in sizes) < (SMALL if native else TINY):
        return _LITTLE
    if request.operator == "join" and "Broadcast" in explained(plain_join(request)):
        return _BROADCAST
    return ""


def plain_join(request: Request) -> DataFrame:
    """Returns the join as plain Spark does it."""
    left, right = request.frames
    return left.df.join(right.df, list(left.names), request.how)


def _workers(request: Request, sizes: Sequence[Reads]) -> int:
    by = request.partitioner
    planner = by.partitioner if isinstance(by, Exact) else by
    if not isinstance(planner, str):
        return planner.n_workers
    return default_workers(request.df, sizes) if request.n_workers is None else request.n_workers


def default_workers(df: DataFrame, sizes: Sequence[Reads]) -> int:
    """Returns the number of workers for what is read, if the user gives none."""
    return parallelism(df.sparkSession, sum(inf if frame.grows else frame.bytes for frame in sizes))


def _profiled(request: Request, sizes: Sequence[Reads], workers: int) -> tuple[Profile, ...]:
    if request.operator == "join":  # both sides are looked at closely: their keys' products matter
        return tuple(profiles(request.frames, None, matching=True, sizes=sizes or None))
    return tuple(profiles(request.frames, request.sample, n_workers=workers, sizes=sizes or None))


def _routed_by_tuple(request: Request, by: Exact, workers: int, sizes: tuple[Reads, ...]) -> Decision:
    partitioner = chosen(_partitioner(by), workers, OPERATORS[request.operator].splits)
    alone = not OPERATORS[request.operator].splits and not partitioner.sources_agree
    meet = not alone or len(request.frames) == 1
    require(meet, f"{partitioner.name} decides in the order of its rows: equal keys of two sides would not meet")
    check_splitting(request.df)
    sources = Sourced(partitioner, exact.learned(partitioner, *request.frames), alone)
    return Decision(request, sources, partitioner.name, "each row is routed by the partitioner itself", workers, sizes)


def _join(decision: Decision) -> Decision:
    """Decides how keys meet; what a key costs are its rows on both sides, and those that come out."""
    request, workers = decision.request, decision.n_workers
    by, costs = request.partitioner, decision._costs
    if by == "auto":
        grids = gridded(costs, request.how, workers)
        if grids is None:
            return replace(decision, reason=_NO_HOT_KEY)
        return replace(decision, routing=_checked(grids, request), partitioner="grids", reason=_SPREAD)
    name, reason = "table", "the table was given"
    if isinstance(by, RoutingTable):
        table = by
    else:
        partitioner = chosen(_partitioner(by), workers, split=True)
        table, name, reason = partitioner.explained(costs.histogram, RoutingTable.hashed(workers))
    left, right = (profile.histogram for profile in decision.profiles)
    grids = _checked(tabled(table, left, right, request.how), request)
    return replace(decision, routing=grids, partitioner=name, reason=reason)


def _checked(grids: Grids, request: Request) -> Grids:
    """Returns the grids; copied rows and NULL keys go to random workers, so retries need checksums."""
    fields = [field for frame in request.frames for field in fields_of(frame.df, frame.names)]
    if any(grids.copies) or any(field.nullable for field in fields):
        check_splitting(request.df)
    return grids


_KEEPS_WHOLE = 'take "auto", "level", "kip" or another that keeps keys whole'


def chosen(
    partitioner: str | Partitioner[Any, Any],
    n_workers: int,
    split: bool,
    costs: tuple[float, float, float] = BATCH_COSTS,
) -> Partitioner[Any, Any]:
    """Returns a partitioner as given, or by its name; refuses one that splits keys where they must stay whole.

    costs: what "auto" weighs its candidates by.
    """
    if isinstance(partitioner, str):
        partitioner = configured(partitioner, n_workers, split=split, costs=costs)
    whole_keys = split or not partitioner.splits_keys
    require(whole_keys, f"{partitioner.name} splits keys, but each is needed whole: {_KEEPS_WHOLE}")
    return partitioner
