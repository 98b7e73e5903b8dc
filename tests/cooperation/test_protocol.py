"""Dalton's protocol counts everything exactly once, whatever happens to messages."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from skewless.cooperation.protocol import (
    SILENCE,
    UNANSWERED,
    Feedback,
    Member,
    Reducer,
    Sync,
    apply_feedback,
    finish_merge,
    is_newer,
    make_sync,
    merge_ready,
    receive_sync,
    sync_due,
)
from tests.cooperation.counting import Counting


def _sync(
    source: int, number: int, version: int, late: bool = False, included: Mapping[int, int] | None = None
) -> Sync:
    return Sync(source, number, version, late, snapshot=None, included=included or {})


def test_tuples_after_a_message_are_kept_when_its_answer_is_adopted() -> None:
    source = Counting(1)
    member, reducer = Member(0, 10), Reducer(10)
    source.observe(np.zeros(7, np.uint64))
    assert not sync_due(member, 9)
    assert sync_due(member, 10)
    assert member.state == "PREPARE"
    member, sync = make_sync(member, source.snapshot(), 10)
    assert member.state == "AWAIT"
    source.observe(np.zeros(5, np.uint64))
    reducer, answer = receive_sync(reducer, sync, 11)
    assert answer is None
    assert merge_ready(reducer, 11)
    reducer, feedback = finish_merge(reducer, source.merge([sync.snapshot]), 12)
    member, known = apply_feedback(member, feedback)
    assert member.state == "PREPARE"
    assert known is not None
    source.adopt(feedback.policy, known.snapshot)
    assert source.snapshot().own.tolist() == [5]
    assert source.snapshot().known.tolist() == [1, 7]


def test_a_source_with_an_old_policy_gets_the_newest_and_is_not_merged() -> None:
    reducer = Reducer(10)
    for source in range(2):
        reducer, _ = receive_sync(reducer, _sync(source, 1, version=0), 10)
    reducer, feedback = finish_merge(reducer, "policy", 10)
    assert feedback.included == {0: 1, 1: 1}
    reducer, answer = receive_sync(reducer, _sync(0, 2, version=0, late=True), 20)
    assert answer == feedback
    assert not merge_ready(reducer, 20)


def test_a_source_without_answers_repeats_its_last_message() -> None:
    member = Member(0, 10)
    for now in range(10, 10 * (UNANSWERED + 4), 10):
        member, sync = make_sync(member, now, now)
    assert len(member.unanswered) == UNANSWERED
    assert sync == member.unanswered[-1]


def test_the_reducer_does_not_wait_for_a_dead_source_which_may_return() -> None:
    reducer = Reducer(10, 10)
    for source in range(3):
        reducer, _ = receive_sync(reducer, _sync(source, 1, version=0), 0)
    reducer, feedback = finish_merge(reducer, "policy", 0)
    for source in range(2):
        reducer, _ = receive_sync(reducer, _sync(source, 2, version=feedback.version), 10)
    assert not merge_ready(reducer, 11)
    assert merge_ready(reducer, SILENCE * 10)
    reducer, feedback = finish_merge(reducer, "policy", 30)
    assert feedback.included == {0: 2, 1: 2, 2: 1}
    reducer, _ = receive_sync(reducer, _sync(2, 5, version=feedback.version), 35)
    assert not merge_ready(reducer, 35)


def test_a_restarted_reducer_learns_the_version_from_its_sources() -> None:
    """Source 1 has not received version 7, which includes its message 3: that must not be merged again."""
    reducer, answer = receive_sync(Reducer(10), _sync(1, 3, version=6, included={1: 2}), 0)
    assert answer is None
    reducer, answer = receive_sync(reducer, _sync(0, 9, version=7, included={0: 8, 1: 3}), 0)
    assert list(reducer.pending) == [0]
    reducer, answer = receive_sync(reducer, _sync(1, 3, version=6, included={1: 2}), 1)
    assert answer is None
    assert merge_ready(reducer, 1)
    reducer, feedback = finish_merge(reducer, "policy", 1)
    assert feedback.version == 8
    assert feedback.included == {0: 9, 1: 3}


def test_memory_of_dead_sources_is_bounded() -> None:
    reducer = Reducer(10, 10)
    for source in range(3000):
        reducer, _ = receive_sync(reducer, _sync(source, 1, version=reducer.feedback.version), 100 * source)
        reducer, feedback = finish_merge(reducer, "policy", 100 * source)
    assert len(feedback.included) <= 1001


def test_merging_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no messages to merge"):
        finish_merge(Reducer(10), "policy", 0)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_lost_or_doubled(seed: int) -> None:
    """Random work, messages, losses and repetitions; at the end all messages are delivered."""
    rng = np.random.default_rng(seed)
    n_sources = 1 + seed % 4
    acts = rng.choice(["work", "tell", "carry", "lose", "double", "merge"], 400, p=[0.2, 0.2, 0.35, 0.05, 0.05, 0.15])
    story = list(zip(acts.tolist(), rng.integers(0, 100, 400).tolist(), strict=True))
    sources = [Counting(1) for _ in range(n_sources)]
    members = [Member(number, 1) for number in range(n_sources)]
    reducer, under_way, done, now = Reducer(1), list[tuple[int, Sync | Feedback]](), 0, 0

    def tell(source: int) -> None:
        members[source], sync = make_sync(members[source], sources[source].snapshot(), now)
        under_way.append((source, sync))

    def carry(at: int) -> None:
        nonlocal reducer
        source, message = under_way.pop(at)
        if isinstance(message, Sync):
            reducer, answer = receive_sync(reducer, message, now)
            if answer is not None:
                under_way.append((source, answer))
        elif is_newer(message, members[source]):
            members[source], known = apply_feedback(members[source], message)
            sources[source].adopt(message.policy, sources[source].fresh() if known is None else known.snapshot)

    def merge() -> None:
        nonlocal reducer
        if merge_ready(reducer, now):
            policy = sources[0].merge([sync.snapshot for sync in reducer.pending.values()])
            reducer, feedback = finish_merge(reducer, policy, now)
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
