"""Plans the routing table of the next batch from the keys of the last one, in the background."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from dataclasses import dataclass, fields, replace
from time import perf_counter
from typing import Any, Protocol

from skewless.arrays import from_bytes, to_bytes
from skewless.histogram import Histogram
from skewless.migration import moves
from skewless.partitioner import Partitioner
from skewless.spark.exact import Sourced, Sources
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.table import RoutingTable

NAMED = 3  # hot keys that a reason mentions
_log = logging.getLogger("skewless")


@dataclass(frozen=True)
class Plan:
    """What routes a batch, and why."""

    router: RoutingTable | Sourced
    reason: str
    moved: float = 0.0  # the share of rows that go to another worker than by the previous table
    seconds: float = 0.0  # that planning took
    from_own_rows: bool = False  # whether it was made from the rows of its own batch


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a learner learns from a batch."""

    histogram: Histogram | None = None
    sources: Sources | None = None  # what sources have learned, where they route rows themselves
    longest: int = 0  # rows of the busiest worker; 0: unknown
    seconds: float = 0.0  # that the batch took


class Learner(Protocol):
    """Decides what routes each batch of a stream, and learns from each."""

    @property
    def plans_from_rows(self) -> bool:
        """Whether a histogram of a batch's own rows makes a better plan for it (`replan`)."""
        ...

    def plan(self, batch: int, n_workers: int) -> Plan:
        """Returns the plan for a batch; a replay of the batch gets the same one."""
        ...

    def replan(self, batch: int, lesson: Lesson) -> Plan:
        """Returns a better plan for a batch, from its own keys. Made once: a replay follows the saved plan."""
        ...

    def learn(self, batch: int, lesson: Lesson) -> None:
        """Starts to plan the next batch in the background, from what was seen in this one."""
        ...

    def close(self) -> None: ...


class TableLearner:
    """Keeps a partitioner and its plans in the files of a checkpoint.

    The plan for batch b is tables/b.json. The same file has the partitioner's snapshot at that time, so that the two
    always fit, and it is written before it is used, so that a replay follows the same plan. If the planner is a routing
    table, every batch uses it unchanged.
    """

    def __init__(self, files: Checkpoint, planner: Partitioner[Any, Any] | RoutingTable) -> None:
        self._files = files
        self._planner = planner
        self._background: Background[Plan] = Background("skewless-plan")
        self._planned = -1  # the batch of the last plan
        self._plan = Plan(RoutingTable.hashed(planner.n_workers), "hashed: no batch has been seen yet")
        self._previous = RoutingTable.hashed(planner.n_workers)  # the table before the current one

    @property
    def name(self) -> str:
        return "the table given" if isinstance(self._planner, RoutingTable) else self._planner.name

    @property
    def plans_from_rows(self) -> bool:
        return isinstance(self._planner, Partitioner)

    def plan(self, batch: int, n_workers: int) -> Plan:
        """Returns the plan that was made in the background, or else the saved plan, or else a first plan."""
        if self._background.is_busy:
            self._plan = self._background.result()
        if self._planned != batch:
            self._plan = self._resumed(batch)
            self._planned = batch
        old = self._table
        if old.n_workers != n_workers and isinstance(self._planner, Partitioner):
            if self._planner.n_workers != n_workers:
                self._planner = self._planner.resized(n_workers)
            reason = f"{n_workers:,} workers instead of {old.n_workers:,}"
            table = replace(old.resized(n_workers), version=batch)
            self._plan = self._written(batch, Plan(table, reason, _moved(old, table)))
        return self._plan

    def replan(self, batch: int, lesson: Lesson) -> Plan:
        self._plan = self._learned(batch, lesson, from_own_rows=True)
        return self._plan

    def learn(self, batch: int, lesson: Lesson) -> None:
        if lesson.histogram is None or isinstance(self._planner, RoutingTable):
            same = Plan(self._plan.router, f"{self.name}: as before")
            self._background.submit(self._written, batch + 1, same)
        else:
            self._background.submit(self._learned, batch + 1, lesson)
        self._planned = batch + 1

    def close(self) -> None:
        self._background.close()

    @property
    def _table(self) -> RoutingTable:
        assert isinstance(self._plan.router, RoutingTable)
        return self._plan.router

    def _learned(self, batch: int, lesson: Lesson, from_own_rows: bool = False) -> Plan:
        began = perf_counter()
        p, old, histogram = self._planner, self._table, lesson.histogram
        assert isinstance(p, Partitioner)
        assert histogram is not None
        if lesson.longest:
            p.timed(old, self._previous, histogram, busiest=lesson.longest, seconds=lesson.seconds)
        self._previous = old
        table = replace(p.learn(histogram, seed=p.seed + batch), version=batch)
        plan = Plan(
            router=table,
            reason=_reason(p, table, histogram),
            moved=_moved(old, table, histogram),
            seconds=perf_counter() - began,
            from_own_rows=from_own_rows,
        )
        return self._written(batch, plan)

    def _written(self, batch: int, plan: Plan) -> Plan:
        """Saves a plan for a batch, with the partitioner's snapshot; returns the plan."""
        p = self._planner
        snapshot = to_bytes(p.snapshot()) if isinstance(p, Partitioner) else None
        saved = SavedPlan(owner=self._owners()[0], plan=plan, snapshot=snapshot)
        self._files.write(f"tables/{batch}.json", saved.to_json())
        return plan

    def _resumed(self, batch: int) -> Plan:
        """Returns the plan that an earlier run saved for this batch or the one before it, or else a first plan."""
        for number in (batch, batch - 1):
            content = self._files.read(f"tables/{number}.json")
            if content is None:
                continue
            saved = SavedPlan.from_json(content)
            assert isinstance(saved.plan.router, RoutingTable)
            if saved.owner in self._owners():
                self._restore(saved, saved.plan.router.n_workers)
                return saved.plan if number == batch else self._written(batch, replace(saved.plan, from_own_rows=False))
            p = self._planner
            table = p if isinstance(p, RoutingTable) else RoutingTable.hashed(p.n_workers)
            plan = Plan(table, f"{self.name} from now on", _moved(saved.plan.router, table))
            return self._written(batch, plan)
        if isinstance(self._planner, RoutingTable):
            return self._written(batch, Plan(self._planner, "as given"))
        return self._written(batch, self._plan)

    def _restore(self, saved: SavedPlan, n_workers: int) -> None:
        """Restores the partitioner as it was when the plan was made, for as many workers as the plan has."""
        if not isinstance(self._planner, Partitioner) or saved.snapshot is None:
            return
        if self._planner.n_workers != n_workers:
            self._planner = self._planner.resized(n_workers)
        p = self._planner
        try:
            p.restore(from_bytes(type(p.snapshot()), saved.snapshot))
        except ValueError as error:
            _log.warning("%s starts to learn anew: its saved snapshot cannot be read (%s)", p.name, error)

    def _owners(self) -> list[str]:
        """Returns texts that identify the partitioner, whatever its number of workers; new files get the first.

        A file that an older version wrote lacks the last parameters if there were none then; these have their defaults.
        """
        p = self._planner
        if isinstance(p, RoutingTable):
            return [self.name]
        shown = [parameter for parameter in fields(p) if parameter.repr]
        values = ["n_workers=1" if one.name == "n_workers" else f"{one.name}={getattr(p, one.name)!r}" for one in shown]
        owners = [f"{type(p).__qualname__}({', '.join(values)})"]
        while shown and shown[-1].name != "seed" and getattr(p, shown[-1].name) == shown.pop().default:
            owners.append(f"{type(p).__qualname__}({', '.join(values[: len(shown)])})")
        return owners


