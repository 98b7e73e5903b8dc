"""The protocol: exactly once whatever happens to messages, and an interval that follows the reducer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from skewless import Keys, Times, Workers, partitioner, simulate, streams
from skewless.coordinate import (
    KEPT,
    SILENCE,
    Feedback,
    Member,
    Reducer,
    Sync,
    due,
    heard,
    merged,
    ready,
    received,
    told,
)
from skewless.network import Cooperation, Network
from skewless.partitioner import Partitioner


class Tally(NamedTuple):
    own: NDArray[np.int64]  # tuples since the last policy
    known: NDArray[np.int64]  # version of that policy, tuples of all sources in it


class Total(NamedTuple):
    known: NDArray[np.int64]


@dataclass(eq=False)
class Counting(Partitioner[Tally, Total]):
    """Counts tuples; the policy is how many there were. Anything lost or doubled shows at once."""

    name: ClassVar[str] = "counting"
    splits_keys: ClassVar[bool] = False

    def fresh(self) -> Tally:
        return Tally(np.zeros(1, np.int64), np.zeros(2, np.int64))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        workers[:] = 0
        self._state.own[0] += keys.size

    def merge(self, snapshots: Sequence[Tally]) -> Total:
        version, total = max(tuple(s.known.tolist()) for s in snapshots)
        return Total(np.array([version + 1, total + sum(int(s.own[0]) for s in snapshots)]))

    def adopt(self, policy: Total, told: Tally | None = None) -> None:
        if policy.known[0] > self._state.known[0]:
            own = self._state.own - (self._state if told is None else told).own
            self._state = Tally(own, policy.known.copy())


def test_a_message_is_answered_and_what_came_after_it_is_kept() -> None:
    source = Counting(1)
    member, reducer = Member(0, 10), Reducer(10)
    source.observe(np.zeros(7, np.uint64))
    assert not due(member, 9)
    assert due(member, 10)
    assert member.state == "PREPARE"
    member, sync = told(member, source.snapshot(), 10)
    assert member.state == "AWAIT"
    source.observe(np.zeros(5, np.uint64))
    reducer, answer = received(reducer, sync, 11)
    assert answer is None
    assert ready(reducer, 11)
    reducer, feedback = merged(reducer, source.merge([sync.snapshot]), 12)
    member, known = heard(member, feedback)
    assert member.state == "PREPARE"
    assert known is not None
    source.adopt(feedback.policy, known.snapshot)
    assert source.snapshot().own.tolist() == [5]
    assert source.snapshot().known.tolist() == [1, 7]


def test_who_does_not_know_the_last_policy_is_told_it_and_not_merged() -> None:
    reducer = Reducer(10)
    for source in range(2):
        reducer, _ = received(reducer, Sync(source, 1, 0, False, None, {}), 10)
    reducer, feedback = merged(reducer, "policy", 10)
    assert feedback.included == {0: 1, 1: 1}
    reducer, answer = received(reducer, Sync(0, 2, 0, True, None, {}), 20)
    assert answer == feedback
    assert not ready(reducer, 20)


def test_a_source_without_answers_repeats_itself_rather_than_keep_more() -> None:
    member = Member(0, 10)
    for now in range(10, 10 * (KEPT + 4), 10):
        member, sync = told(member, now, now)
    assert len(member.unanswered) == KEPT
    assert sync == member.unanswered[-1]


def test_a_dead_source_is_not_waited_for_and_may_return() -> None:
    reducer = Reducer(10, 10)
    for source in range(3):
        reducer, _ = received(reducer, Sync(source, 1, 0, False, None, {}), 0)
    reducer, feedback = merged(reducer, "policy", 0)
    for source in range(2):
        reducer, _ = received(reducer, Sync(source, 2, feedback.version, False, None, {}), 10)
    assert not ready(reducer, 11)
    assert ready(reducer, SILENCE * 10)
    reducer, feedback = merged(reducer, "policy", 30)
    assert feedback.included == {0: 2, 1: 2, 2: 1}
    reducer, _ = received(reducer, Sync(2, 5, feedback.version, False, None, {}), 35)
    assert not ready(reducer, 35)


def test_a_reducer_that_lost_its_memory_learns_from_its_sources_how_far_they_were() -> None:
    """Source 1 has not heard of version 7, which has its message 3: that must not be merged again."""
    reducer, answer = received(Reducer(10), Sync(1, 3, 6, False, None, {1: 2}), 0)
    assert answer is None
    reducer, answer = received(reducer, Sync(0, 9, 7, False, None, {0: 8, 1: 3}), 0)
    assert list(reducer.waiting) == [0]
    reducer, answer = received(reducer, Sync(1, 3, 6, False, None, {1: 2}), 1)
    assert answer is None
    assert ready(reducer, 1)
    reducer, feedback = merged(reducer, "policy", 1)
    assert feedback.version == 8
    assert feedback.included == {0: 9, 1: 3}


def test_the_interval_does_not_run_away_where_messages_are_lost() -> None:
    for sources, loss in ((4, 0.1), (16, 0.05), (2, 0.3)):
        talk = Cooperation(Network(loss=loss), [Counting(1) for _ in range(sources)])
        for now in range(0, 1_000_000, 1000):
            talk.until(now)
        assert talk.members[0].interval <= 8000
        assert talk.merges > 100


def test_what_is_known_of_sources_that_are_gone_is_bounded() -> None:
    reducer = Reducer(10, 10)
    for source in range(3000):
        reducer, _ = received(reducer, Sync(source, 1, reducer.feedback.version, False, None, {}), 100 * source)
        reducer, feedback = merged(reducer, "policy", 100 * source)
    assert len(feedback.included) <= 1001


def test_merging_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no messages to merge"):
        merged(Reducer(10), "policy", 0)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_or_doubled(seed: int) -> None:
    """Any order of work, messages, losses and repetitions; then a quiet end in which all is delivered."""
    rng = np.random.default_rng(seed)
    n_sources = 1 + seed % 4
    acts = rng.choice(["work", "tell", "carry", "lose", "double", "merge"], 400, p=[0.2, 0.2, 0.35, 0.05, 0.05, 0.15])
    story = list(zip(acts.tolist(), rng.integers(0, 100, 400).tolist(), strict=True))
    sources = [Counting(1) for _ in range(n_sources)]
    members = [Member(number, 1) for number in range(n_sources)]
    reducer, under_way, done, now = Reducer(1), list[tuple[int, Sync | Feedback]](), 0, 0

    def tell(source: int) -> None:
        members[source], sync = told(members[source], sources[source].snapshot(), now)
        under_way.append((source, sync))

    def carry(at: int) -> None:
        nonlocal reducer
        source, message = under_way.pop(at)
        if isinstance(message, Sync):
            reducer, answer = received(reducer, message, now)
            if answer is not None:
                under_way.append((source, answer))
        elif message.version > members[source].version:
            members[source], known = heard(members[source], message)
            sources[source].adopt(message.policy, sources[source].fresh() if known is None else known.snapshot)

    def merge() -> None:
        nonlocal reducer
        if ready(reducer, now):
            policy = sources[0].merge([sync.snapshot for sync in reducer.waiting.values()])
            reducer, feedback = merged(reducer, policy, now)
            under_way.extend((source, feedback) for source in range(n_sources))

    for what, number in story:
        now += 1
        source = number % n_sources
        if what == "work":
            sources[source].observe(np.zeros(number, np.uint64))
            done += number
        elif what == "tell":
            tell(source)
        elif what == "merge":
            merge()
        elif under_way and what == "carry":
            carry(number % len(under_way))
        elif under_way and what == "lose":
            under_way.pop(number % len(under_way))
        elif under_way:
            under_way.append(under_way[number % len(under_way)])
    for _ in range(3):
        for source in range(n_sources):
            tell(source)
        while under_way:
            carry(0)
        merge()
        while under_way:
            carry(0)
    assert {int(source.snapshot().known[1]) for source in sources} == {done}
    assert {int(source.snapshot().own[0]) for source in sources} == {0}


def test_the_interval_follows_the_time_that_merging_takes() -> None:
    """Figure 14b: it doubles with the time of the reducer, doubles again, and returns when that is quick again."""
    slow = {0: 6000, 500_000: 12_000, 1_000_000: 24_000, 1_500_000: 6000}
    network = Network(20_000, 1000, takes=lambda now: slow[max(at for at in slow if at <= now)])
    sources = [Counting(1) for _ in range(2)]
    talk = Cooperation(network, sources)
    seen = dict[int, int]()
    for now in range(0, 2_000_000, 1000):
        for source in sources:
            source.observe(np.zeros(500, np.uint64))
        talk.until(now)
        seen[now] = talk.members[0].interval
    steady = [seen[at] for at in (400_000, 900_000, 1_400_000, 1_900_000)]
    assert steady == [10_000, 20_000, 40_000, 10_000]


def test_the_interval_has_a_floor() -> None:
    talk = Cooperation(Network(64_000, 1000), [Counting(1)])
    for now in range(0, 1_000_000, 500):
        talk.until(now)
    assert talk.members[0].interval == 1000


@pytest.mark.compiled
@pytest.mark.parametrize(
    "network",
    [
        Network(delay=(0, 5000)),
        Network(loss=0.3),
        Network(delay=(500, 20_000), loss=0.2),
        Network(deaths={1: 150_000, 3: 200_000}),
        Network(delay=(0, 3000), loss=0.1, deaths={0: 100_000}),
    ],
    ids=["late", "lost", "late and lost", "dead", "all of it"],
)
@pytest.mark.parametrize(
    ("name", "params"), [("dalton", {"hot": 5, "greedy": True}), ("level", {}), ("kip", {}), ("pkg", {})]
)
def test_a_bad_network_costs_balance_a_little_at_most(name: str, params: dict[str, Any], network: Network) -> None:
    keys = streams.zipf(400_000, 100_000, 1.2)

    def ratio(sync_every: Network) -> float:
        *_, last = simulate(partitioner(name, 16, **params), keys, sources=4, sync_every=sync_every, batch=1000)
        assert last.syncs > 15
        return last.imbalance_ratio

    perfect = ratio(Network())
    assert ratio(network) <= 1.1 * perfect


def test_a_network_is_checked() -> None:
    for wrong in ({"loss": 1.0}, {"delay": (5, 1)}, {"interval": 10, "least": 20}):
        with pytest.raises(ValueError, match=r"not|least"):
            replace(Network(), **wrong)
    with pytest.raises(ValueError, match="dead"):
        list(simulate(partitioner("pkg", 4), streams.uniform(10, 5), sync_every=Network(deaths={0: 0})))
