"""Dalton's cooperative protocol (section 4.1, algorithm 2) for every partitioner whose sources share a policy.

Each source sends a `Sync` with its snapshot at intervals (`sync_due`, `make_sync`) and keeps routing. A reducer keeps
the newest Sync of each source (`receive_sync`), merges them once it has one of every living source (`merge_ready`,
`finish_merge`) and sends the policy to all as `Feedback`, which a source adopts (`apply_feedback`). All of these are
pure functions. `simulate` runs this protocol through `network`; on Spark sources exchange snapshots once between two
batches instead (`spark.exact`, `spark.streaming`), as `exchange` does here.

Messages may be late, lost, doubled or out of order. A source repeats what it learned in each Sync until a policy
includes it, and a Sync based on an old policy is answered with the newest one, not merged: nothing is lost and nothing
counts twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from skewless.arguments import require, whole
from skewless.partitioner import Partitioner

SILENCE = 3  # intervals without a Sync after which a source is considered dead
LONGEST = 1024  # the longest interval, as a multiple of the shortest
REMEMBERED = 1000  # dead sources whose last included Sync is remembered, in case they return
UNANSWERED = 8  # Syncs that a source keeps while it waits; after that it repeats the last one


class Sync(NamedTuple):
    """A message from a source to the reducer: all that it has learned since the last policy it adopted."""

    source: int
    number: int  # of this source's Syncs, from 1
    version: int  # of the last policy it adopted
    late: bool  # the last answer came too late: the source asks for a longer interval
    snapshot: Any
    included: Mapping[int, int]  # of the last policy, for a reducer that has been restarted


class Feedback(NamedTuple):
    """A message from the reducer to all sources: the merged policy."""

    version: int
    policy: Any
    included: Mapping[int, int]  # source -> its last Sync that this policy or an earlier one includes
    interval: int  # between two Syncs from now on (DSYNC)


NO_FEEDBACK = Feedback(version=0, policy=None, included={}, interval=0)


@dataclass(frozen=True)
class Member:
    """A source's side of the protocol."""

    source: int  # a restarted source takes a number that was never used before
    interval: int  # between two Syncs (DSYNC)
    last_sent: int = 0  # when it sent its last Sync, or began
    number: int = 0  # of that Sync
    version: int = 0  # of the last policy it adopted
    late: bool = False  # the last answer came after the next Sync was due
    unanswered: tuple[Sync, ...] = ()
    included: Mapping[int, int] = field(default_factory=dict)

    @property
    def state(self) -> Literal["PREPARE", "AWAIT"]:
        """The paper's name of its state: AWAIT while a Sync is unanswered."""
        return "AWAIT" if self.unanswered else "PREPARE"


def sync_due(member: Member, now: int) -> bool:
    """Returns whether it is time to send a Sync (l. 14), whether or not the last one was answered."""
    return now - member.last_sent >= member.interval


def make_sync(member: Member, snapshot: Any, now: int) -> tuple[Member, Sync]:
    """Returns the Sync to send and the source that awaits its answer (l. 15, 16)."""
    if len(member.unanswered) == UNANSWERED:
        return replace(member, last_sent=now), member.unanswered[-1]
    sync = Sync(
        source=member.source,
        number=member.number + 1,
        version=member.version,
        late=member.late,
        snapshot=snapshot,
        included=member.included,
    )
    return replace(member, last_sent=now, number=sync.number, unanswered=(*member.unanswered, sync)), sync


def is_newer(feedback: Feedback, member: Member) -> bool:
    """Returns whether the policy is newer than the one that the source has adopted."""
    return feedback.version > member.version


def apply_feedback(member: Member, feedback: Feedback) -> tuple[Member, Sync | None]:
    """Returns the source after a policy arrived (l. 17 to 20), and its Sync that the policy includes, if any.

    Later Syncs are no longer awaited: the reducer will not merge them.
    """
    require(is_newer(feedback, member), "the source has adopted this policy already: check `is_newer` first")
    number = feedback.included.get(member.source, 0)
    merged = next((sync for sync in member.unanswered if sync.number == number), None)
    # An answer to the first Sync after the second was due is late; an answer to a later one means the first was lost.
    late = len(member.unanswered) > 1 and merged == member.unanswered[0]
    after = replace(
        member,
        interval=feedback.interval,
        version=feedback.version,
        late=late,
        unanswered=(),
        included=feedback.included,
    )
    return after, merged


