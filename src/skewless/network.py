"""Sources and a reducer that talk over a network on which messages are late, lost and out of order; virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skewless import coordinate
from skewless.arrays import require, whole
from skewless.coordinate import Feedback, Member, Reducer, Sync
from skewless.partitioner import Partitioner


@dataclass(frozen=True)
class Network:
    """How messages fare. Time is in tuples of the stream.

    interval: between two messages of a source, at first (DSYNC); and `least`, below which it never gets: one slide.
    delay: the least and the most that a message takes, each way; those of different delays overtake each other.
    loss: the share of messages that never arrive.
    takes: how long a merge takes, or that as a function of the time.
    deaths: source -> when it dies. The next source that lives gets its tuples.
    """

    interval: int = 1000
    least: int = 1000
    delay: tuple[int, int] = (0, 0)
    loss: float = 0.0
    takes: int | Callable[[int], int] = 0
    deaths: Mapping[int, int] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        whole("least", self.least, 1)
        whole("interval", self.interval, self.least)
        require(0 <= self.delay[0] <= self.delay[1], f"a delay is two times, the least and the most, not {self.delay}")
        require(0 <= self.loss < 1, f"loss is at least 0 and less than 1, not {self.loss}")


class Cooperation:
    """The sources of a stream and their reducer, on a network; `until` lets time pass."""

    def __init__(self, network: Network, sources: Sequence[Partitioner[Any, Any]]) -> None:
        self.network = network
        self.sources = sources
        self.members = [Member(number, network.interval) for number in range(len(sources))]
        self.reducer = Reducer(network.interval, network.least)
        self.merges = 0
        self._rng = np.random.default_rng(network.seed)
        self._under_way: list[
            tuple[int, int, int, Sync | Feedback]
        ] = []  # when, in which order, from or to which source, what
        self._sent = 0

    def alive(self, source: int, now: int) -> bool:
        return now < self.network.deaths.get(source, now + 1)

    def at_work(self, now: int) -> list[Partitioner[Any, Any]]:
        """Who has the tuples of each source: itself, or the next one that lives."""
        numbers = range(len(self.sources))
        living = [number for number in numbers if self.alive(number, now)]
        require(bool(living), f"all {len(self.sources)} sources are dead at {now}")
        return [self.sources[min(living, key=lambda other: (other - number) % len(numbers))] for number in numbers]

    def until(self, now: int) -> None:
        """Deliver what is due, and let sources send what they have to tell."""
        for source, member in enumerate(self.members):
            if self.alive(source, now) and coordinate.due(member, now):
                self.members[source], sync = coordinate.told(member, self.sources[source].snapshot(), now)
                self._send(sync, source, now)
        while self._under_way and self._under_way[0][0] <= now:
            when, _, to, message = heapq.heappop(self._under_way)
            if isinstance(message, Feedback):
                self._deliver(to, message, when)
            else:
                self.reducer, answer = coordinate.received(self.reducer, message, when)
                if answer is not None:
                    self._send(answer, to, when)
                self._merge(when)
        self._merge(now)

    def _send(self, message: Sync | Feedback, to: int, now: int) -> None:
        self._sent += 1
        low, high = self.network.delay
        delay = int(self._rng.integers(low, high + 1))
        if self._rng.random() >= self.network.loss:
            heapq.heappush(self._under_way, (now + delay, self._sent, to, message))

    def _merge(self, now: int) -> None:
        if now < self.reducer.free or not coordinate.ready(self.reducer, now):
            return
        policy = self.sources[0].merge([sync.snapshot for sync in self.reducer.waiting.values()])
        if policy is None:  # nothing to tell each other
            return
        takes = self.network.takes
        took = takes if isinstance(takes, int) else takes(now)
        self.reducer, feedback = coordinate.merged(self.reducer, policy, now, took)
        self.merges += 1
        for source in range(len(self.sources)):
            self._send(feedback, source, now + took)

    def _deliver(self, source: int, feedback: Feedback, now: int) -> None:
        if self.alive(source, now) and coordinate.is_news(self.members[source], feedback):
            self.members[source], known = coordinate.heard(self.members[source], feedback)
            partitioner = self.sources[source]
            partitioner.adopt(feedback.policy, partitioner.fresh() if known is None else known.snapshot)
