"""What routes the next batch of a stream: a partitioner that learns from each batch, off the critical path.

It makes a table for the next batch (`Learner`), or routes each row itself, once in every source (`Cooperation`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from skewless.arrays import from_bytes, to_bytes
from skewless.coordinate import LONGEST
from skewless.histogram import Histogram
from skewless.moves import moves
from skewless.partitioner import Partitioner
from skewless.partitioners import described
from skewless.partitioners.auto import Auto, sampled, table_for
from skewless.partitioners.planner import Planner
from skewless.spark.checkpoint import Checkpoint
from skewless.spark.exact import Sourced, Sources, agreed
from skewless.table import RoutingTable

NAMED = 3  # hot keys that a reason tells of


@dataclass(frozen=True)
class Plan:
    """The table of a batch, and why it is that one."""

    table: RoutingTable | Sourced
    reason: str
    moved: float = 0.0  # the share of rows that go elsewhere than by the table before
    seconds: float = 0.0  # that planning took


@dataclass(frozen=True)
class Lesson:
    """What a batch was like."""

    histogram: Histogram | None
    left: Sources | None = None  # what its sources know, where they route rows themselves
    longest: int = 0  # rows of the busiest worker; 0: not known
    seconds: float = 0.0  # that it took


class Learner:
    """Keeps a partitioner, its plans, and what it knows, in the files of a checkpoint.

    The plan for batch b is tables/b.json, with what the partitioner knew when it made it: in one file, so that they
    never part, whenever the query dies. A plan is written before it is used, so that a replay goes by the same one. A
    routing table instead of a partitioner stays as it is.
    """

    def __init__(self, files: Checkpoint, by: Partitioner[Any, Any] | RoutingTable) -> None:
        self._files = files
        self._by = by
        self._background = ThreadPoolExecutor(1, "skewless-plan")
        self._planning: Future[Plan] | None = None
        self._planned = -1  # the batch of the last plan
        self.ignorant = True  # until it has learned from a batch
        self._plan = Plan(RoutingTable.hashed(by.n_workers), "hashed: nothing is known yet")
        self._former = RoutingTable.hashed(by.n_workers)  # before the table in force

    @property
    def name(self) -> str:
        return "the table given" if isinstance(self._by, RoutingTable) else self._by.name

    def plan(self, batch: int, n_workers: int) -> Plan:
        """The plan for a batch: made in the background since the last one, or found in a file, or a first one."""
        if self._planning is not None:
            self._plan = self._planning.result()
            self._planning = None
        if self._planned != batch:
            self._plan = self._found(batch)
            self._planned = batch
        former = self._table
        if former.n_workers != n_workers and not isinstance(self._by, RoutingTable):
            self._by = _resized(self._by, n_workers)
            reason = f"{n_workers:,} workers instead of {former.n_workers:,}"
            table = replace(former.resized(n_workers), version=batch)
            self._plan = self._written(batch, Plan(table, reason, _moved(former, table)))
        return self._plan

    def now(self, batch: int, lesson: Lesson) -> Plan:
        """A better plan for a batch that has one already: from its own keys."""
        self._plan = self._learned(batch, lesson)
        return self._plan

    def later(self, batch: int, lesson: Lesson | None) -> None:
        """Plan the next batch while other things go on, with what is to be learned from this one."""
        if lesson is None or lesson.histogram is None or isinstance(self._by, RoutingTable):
            same = Plan(self._plan.table, f"{self.name}: as before")
            self._planning = self._background.submit(self._written, batch + 1, same)
        else:
            self._planning = self._background.submit(self._learned, batch + 1, lesson)
        self._planned = batch + 1

    def close(self) -> None:
        self._background.shutdown()

    @property
    def _table(self) -> RoutingTable:
        assert isinstance(self._plan.table, RoutingTable)
        return self._plan.table

    def _learned(self, batch: int, lesson: Lesson) -> Plan:
        began = perf_counter()
        self.ignorant = False
        p, old, histogram = self._by, self._table, lesson.histogram
        assert isinstance(p, Partitioner)
        assert histogram is not None
        if isinstance(p, Auto) and lesson.longest:
            foreseen = p.effort(old, self._former, histogram)
            p.measured(foreseen._replace(worker=float(lesson.longest)), lesson.seconds)
        self._former = old
        if isinstance(p, Planner):
            p.count(histogram)
            p.adopt(p.merge([p.snapshot()]))
            table = p.table()
        elif p.plans_ahead:
            table = table_for(p, histogram, old)
        else:
            sample = sampled(histogram, p.seed + batch)
            p.observe(sample)
            table = p.table(sample)
        table = replace(table, version=batch)
        moved = _moved(old, table, histogram)
        return self._written(batch, Plan(table, _reason(p, table, histogram), moved, perf_counter() - began))

    def _written(self, batch: int, plan: Plan) -> Plan:
        assert isinstance(plan.table, RoutingTable)
        p = self._by
        told = {
            "by": self._owner(),
            "ignorant": self.ignorant,
            "reason": plan.reason,
            "moved": plan.moved,
            "seconds": plan.seconds,
            "table": plan.table.to_json(),
            "learned": b64encode(to_bytes(p.snapshot())).decode() if isinstance(p, Partitioner) else None,
        }
        self._files.write(f"tables/{batch}.json", told)
        return plan

    def _found(self, batch: int) -> Plan:
        """The plan that was made for a batch, or the one before it, when the query ran last; or a first one."""
        for number in (batch, batch - 1):
            kept = self._files.read(f"tables/{number}.json")
            if kept is None:
                continue
            table = RoutingTable.from_json(kept["table"])
            if kept["by"] == self._owner():
                self.ignorant = bool(kept["ignorant"])
                self._restore(kept["learned"], table.n_workers)
                plan = Plan(table, kept["reason"], kept["moved"], kept["seconds"])
                return plan if number == batch else self._written(batch, plan)
            new = self._by if isinstance(self._by, RoutingTable) else RoutingTable.hashed(self._by.n_workers)
            return self._written(batch, Plan(new, f"{self.name} from now on", _moved(table, new)))
        if isinstance(self._by, RoutingTable):
            return self._written(batch, Plan(self._by, "as given"))
        return self._written(batch, self._plan)

    def _restore(self, learned: str | None, n_workers: int) -> None:
        """Know again what was known when a plan was made, for as many workers as it has."""
        if isinstance(self._by, Partitioner) and learned is not None:
            self._by = replace(self._by, n_workers=n_workers)
            self._by.restore(from_bytes(type(self._by.snapshot()), b64decode(learned)))

    def _owner(self) -> str:
        """Tells whose plans these are; the number of workers may change without making them another's."""
        return self.name if isinstance(self._by, RoutingTable) else repr(replace(self._by, n_workers=1))