@dataclass(frozen=True)
class Reducer:
    """The merging side of the protocol (the paper's QtableReducer)."""

    interval: int
    least: int = 1  # the shortest interval: one slide
    pending: Mapping[int, Sync] = field(default_factory=dict)  # the newest Sync of each source, not yet merged
    last_heard: Mapping[int, int] = field(default_factory=dict)  # when each source was last heard from
    idle_since: int = 0
    feedback: Feedback = NO_FEEDBACK  # the last one sent

    def __post_init__(self) -> None:
        whole("least", self.least, 1)
        whole("interval", self.interval, self.least)

    def living(self, now: int) -> dict[int, int]:
        """Returns the sources heard from within the last SILENCE intervals, and when."""
        return {source: last for source, last in self.last_heard.items() if now - last < SILENCE * self.interval}


def receive_sync(reducer: Reducer, sync: Sync, now: int) -> tuple[Reducer, Feedback | None]:
    """Returns the reducer after a Sync arrived, and the policy to answer with if the source has an older one."""
    if sync.version > reducer.feedback.version:
        # This reducer was restarted: it learns the version from its sources, but does not have the policy itself.
        resumed = Feedback(version=sync.version, policy=None, included=sync.included, interval=reducer.interval)
        reducer = replace(reducer, pending={}, last_heard={}, feedback=resumed)
    last_heard = {**reducer.last_heard, sync.source: now}
    if sync.version < reducer.feedback.version:
        if reducer.feedback.policy is None:
            return reducer, None
        return replace(reducer, last_heard=last_heard), reducer.feedback
    newest = reducer.pending.get(sync.source)
    if newest is not None and newest.number > sync.number:
        return replace(reducer, last_heard=last_heard), None
    return replace(reducer, last_heard=last_heard, pending={**reducer.pending, sync.source: sync}), None


def merge_ready(reducer: Reducer, now: int) -> bool:
    """Returns whether every living source has sent a Sync since the last policy."""
    return bool(reducer.pending) and all(source in reducer.pending for source in reducer.living(now))


def finish_merge(reducer: Reducer, policy: Any, now: int, took: int = 0) -> tuple[Reducer, Feedback]:
    """Returns the reducer after its pending Syncs were merged into a policy, and the Feedback to send to all sources.

    took: how long merging took. The interval doubles if most sources waited too long (a few may have lost messages);
    it halves if the reducer was idle for longer than it merged.
    """
    require(bool(reducer.pending), "there are no messages to merge: check `merge_ready` first")
    interval, pending = reducer.interval, reducer.pending
    if 2 * sum(sync.late for sync in pending.values()) > len(pending):
        interval = min(2 * interval, LONGEST * reducer.least)
    elif now - reducer.idle_since > took:
        interval = max(reducer.least, interval // 2)
    living = reducer.living(now)
    # Policies may overtake each other, so each names the last Sync of every source that it or an earlier one includes.
    included = {**reducer.feedback.included, **{source: sync.number for source, sync in pending.items()}}
    gone = [source for source in included if source not in living and source not in pending]
    for source in gone[: max(0, len(gone) - REMEMBERED)]:
        del included[source]
    feedback = Feedback(version=reducer.feedback.version + 1, policy=policy, included=included, interval=interval)
    after = replace(reducer, interval=interval, pending={}, last_heard=living, idle_since=now + took, feedback=feedback)
    return after, feedback


def exchange(sources: Sequence[Partitioner[Any, Any]]) -> int:
    """Merges the snapshots of all sources without delay and lets each adopt the policy.

    Returns 1, or 0 if partitioners of this kind share nothing.
    """
    require(len(sources) >= 1, "an exchange needs at least 1 source")
    policy = sources[0].merge([source.snapshot() for source in sources])
    if policy is None:
        return 0
    for source in sources:
        source.adopt(policy)
    return 1
