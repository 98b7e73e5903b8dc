"""Lets sources that route each row themselves share what they have learned, between batches."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from skewless.cooperation.protocol import LONGEST
from skewless.partitioner import Partitioner
from skewless.partitioners import described, rebuilt
from skewless.spark.exact import NO_SOURCES, Sourced, Sources, agreed, source_of
from skewless.spark.streaming.background import Background
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.learner import Lesson, Plan

_log = logging.getLogger("skewless")


class SourceLearner:
    """Keeps what the sources of `sl.Exact` have learned in the files of a checkpoint.

    The file sources/b.json has what they start batch b with, and is written before it is used. They agree on a policy
    after every batch, or less often if that takes longer than a batch (Dalton's adaptive DSYNC).
    """

    def __init__(self, files: Checkpoint, partitioner: Partitioner[Any, Any]) -> None:
        self._files = files
        self._partitioner = partitioner
        self._background: Background[SavedSources] = Background("skewless-sync")
        self._saved = SavedSources(owner=described(partitioner))
        self._seconds = 0.0  # that the last agreement took
        self._batch = -1

    @property
    def name(self) -> str:
        return self._partitioner.name

    @property
    def plans_from_rows(self) -> bool:
        return False

    def plan(self, batch: int, n_workers: int) -> Plan:
        if self._background.is_busy:
            self._saved = self._background.result()
        if self._batch != batch:
            self._saved, self._batch = self._resumed(batch), batch
        if self._partitioner.n_workers != n_workers:
            self._partitioner = self._partitioner.resized(n_workers)
            self._saved = self._written(batch, SavedSources(owner=described(self._partitioner)))
        sources = self._saved.sources
        count, since = len(sources.snapshots), self._saved.since
        routing = "1 source routes" if count == 1 else f"{count or 'new'} sources route"
        when = f"{since} batch{'es' if since > 1 else ''} ago" if since else "after the last batch"
        reason = f"{self.name}: {routing} each row" + (f"; they agreed {when}" if count else "")
        return Plan(Sourced(self._partitioner, sources), reason, 0.0, self._seconds)

    def replan(self, batch: int, lesson: Lesson) -> Plan:
        raise TypeError("sources that route each row themselves learn from the rows that they route")

    def learn(self, batch: int, lesson: Lesson) -> None:
        """Starts to let the sources agree in the background."""
        sources = self._saved.sources if lesson.sources is None else lesson.sources
        self._background.submit(self._agreed, batch + 1, sources, lesson.seconds)
        self._batch = batch + 1

    def close(self) -> None:
        self._background.close()

    def _agreed(self, batch: int, sources: Sources, seconds: float) -> SavedSources:
        """Lets the sources agree, if enough batches have passed since they last did.

        seconds: how long the last batch took.
        """
        every, since = self._saved.every, self._saved.since + 1
        self._seconds = 0.0
        if since >= every:
            began = perf_counter()
            sources, since = agreed(self._partitioner, sources), 0
            self._seconds = perf_counter() - began
            every = min(2 * every, LONGEST) if self._seconds > seconds else max(1, every // 2)
        owner = described(self._partitioner)
        return self._written(batch, SavedSources(owner=owner, sources=sources, every=every, since=since))

    def _written(self, batch: int, saved: SavedSources) -> SavedSources:
        self._files.write(f"sources/{batch}.json", saved.to_json())
        return saved

    def _resumed(self, batch: int) -> SavedSources:
        """Returns what an earlier run saved for this batch or the one before it, or else a first state."""
        owner = described(self._partitioner)
        for number in (batch, batch - 1):
            content = self._files.read(f"sources/{number}.json")
            if content is None or not self._is_own(content["by"]):
                continue
            saved = SavedSources.from_json(content)
            if self._can_read(saved.sources):
                return saved if number == batch else self._written(batch, saved)
        return self._written(batch, SavedSources(owner=owner))

    def _is_own(self, owner: str) -> bool:
        """Returns whether these are our class and parameters; parameters that an older version lacked have defaults."""
        try:
            return described(rebuilt(owner)) == described(self._partitioner)
        except (ValueError, TypeError, LookupError, ImportError, AttributeError):  # of a class that is not there today
            return False

    def _can_read(self, sources: Sources) -> bool:
        """Restores each source, as executors will, to see whether that works."""
        try:
            for snapshot in (None, *sources.snapshots.values()):
                source_of(described(self._partitioner), sources.policy, snapshot)
        except ValueError as error:
            _log.warning("%s starts to learn anew: its saved snapshots cannot be read (%s)", self.name, error)
            return False
        return True


@dataclass(frozen=True, kw_only=True)
class SavedSources:
    """The content of sources/<batch>.json."""

    owner: str  # the partitioner of the sources, as text
    sources: Sources = NO_SOURCES
    every: int = 1  # batches between two agreements
    since: int = 0  # batches since the last agreement

    def to_json(self) -> dict[str, Any]:
        policy, snapshots = self.sources
        return {
            "by": self.owner,
            "policy": None if policy is None else b64encode(policy).decode(),
            "snapshots": {number: b64encode(snapshot).decode() for number, snapshot in snapshots.items()},
            "every": self.every,
            "since": self.since,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> SavedSources:
        policy = None if content["policy"] is None else b64decode(content["policy"])
        snapshots = {int(source): b64decode(snapshot) for source, snapshot in content["snapshots"].items()}
        sources = Sources(policy, snapshots)
        return cls(owner=content["by"], sources=sources, every=content["every"], since=content["since"])
