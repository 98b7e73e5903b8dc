"""Decides for every verb whether to balance its rows or leave them to Spark, how, and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TypeAlias

import numpy as np
from pyspark.sql import DataFrame

from skewless.arguments import require
from skewless.histogram import Histogram
from skewless.spark import exact
from skewless.spark.checksums import check_splitting, splitting_problem
from skewless.spark.exact import Exact, Sourced
from skewless.spark.grids import MARGIN, Grids, JoinCosts, gridded, tabled
from skewless.spark.keys import fields_of
from skewless.spark.plans import Inputs, broadcasts
from skewless.spark.profile import HotKey, Profile, hottest, profiles
from skewless.spark.request import Request
from skewless.table import RoutingTable

Routing: TypeAlias = RoutingTable | Sourced | Grids

TINY = 2**20  # bytes: the least that AQE gives a task
SMALL = 2**26  # bytes: the most that AQE gives a task; Spark's own operators process it quickly
LOOKED_UP = 64  # hottest keys whose values, and partitions in plain Spark, are looked up for predictions
MILD = 1.25  # straggler factor below which balancing costs more than it gains

_LITTLE = "Spark finishes so little data quickly; if each row is much work, give n_workers"
_COMBINED = "Spark combines these aggregates before the shuffle, so that a hot key is one row of each map task"
_BROADCAST = "Spark broadcasts one side, so that rows of the other are not shuffled"
_HASHED_WELL = f"hashing spreads these keys well: balancing them would gain less than {MILD - 1:.0%}"
_NO_HOT_KEY = f"no key is hot enough: spreading it would gain less than {MARGIN:.0%}"
_GIVEN = "the table was given"
_BY_TUPLE = "each row is routed by the partitioner itself"
_SPREAD = "hot keys are spread over several workers, and the rows that match them are copied there"
_log = logging.getLogger("skewless")


@dataclass(frozen=True, eq=False, kw_only=True)
class Decision:
    """How a verb routes its rows, and why; `explain` prints the decision that the verb would follow."""

    request: Request
    inputs: Inputs  # what Spark says that it will read
    reason: str
    routing: Routing | None = None  # None: rows are left to Spark
    partitioner: str = "hash"  # what planned the routing; "hash" where rows are left to Spark
    shuffles: bool = True  # whether plain Spark sends all rows of a key to one task
    profiles: tuple[Profile, ...] = ()  # that the decision is based on; empty if no rows were looked at
    hottest: tuple[HotKey, ...] = ()  # known after `with_keys`

    @property
    def n_workers(self) -> int:
        """The number of workers, as asked for or by default."""
        planner = self.request.planner
        return (self.request.n_workers or self.inputs.workers) if isinstance(planner, str) else planner.n_workers

    def with_keys(self) -> Decision:
        """Returns the same decision with what predictions need: the profile, and where Spark sends the hottest keys.

        Runs a job for the hottest keys, and one for a profile if there is none yet.
        """
        profiled = self if self.profiles else _profiled(self)
        return replace(profiled, hottest=tuple(hottest(self.request.frames, profiled.histogram, LOOKED_UP)))

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
        return reduce(add, (profile.histogram for profile in self._known_profiles))

    @property
    def before(self) -> float:
        """The straggler factor of plain Spark: the longest task that it runs, over an even share of the work.

        1 where plain Spark does not send all rows of a key to one task. Partitions of a join count whole, although AQE
        splits some that exceed 256 MB: into how many tasks depends on the map tasks, which the plan does not say.
        """
        return max(1.0, self._longest * self.n_workers) if self.shuffles else 1.0

    @property
    def _longest(self) -> float:
        """The share of all work that the longest task of plain Spark has."""
        partitions = {key.hash: key.partition for key in self.hottest if key.partition is not None}
        if self.request.operator == "join":
            tasks = self.inputs.task_loads(self._costs.histogram, partitions, self._costs.nulls)
        else:
            tasks = self.inputs.task_loads(self.histogram, partitions)
        return float(tasks.max() / (tasks.sum() or 1.0))

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
        return self.histogram.straggler(table)

    @property
    def split(self) -> int:
        """How many keys are split."""
        if isinstance(self.routing, Grids):
            return int((self.routing.rows * self.routing.columns > 1).sum())
        return int((np.diff(self.routing.starts) > 1).sum()) if isinstance(self.routing, RoutingTable) else 0

    @property
    def hashing_suffices(self) -> bool:
        """Whether plain hashing spreads the keys well.

        A Python function may take any time for a row. So for Python functions the tasks that plain Spark really runs,
        after merging small partitions, must be even as well, and enough for all task slots. Spark's own operators
        process a merged task quickly, as its partitions are small.
        """
        slots = min(self.n_workers, self.inputs.slots or self.n_workers)
        is_even = self.histogram.hash_straggler(self.n_workers) <= MILD
        return is_even and (self.request.native or self._longest * slots <= MILD)

    @property
    def _costs(self) -> JoinCosts:
        return JoinCosts.of(self._known_profiles, self.request.how)

    @property
    def _known_profiles(self) -> tuple[Profile, ...]:
        require(bool(self.profiles), "no rows were looked at for this decision: with_keys() does, for predictions")
        return self.profiles


def decide(request: Request) -> Decision:
    """Decides what a verb does with its rows. Looks at the keys only where that can change the answer."""
    request = request.checked()
    left = Decision(request=request, inputs=Inputs(tuple(frame.df for frame in request.frames)), reason=_COMBINED)
    by = request.partitioner
    if request.operator == "agg":
        return replace(left, shuffles=False)
    if isinstance(by, RoutingTable) and not (request.operator == "join" and by.splits_keys):
        return _as_given(left, by)
    if isinstance(by, Exact):
        return _routed_by_tuple(left)
    little = SMALL if request.native else TINY
    if request.may_leave and left.inputs.likely_size < little:
        return replace(left, reason=_LITTLE)
    if request.operator == "join" and by == "auto" and broadcasts(plain_join(request)):
        return replace(left, reason=_BROADCAST, shuffles=False)
    decision = _profiled(left)
    if request.may_leave and decision.inputs.rows and decision.inputs.size < little:
        return replace(decision, reason=_LITTLE)
    if request.operator == "join":
        return _join(decision)
    if request.may_leave and decision.hashing_suffices:
        return replace(decision, reason=_HASHED_WELL)
    partitioner = request.partitioner_for(decision.n_workers)
    forecast = partitioner.explained(decision.histogram, RoutingTable.hashed(decision.n_workers))
    if forecast.table.splits_keys:
        check_splitting(request.df)
    hot_keys, cost = forecast.table.keys.size, decision.profiles[0].cost()
    _log.info("%s planned %d hot keys for %d workers: %s", partitioner.name, hot_keys, decision.n_workers, cost)
    return replace(decision, routing=forecast.table, partitioner=forecast.chosen, reason=forecast.reason)


def _as_given(left: Decision, table: RoutingTable) -> Decision:
    routing: Routing = table
    if left.request.operator == "join":
        # The table splits no keys here, so it does not matter how many rows of a key each side has.
        empty = Histogram(np.empty(0, np.uint64), np.empty(0))
        routing = _checked(tabled(table, empty, empty, left.request.how), left.request)
    elif table.splits_keys:
        check_splitting(left.request.df)
    return replace(left, routing=routing, partitioner="table", reason=_GIVEN)


def plain_join(request: Request) -> DataFrame:
    """Returns the join as plain Spark does it."""
    left, right = request.frames
    return left.df.join(right.df, list(left.names), request.how)


def _profiled(decision: Decision) -> Decision:
    """Returns the same decision with profiles of its keys, and with the number of rows if it was not known."""
    request, sizes = decision.request, decision.inputs.reads
    if request.operator == "join":  # a large sample, however few workers: the counts of both sides are multiplied
        measured = profiles(request.frames, None, matching=True, sizes=sizes)
    else:
        measured = profiles(request.frames, request.sample, n_workers=decision.n_workers, sizes=sizes)
    inputs = decision.inputs.counted(profile.rows for profile in measured)
    return replace(decision, inputs=inputs, profiles=tuple(measured))


def _routed_by_tuple(left: Decision) -> Decision:
    request, partitioner = left.request, left.request.partitioner_for(left.n_workers)
    alone = not request.splits and not partitioner.sources_agree
    meet = not alone or len(request.frames) == 1
    apart = f"{partitioner.name} decides in the order of its rows: in two DataFrames, equal keys would not meet"
    require(meet, f"{apart}; give the partitioner itself, not an Exact")
    # One source keeps the keys whole, but where it sends them still depends on the order of its rows.
    if Sourced(partitioner).splits_keys:
        check_splitting(request.df, "routing by the order of rows")
    routing = Sourced(partitioner, exact.learned(partitioner, *request.frames), alone)
    return replace(left, routing=routing, partitioner=partitioner.name, reason=_BY_TUPLE)


def _join(decision: Decision) -> Decision:
    """Decides how the two sides meet; a key costs its rows on both sides and the rows that come out."""
    request, workers, costs = decision.request, decision.n_workers, decision._costs
    if request.partitioner == "auto":
        grids = gridded(costs, request.how, workers)
        if grids is None:
            return replace(decision, reason=_NO_HOT_KEY)
        if problem := _problem(grids, request):
            _log.warning("the join is left to Spark: %s", problem)
            return replace(decision, reason=problem)
        return replace(decision, routing=grids, partitioner="grids", reason=_SPREAD)
    name, reason = "table", _GIVEN
    if isinstance(request.partitioner, RoutingTable):
        table = request.partitioner
    else:
        partitioner = request.partitioner_for(workers)
        table, name, reason = partitioner.explained(costs.histogram, RoutingTable.hashed(workers))
    left, right = (profile.histogram for profile in decision.profiles)
    grids = _checked(tabled(table, left, right, request.how), request)
    return replace(decision, routing=grids, partitioner=name, reason=reason)


def _problem(grids: Grids, request: Request) -> str:
    """Returns why grids are not safe, empty if they are; copies and NULL keys go to random workers: see `checksums`."""
    fields = [field for frame in request.frames for field in fields_of(frame.df, frame.names)]
    at_random = any(grids.copies) or any(field.nullable for field in fields)
    return splitting_problem(request.df, "spreading the rows of hot or NULL keys") if at_random else ""


def _checked(grids: Grids, request: Request) -> Grids:
    problem = _problem(grids, request)
    require(not problem, problem)
    return grids