@dataclass(frozen=True, kw_only=True)
class SavedPlan:
    """The content of tables/<batch>.json."""

    owner: str  # the partitioner that made the plan
    plan: Plan
    snapshot: bytes | None  # of the partitioner; None: a table was given

    def to_json(self) -> dict[str, Any]:
        assert isinstance(self.plan.router, RoutingTable)
        return {
            "by": self.owner,
            "reason": self.plan.reason,
            "moved": self.plan.moved,
            "seconds": self.plan.seconds,
            "from_own_rows": self.plan.from_own_rows,
            "table": self.plan.router.to_json(),
            "learned": None if self.snapshot is None else b64encode(self.snapshot).decode(),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SavedPlan:
        table, snapshot = RoutingTable.from_json(content["table"]), content["learned"]
        return cls(
            owner=content["by"],
            plan=Plan(
                router=table,
                reason=content["reason"],
                moved=content["moved"],
                seconds=content["seconds"],
                from_own_rows=content.get("from_own_rows", False),  # older files lack it
            ),
            snapshot=None if snapshot is None else b64decode(snapshot),
        )


def _moved(old: RoutingTable, new: RoutingTable, histogram: Histogram | None = None) -> float:
    return round(moves(old, new, histogram).mass, 4)


def _reason(p: Partitioner[Any, Any], table: RoutingTable, histogram: Histogram) -> str:
    """Explains a plan: why, and where the hottest keys go. Keys are named by rank, since their values are private."""
    parts, hot_keys = [p.reason], set(table.keys.tolist())
    for rank, key in enumerate(histogram.keys[:NAMED].tolist()):
        if key in hot_keys:
            share, workers = histogram.counts[rank] / max(histogram.total, 1.0), len(table.shares(key))
            what = f"split key #{rank + 1} over {workers} workers" if workers > 1 else f"pinned key #{rank + 1}"
            parts.append(f"{what}: {share:.0%} of rows")
    more = table.keys.size - len(parts) + 1
    return "; ".join([*parts, f"and {more:,} more hot keys"] if more > 0 else parts)
