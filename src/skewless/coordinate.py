"""How sources come to know what the others know: messages -> merge -> adopt, and when to send the next one.

Dalton's cooperative protocol (section 4.1, algorithm 2), for every partitioner that has something to tell. Each source
sends a message now and then (`due`, `told`) and goes on; a reducer keeps the newest of each (`received`), merges them
when it has one of every source that is alive (`ready`, `merged`), and sends everyone the policy, which a source adopts
(`heard`). All of it is pure functions over messages, so that the simulator and Spark run the same.

Messages may be late, lost, doubled or out of order. What a source learned is in its next message too, until it hears of
a policy that has it; and a message that knows nothing of the last policy is answered by that policy, not merged. So
nothing is lost, and nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from skewless.arrays import require, whole
from skewless.moves import worth_it as worth_it  # is a move worth it: part of coordination, used by planners
from skewless.partitioner import Partitioner

SILENCE = 3  # intervals without a message after which a source is taken for dead
LONGEST = 1024  # times the least interval: the longest
REMEMBERED = 1000  # sources that are gone, but may return
KEPT = 8  # unanswered messages that a source keeps: then it repeats the last one


class Sync(NamedTuple):
    """From a source to the reducer: all that it has learned since the last policy that it heard of."""

    source: int
    number: int  # of its messages
    version: int  # of the policy that it had heard of
    longer: bool  # the last answer came too late: sync less often
    snapshot: Any
    included: Mapping[int, int]  # as that policy said, for a reducer that starts anew


class Feedback(NamedTuple):
    """From the reducer to all sources."""

    version: int
    policy: Any
    included: Mapping[int, int]  # source -> the last of its messages that is in this policy or in one before it
    interval: int  # DSYNC, from now on


NOTHING = Feedback(0, None, {}, 0)


@dataclass(frozen=True)
class Member:
    """A source's side of the protocol."""

    source: int  # one that starts anew takes a number that no other had
    interval: int  # DSYNC: time between two messages
    last: int = 0  # when it last sent one, or began
    number: int = 0  # of that one
    version: int = 0
    late: bool = False  # the last answer came after another message was due
    unanswered: tuple[Sync, ...] = ()
    included: Mapping[int, int] = field(default_factory=dict)

    @property
    def state(self) -> Literal["PREPARE", "AWAIT"]:
        return "AWAIT" if self.unanswered else "PREPARE"


def due(member: Member, now: int) -> bool:
    """Whether it is time to send a message (l. 14), answered or not."""
    return now - member.last >= member.interval


def told(member: Member, snapshot: Any, now: int) -> tuple[Member, Sync]:
    """The message to send, and the source that awaits an answer (l. 15, 16)."""
    if len(member.unanswered) == KEPT:
        return replace(member, last=now), member.unanswered[-1]
    sync = Sync(member.source, member.number + 1, member.version, member.late, snapshot, member.included)
    return replace(member, last=now, number=sync.number, unanswered=(*member.unanswered, sync)), sync


def heard(member: Member, feedback: Feedback) -> tuple[Member, Sync | None]:
    """After a policy has come (l. 17 to 20): the source, and its message that is in the policy, None if none is.

    What was sent after that message is not awaited any more: the reducer will not merge it.
    """
    require(feedback.version > member.version, "this policy has been heard of: see `is_news`")
    number = feedback.included.get(member.source, 0)
    known = next((sync for sync in member.unanswered if sync.number == number), None)
    # An answer to the first message, after the second was due: that is late. To a later one: the first was lost.
    late = len(member.unanswered) > 1 and known == member.unanswered[0]
    after = replace(member, interval=feedback.interval, version=feedback.version, late=late, unanswered=())
    return replace(after, included=feedback.included), known


def is_news(member: Member, feedback: Feedback) -> bool:
    return feedback.version > member.version


@dataclass(frozen=True)
class Reducer:
    """The side of who merges (the paper's QtableReducer)."""

    interval: int
    least: int = 1  # the interval never gets shorter: one slide
    waiting: Mapping[int, Sync] = field(default_factory=dict)  # the newest message of each source
    alive: Mapping[int, int] = field(default_factory=dict)  # when each source was last heard
    free: int = 0  # since when it has nothing to do
    feedback: Feedback = NOTHING

    def __post_init__(self) -> None:
        whole("least", self.least, 1)
        whole("interval", self.interval, self.least)


def received(reducer: Reducer, sync: Sync, now: int) -> tuple[Reducer, Feedback | None]:
    """The reducer with one more message; and the policy, if its source does not know that yet."""
    if sync.version > reducer.feedback.version:
        # It has started anew, and learns from its sources how far they were; it does not know the policy itself.
        unknown = Feedback(sync.version, None, sync.included, reducer.interval)
        reducer = replace(reducer, waiting={}, alive={}, feedback=unknown)
    if sync.version < reducer.feedback.version:
        answered = reducer.feedback.policy is not None
        alive = {**reducer.alive, sync.source: now} if answered else reducer.alive
        return replace(reducer, alive=alive), reducer.feedback if answered else None
    alive, known = {**reducer.alive, sync.source: now}, reducer.waiting.get(sync.source)
    if known is not None and known.number > sync.number:
        return replace(reducer, alive=alive), None
    return replace(reducer, alive=alive, waiting={**reducer.waiting, sync.source: sync}), None


def ready(reducer: Reducer, now: int) -> bool:
    """Whether every source that is alive has told something since the last policy."""
    heard_of = [source for source, last in reducer.alive.items() if now - last < SILENCE * reducer.interval]
    return bool(reducer.waiting) and all(source in reducer.waiting for source in heard_of)


def merged(reducer: Reducer, policy: Any, now: int, took: int = 0) -> tuple[Reducer, Feedback]:
    """After the messages that wait were merged into a policy: what to send to all.

    took: the time of merging. The interval doubles if most sources had to wait too long; a few may have lost messages.
    If the reducer was idle for longer than it merged, the interval halves.
    """
    require(bool(reducer.waiting), "there are no messages to merge: see `ready`")
    interval, waiting = reducer.interval, reducer.waiting
    if 2 * sum(sync.longer for sync in waiting.values()) > len(waiting):
        interval = min(2 * interval, LONGEST * reducer.least)
    elif now - reducer.free > took:
        interval = max(reducer.least, interval // 2)
    alive = {source: last for source, last in reducer.alive.items() if now - last < SILENCE * reducer.interval}
    # A source may hear of a later policy first: then it must learn from that which of its messages were in an earlier.
    included = {**reducer.feedback.included, **{source: sync.number for source, sync in waiting.items()}}
    gone = [source for source in included if source not in alive and source not in waiting]
    for source in gone[: max(0, len(gone) - REMEMBERED)]:
        del included[source]
    feedback = Feedback(reducer.feedback.version + 1, policy, included, interval)
    after = replace(reducer, interval=interval, waiting={}, alive=alive, free=now + took, feedback=feedback)
    return after, feedback


def exchange(sources: Sequence[Partitioner[Any, Any]]) -> int:
    """One round without any delay: all tell what they know and adopt what follows from it.

    0 if their kind has nothing to tell, else 1.
    """
    require(len(sources) >= 1, "an exchange needs at least 1 source")
    policy = sources[0].merge([source.snapshot() for source in sources])
    if policy is None:
        return 0
    for source in sources:
        source.adopt(policy)
    return 1