class Cooperation:
    """Sources that route each row themselves, and come to know between batches what the others know.

    What they know before batch b is sources/b.json: written before it is used, from what they left after batch b - 1.
    They agree after every batch, or less often where that takes longer than a batch does (Dalton's adaptive DSYNC).
    """

    def __init__(self, files: Checkpoint, by: Partitioner[Any, Any]) -> None:
        self._files = files
        self._by = by
        self._background = ThreadPoolExecutor(1, "skewless-sync")
        self._agreeing: Future[_Known] | None = None
        self._known = _Known()
        self._batch = -1

    @property
    def name(self) -> str:
        return self._by.name

    def plan(self, batch: int, n_workers: int) -> Plan:
        if self._agreeing is not None:
            self._known = self._agreeing.result()
            self._agreeing = None
        if self._batch != batch:
            self._known, self._batch = self._found(batch), batch
        if self._by.n_workers != n_workers:
            self._by = replace(self._by, n_workers=n_workers)
            self._known = self._written(batch, _Known())
        sources = len(self._known.sources.snapshots)
        reason = f"{self.name}: {sources} sources route each row; they agreed {self._known.since} batches ago"
        return Plan(Sourced(self._by, self._known.sources), reason, 0.0, self._known.took)

    def now(self, batch: int, lesson: Lesson) -> Plan:
        raise TypeError("sources that route each row themselves learn from the rows that they route")

    def later(self, batch: int, lesson: Lesson | None) -> None:
        """Let the sources agree while other things go on."""
        left = self._known.sources if lesson is None or lesson.left is None else lesson.left
        seconds = 0.0 if lesson is None else lesson.seconds
        self._agreeing = self._background.submit(self._agreed, batch + 1, left, seconds)
        self._batch = batch + 1

    def close(self) -> None:
        self._background.shutdown()

    def _agreed(self, batch: int, left: Sources, seconds: float) -> _Known:
        every, since = self._known.every, self._known.since + 1
        if since < every:
            return self._written(batch, _Known(left, every, since))
        began = perf_counter()
        sources = agreed(self._by, left)
        took = perf_counter() - began
        every = min(2 * every, LONGEST) if took > seconds else max(1, every // 2)
        return self._written(batch, _Known(sources, every, 0, took))

    def _written(self, batch: int, known: _Known) -> _Known:
        policy, snapshots = known.sources
        content = {
            "by": described(self._by),
            "policy": None if policy is None else b64encode(policy).decode(),
            "snapshots": {number: b64encode(snapshot).decode() for number, snapshot in snapshots.items()},
            "every": known.every,
            "since": known.since,
        }
        self._files.write(f"sources/{batch}.json", content)
        return known

    def _found(self, batch: int) -> _Known:
        for number in (batch, batch - 1):
            kept = self._files.read(f"sources/{number}.json")
            if kept is not None and kept["by"] == described(self._by):
                policy = None if kept["policy"] is None else b64decode(kept["policy"])
                snapshots = {int(source): b64decode(snapshot) for source, snapshot in kept["snapshots"].items()}
                known = _Known(Sources(policy, snapshots), kept["every"], kept["since"])
                return known if number == batch else self._written(batch, known)
        return self._written(batch, _Known())


class _Known(NamedTuple):
    """What sources know, and when they are to agree."""

    sources: Sources = Sources()
    every: int = 1  # batches
    since: int = 0  # batches since they agreed
    took: float = 0.0  # seconds


def _resized(p: Partitioner[Any, Any], n_workers: int) -> Partitioner[Any, Any]:
    if p.n_workers == n_workers:
        return p
    return p.resized(n_workers) if isinstance(p, Planner) else replace(p, n_workers=n_workers)


def _moved(old: RoutingTable, new: RoutingTable, histogram: Histogram | None = None) -> float:
    return round(moves(old, new, histogram).mass, 4)


def _reason(p: Partitioner[Any, Any], table: RoutingTable, histogram: Histogram) -> str:
    """Why a plan is as it is: where it puts the hottest keys, which are named by their ranks only."""
    told = p.decisions[-1].reason if isinstance(p, Auto) and p.decisions else p.name
    parts = [told]
    for rank, key in enumerate(histogram.keys[:NAMED].tolist()):
        at = int(np.searchsorted(table.keys, np.uint64(key)))
        if at < table.keys.size and int(table.keys[at]) == key:
            share, places = histogram.counts[rank] / max(histogram.total, 1.0), int(np.diff(table.starts)[at])
            what = f"split key #{rank + 1} over {places} workers" if places > 1 else f"placed key #{rank + 1}"
            parts.append(f"{what}: {share:.0%} of rows")
    more = table.keys.size - len(parts) + 1
    return "; ".join([*parts, f"and {more:,} more hot keys"] if more > 0 else parts)
