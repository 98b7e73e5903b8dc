"""Simulates, in virtual time, sources and a reducer whose messages may be late, lost or out of order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from skewless.arguments import require, whole
from skewless.cooperation import protocol
from skewless.cooperation.protocol import Feedback, Member, Reducer, Sync
from skewless.partitioner import Partitioner


@dataclass(frozen=True)
class Network:
    """How messages are delivered. The unit of time is one tuple of the stream.

    interval: the initial time between two messages of a source (Dalton's DSYNC).
    least: the shortest interval: one slide.
    delay: the shortest and the longest time that a message takes, in either direction.
    loss: the share of messages that never arrive.
    merge_time: how long a merge takes: a number, or a function of the time at which it begins.
    deaths: source -> the time at which it dies; the next living source takes over its tuples.
    seed: of delays and losses.

    >>> import skewless
    >>> keys = skewless.streams.zipf(20_000, keys=1000, exponent=1.0)
    >>> late = Network(delay=(0, 2000), loss=0.1)
    >>> *_, record = skewless.simulate(skewless.partitioner("pkg", 4), keys, sources=2, sync_every=late, batch=1000)
    >>> record.tuples
    20000
    """

    interval: int = 1000
    least: int = 1000
    delay: tuple[int, int] = (0, 0)
    loss: float = 0.0
    merge_time: int | Callable[[int], int] = 0
    deaths: Mapping[int, int] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        whole("least", self.least, 1)
        whole("interval", self.interval, self.least)
        ordered = 0 <= self.delay[0] <= self.delay[1]
        require(ordered, f"delay is two times, the shortest and the longest, not {self.delay}")
        require(0 <= self.loss < 1, f"loss is at least 0 and less than 1, not {self.loss}")


class _Delivery(NamedTuple):
    """A message under way. Deliveries are ordered by time, then by the order in which they were sent."""

    time: int
    number: int
    source: int  # that sent a Sync, or will receive a Feedback
    message: Sync | Feedback


class Cooperation:
    """The sources of a stream and their reducer on a network; `advance` moves the clock."""

    def __init__(self, network: Network, sources: Sequence[Partitioner[Any, Any]]) -> None:
        self.network = network
        self.sources = sources
        self.members = [Member(number, network.interval) for number in range(len(sources))]
        self.reducer = Reducer(network.interval, network.least)
        self.merges = 0
        self._rng = np.random.default_rng(network.seed)
        self._under_way: list[_Delivery] = []
        self._sent = 0

    def alive(self, source: int, now: int) -> bool:
        """Returns whether a source has not died yet."""
        return now < self.network.deaths.get(source, now + 1)

    def routing(self, now: int) -> list[Partitioner[Any, Any]]:
        """Returns, for each source, the partitioner that routes its tuples: its own, or that of the next living one."""
        numbers = range(len(self.sources))
        living = [number for number in numbers if self.alive(number, now)]
        require(bool(living), f"all {len(self.sources)} sources are dead at {now}")
        return [self.sources[min(living, key=lambda other: (other - number) % len(numbers))] for number in numbers]

    def advance(self, now: int) -> None:
        """Sends the messages that are due, delivers those that arrive until `now`, and merges what can be merged."""
        for source, member in enumerate(self.members):
            if self.alive(source, now) and protocol.sync_due(member, now):
                self.members[source], sync = protocol.make_sync(member, self.sources[source].snapshot(), now)
                self._send(sync, source, now)
        while self._under_way and self._under_way[0].time <= now:
            delivery = heapq.heappop(self._under_way)
            if isinstance(delivery.message, Feedback):
                self._deliver(delivery.source, delivery.message, delivery.time)
            else:
                self.reducer, answer = protocol.receive_sync(self.reducer, delivery.message, delivery.time)
                if answer is not None:
                    self._send(answer, delivery.source, delivery.time)
                self._merge(delivery.time)
        self._merge(now)

    def _send(self, message: Sync | Feedback, source: int, now: int) -> None:
        self._sent += 1
        shortest, longest = self.network.delay
        delay = int(self._rng.integers(shortest, longest + 1))
        if self._rng.random() >= self.network.loss:
            heapq.heappush(self._under_way, _Delivery(now + delay, self._sent, source, message))

    def _merge(self, now: int) -> None:
        if now < self.reducer.idle_since or not protocol.merge_ready(self.reducer, now):
            return
        policy = self.sources[0].merge([sync.snapshot for sync in self.reducer.pending.values()])
        if policy is None:  # partitioners of this kind share nothing
            return
        merge_time = self.network.merge_time
        took = merge_time if isinstance(merge_time, int) else merge_time(now)
        self.reducer, feedback = protocol.finish_merge(self.reducer, policy, now, took)
        self.merges += 1
        for source in range(len(self.sources)):
            self._send(feedback, source, now + took)

    def _deliver(self, source: int, feedback: Feedback, now: int) -> None:
        if self.alive(source, now) and protocol.is_newer(feedback, self.members[source]):
            self.members[source], merged_sync = protocol.apply_feedback(self.members[source], feedback)
            partitioner = self.sources[source]
            partitioner.adopt(feedback.policy, partitioner.fresh() if merged_sync is None else merged_sync.snapshot)
