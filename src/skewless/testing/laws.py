"""The laws of the partitioner contract, one function each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, Times, Workers, from_bytes, n_bytes, to_bytes
from skewless.cooperation.protocol import exchange
from skewless.partitioner import AnyPartitioner, Partitioner
from skewless.partitioners.baselines import Hash
from skewless.table import RoutingTable

New: TypeAlias = Callable[[int], AnyPartitioner]  # n_workers -> a new partitioner with the parameters under test


@dataclass(frozen=True, eq=False)
class Tuples:
    """Keys with optional times.

    >>> first, second = Tuples(np.array([7, 7, 8], np.uint64)).parts(2)
    >>> second.pairs(second.routed_by(Hash(2))).tolist(), second.part(slice(1, 2)).keys.tolist()
    ([[7, 1], [8, 0]], [8])
    """

    keys: Keys
    times: Times | None = None

    def part(self, which: slice) -> Tuples:
        """Returns the tuples in the slice `which`."""
        return Tuples(self.keys[which], None if self.times is None else self.times[which])

    def parts(self, number: int) -> list[Tuples]:
        """Returns the tuples in a number of parts of about equal size."""
        cuts = [self.keys.size * i // number for i in range(number + 1)]
        return [self.part(slice(start, end)) for start, end in pairwise(cuts)]

    def routed_by(self, partitioner: AnyPartitioner) -> Workers:
        """Returns the worker that a partitioner gives each tuple."""
        return partitioner.route(self.keys, self.times)

    def pairs(self, workers: Workers) -> NDArray[np.uint64]:
        """Returns the distinct (key, worker) pairs, given the workers of the tuples."""
        return np.unique(np.column_stack((self.keys, workers.astype(np.uint64))), axis=0)


Law: TypeAlias = Callable[[New, int, Tuples], None]


class LawBroken(AssertionError):
    """Raised when a partitioner breaks a law of its contract; the message says how.

    >>> raise LawBroken("two equal partitioners decided differently")
    Traceback (most recent call last):
    skewless.testing.laws.LawBroken: two equal partitioners decided differently
    """


def _hold(condition: bool, breach: str) -> None:
    """Raises LawBroken with this description unless the condition holds."""
    if not condition:
        raise LawBroken(breach)


def _ready(new: New, n_workers: int, tuples: Tuples) -> AnyPartitioner:
    """Returns a partitioner that is ready to route; a planner has planned for the tuples."""
    partitioner = new(n_workers)
    if partitioner.plans_ahead:
        partitioner.observe(tuples.keys, tuples.times)
        exchange([partitioner])
    return partitioner


def _used(new: New, n_workers: int, tuples: Tuples) -> AnyPartitioner:
    """Returns a partitioner that has routed the tuples."""
    partitioner = _ready(new, n_workers, tuples)
    tuples.routed_by(partitioner)
    return partitioner


def _same(policy: Any, other: Any) -> bool:
    """Returns whether two policies or snapshots, or None, are equal."""
    return other is None if policy is None else other is not None and to_bytes(policy) == to_bytes(other)


def each_tuple_gets_one_worker(new: New, n_workers: int, tuples: Tuples) -> None:
    """Every tuple gets exactly one worker in [0, n_workers)."""
    workers = tuples.routed_by(_ready(new, n_workers, tuples))
    fits = workers.dtype == np.int32 and workers.shape == tuples.keys.shape
    _hold(fits, f"{tuples.keys.size} keys got {workers.shape} workers of {workers.dtype}")
    _hold(bool(np.all((workers >= 0) & (workers < n_workers))), f"a worker is not in [0, {n_workers})")


def chunking_changes_nothing(new: New, n_workers: int, tuples: Tuples) -> None:
    """Routing in pieces gives the same workers as routing at once."""
    whole = tuples.routed_by(_ready(new, n_workers, tuples))
    pieces, size = _ready(new, n_workers, tuples), tuples.keys.size
    cuts = sorted({0, min(1, size), size // 7, size // 2, size})
    parts = [tuples.part(slice(*cut)).routed_by(pieces) for cut in pairwise(cuts)]
    together = np.concatenate(parts) if parts else whole
    _hold(np.array_equal(whole, together), "routing in pieces differs from routing at once")


def same_input_gives_same_output(new: New, n_workers: int, tuples: Tuples) -> None:
    """Equal parameters, seed and input give equal output."""
    first, second = (tuples.routed_by(_ready(new, n_workers, tuples)) for _ in range(2))
    _hold(np.array_equal(first, second), "two equal partitioners decided differently")


def input_is_not_written_to(new: New, n_workers: int, tuples: Tuples) -> None:
    """Routing and observing leave keys and times unchanged; keys may be read-only."""
    copy = Tuples(tuples.keys.copy(), None if tuples.times is None else tuples.times.copy())
    partitioner = _ready(new, n_workers, copy)
    expected = copy.routed_by(partitioner)
    partitioner.observe(copy.keys, copy.times)
    _hold(np.array_equal(copy.keys, tuples.keys), "the keys were changed")
    same = copy.times is None or tuples.times is None or np.array_equal(copy.times, tuples.times)
    _hold(same, "the times were changed")
    copy.keys.flags.writeable = False
    same = np.array_equal(copy.routed_by(_ready(new, n_workers, copy)), expected)
    _hold(same, "read-only keys were routed differently")


def restored_partitioner_continues(new: New, n_workers: int, tuples: Tuples) -> None:
    """A partitioner restored from a snapshot continues as the original would, and shares no memory with it."""
    before, after = tuples.parts(2)
    original = _ready(new, n_workers, tuples)
    before.routed_by(original)
    snapshot = original.snapshot()
    restored = new(n_workers).restore(snapshot)
    _overwrite(snapshot)
    same = np.array_equal(after.routed_by(original), after.routed_by(restored))
    _hold(same, "it routes differently after restore, or shares memory with the snapshot")
    _overwrite(original.snapshot())
    same = np.array_equal(tuples.routed_by(original), tuples.routed_by(restored))
    _hold(same, "writing to a snapshot changed the partitioner")


def _overwrite(state: tuple[Any, ...]) -> None:
    for field in state:
        if isinstance(field, tuple):
            _overwrite(field)
        else:
            field.fill(1)


def state_survives_bytes(new: New, n_workers: int, tuples: Tuples) -> None:
    """Snapshots and policies are the same after `to_bytes` and `from_bytes`."""
    partitioner = _used(new, n_workers, tuples)
    snapshot = partitioner.snapshot()
    for state in (snapshot, partitioner.merge([snapshot])):
        if state is not None:
            again = from_bytes(type(state), to_bytes(state))
            _hold(_same(again, state), f"{type(state).__name__} differs after bytes and back")
    restored = new(n_workers).restore(from_bytes(type(snapshot), to_bytes(snapshot)))
    same = np.array_equal(tuples.routed_by(partitioner), tuples.routed_by(restored))
    _hold(same, "it routes differently after restoring a snapshot from bytes")


def whole_keys_stay_whole(new: New, n_workers: int, tuples: Tuples) -> None:
    """Unless `splits_keys`, all tuples of a key go to one worker."""
    partitioner = _ready(new, n_workers, tuples)
    if not partitioner.splits_keys:
        pairs = tuples.pairs(tuples.routed_by(partitioner))
        _hold(len(pairs) == len(np.unique(tuples.keys)), "splits_keys is False, but a key went to two workers")


def one_worker_gets_everything(new: New, n_workers: int, tuples: Tuples) -> None:
    """With one worker, every tuple goes to worker 0."""
    _hold(not tuples.routed_by(_ready(new, 1, tuples)).any(), "there is one worker, but a tuple went to another")


def merge_has_no_order(new: New, n_workers: int, tuples: Tuples) -> None:
    """A merge does not depend on the order of snapshots, and a fresh snapshot changes nothing."""
    sources = [_used(new, n_workers, part) for part in tuples.parts(3)]
    snapshots = [source.snapshot() for source in sources]
    merged = sources[0].merge(snapshots)
    for others in (snapshots[::-1], [*snapshots[1:], new(n_workers).snapshot(), snapshots[0]]):
        same = _same(merged, sources[0].merge(others))
        _hold(same, "merge depends on the order of snapshots, or on a fresh one")


def planners_count_together(new: New, n_workers: int, tuples: Tuples) -> None:
    """Planners that observed a part each plan as one that observed everything."""
    alone = new(n_workers)
    if alone.plans_ahead:
        alone.observe(tuples.keys, tuples.times)
        sources = [new(n_workers) for _ in range(3)]
        for source, part in zip(sources, tuples.parts(3), strict=True):
            source.observe(part.keys, part.times)
        together = alone.merge([source.snapshot() for source in sources])
        same = _same(alone.merge([alone.snapshot()]), together)
        _hold(same, "three planners that observed a part each plan differently from one")


def planners_keep_counts_made_after_a_snapshot(new: New, n_workers: int, tuples: Tuples) -> None:
    """Tuples observed between a snapshot and the policy made from it are neither lost nor counted twice."""
    first, second = tuples.parts(2)
    late, immediate = new(n_workers), new(n_workers)
    if late.plans_ahead:
        for source in (late, immediate):
            source.observe(first.keys, first.times)
        snapshot = late.snapshot()
        late.observe(second.keys, second.times)
        policy = late.merge([snapshot])
        late.adopt(policy, snapshot)
        immediate.adopt(policy)
        immediate.observe(second.keys, second.times)
        same = _same(late.merge([late.snapshot()]), immediate.merge([immediate.snapshot()]))
        _hold(same, "tuples observed between a snapshot and its policy were lost or counted twice")


def policies_have_one_type(new: New, n_workers: int, tuples: Tuples) -> None:
    """A merge of fresh snapshots has the type of any other, by which engines read saved policies."""
    first = new(n_workers).merge([new(n_workers).snapshot()])
    later = _used(new, n_workers, tuples)
    policy = later.merge([later.snapshot()])
    what = f"{type(first).__name__}, later {type(policy).__name__}"
    _hold(type(first) is type(policy), f"a merge of fresh snapshots gives a {what}")


def adopting_twice_is_adopting_once(new: New, n_workers: int, tuples: Tuples) -> None:
    """Adopting a policy again changes nothing, and a policy is not written to."""
    sources = [_used(new, n_workers, part) for part in tuples.parts(2)]
    policy = sources[0].merge([source.snapshot() for source in sources])
    if policy is None:
        return
    before = to_bytes(policy)
    once, twice = sources[0], new(n_workers).restore(sources[0].snapshot())
    once.adopt(policy)
    twice.adopt(policy)
    twice.adopt(policy)
    same = np.array_equal(tuples.routed_by(once), tuples.routed_by(twice))
    _hold(same, "adopting a policy twice differs from once")
    _hold(to_bytes(policy) == before, "adopting a policy wrote to it")


def merging_again_changes_nothing(new: New, n_workers: int, tuples: Tuples) -> None:
    """Sources that exchange again without new tuples arrive at the same policy."""
    sources = [_used(new, n_workers, part) for part in tuples.parts(3)]
    policy = sources[0].merge([source.snapshot() for source in sources])
    exchange(sources)
    first = sources[0].merge([source.snapshot() for source in sources])
    agreed = not sources[0].plans_ahead or _same(policy, first)
    _hold(agreed, "planners that observed nothing after a plan make another one")
    exchange(sources)
    again = sources[0].merge([source.snapshot() for source in sources])
    _hold(_same(first, again), "a second exchange without new tuples counted the first one again")


def sources_with_one_policy_route_whole_keys_alike(new: New, n_workers: int, tuples: Tuples) -> None:
    """Unless `splits_keys`, sources with the same policy send a key to the same worker."""
    sources = [_used(new, n_workers, part) for part in tuples.parts(2)]
    if exchange(sources) and not sources[0].splits_keys:
        first, second = (tuples.routed_by(source) for source in sources)
        _hold(np.array_equal(first, second), "two sources with one policy sent a whole key to different workers")


def restore_checks_the_number_of_workers(new: New, n_workers: int, tuples: Tuples) -> None:
    """A snapshot of more workers is refused, or restored for the partitioner's own number of workers."""
    snapshot = _used(new, n_workers + 1, tuples).snapshot()
    try:
        restored = new(n_workers).restore(snapshot)
    except ValueError:
        return
    workers = tuples.routed_by(restored)
    fits = bool(np.all(workers < n_workers))
    _hold(fits, f"restored from a snapshot of {n_workers + 1} workers, it routes to worker {n_workers}")


def memory_stays_within_its_bound(new: New, n_workers: int, tuples: Tuples) -> None:
    """A snapshot takes at most `memory_bound` bytes."""
    partitioner = new(n_workers)
    keys = np.concatenate((tuples.keys, np.arange(1000, dtype=np.uint64)))
    for piece in Tuples(keys).parts(5):
        partitioner.observe(piece.keys)
        exchange([partitioner])
        piece.routed_by(partitioner)
    taken, bound = n_bytes(partitioner.snapshot()), partitioner.memory_bound(len(np.unique(keys)))
    _hold(taken <= bound, f"its state takes {taken} bytes, more than the {bound} declared")


def choices_are_among_distinct_candidates(new: New, n_workers: int, tuples: Tuples) -> None:
    """Candidates are distinct workers, the first is the hash of the key, and tuples go to candidates only."""
    partitioner = _ready(new, n_workers, tuples)
    if type(partitioner).candidates is Partitioner.candidates:
        return
    candidates = partitioner.candidates(tuples.keys)
    in_order = np.sort(candidates, axis=1)
    _hold(bool(np.all((candidates >= 0) & (candidates < n_workers))), f"a candidate is not in [0, {n_workers})")
    _hold(bool(np.all(in_order[:, 1:] != in_order[:, :-1])), "two candidates of a key coincide")
    hashed = Hash(n_workers, seed=partitioner.seed).route(tuples.keys)
    _hold(np.array_equal(candidates[:, 0], hashed), "the first candidate is not the hash of the key")
    workers = tuples.routed_by(partitioner)
    _hold(bool(np.all((candidates == workers[:, None]).any(axis=1))), "a tuple went to none of its candidates")


def planners_begin_with_whole_keys(new: New, n_workers: int, tuples: Tuples) -> None:
    """Before its first plan, a planner splits no key."""
    partitioner = new(n_workers)
    if partitioner.plans_ahead:
        pairs = tuples.pairs(tuples.routed_by(partitioner))
        _hold(len(pairs) == len(np.unique(tuples.keys)), "a planner without a plan split a key")


def table_agrees_with_routing(new: New, n_workers: int, tuples: Tuples) -> None:
    """`table` changes nothing, keeps whole keys whole, sends keys where routing does, and survives JSON."""
    partitioner = _ready(new, n_workers, tuples)
    before = to_bytes(partitioner.snapshot())
    table = partitioner.table(tuples.keys)
    _hold(to_bytes(partitioner.snapshot()) == before, "making a table changed the partitioner")
    _hold(table.n_workers == n_workers, f"its table is for {table.n_workers} workers")
    _hold(partitioner.splits_keys or not table.splits_keys, "splits_keys is False, but its table splits keys")
    if not partitioner.plans_ahead:
        # Tables are made from samples without times, so compare with routing without times.
        used = set(map(tuple, tuples.pairs(partitioner.route(tuples.keys)).tolist()))
        claimed = {(key, worker) for key in table.keys.tolist() for worker in table.shares(key)}
        _hold(claimed <= used, "its table sends a hot key to a worker that routing does not")
    again = RoutingTable.from_json(table.to_json())
    _hold(np.array_equal(again.route(tuples.keys), table.route(tuples.keys)), "its table differs after JSON and back")


# Every law is a function of (make a partitioner for n workers, n workers, tuples) and raises LawBroken.
LAWS: tuple[Law, ...] = (
    each_tuple_gets_one_worker,
    chunking_changes_nothing,
    same_input_gives_same_output,
    input_is_not_written_to,
    restored_partitioner_continues,
    state_survives_bytes,
    whole_keys_stay_whole,
    one_worker_gets_everything,
    merge_has_no_order,
    planners_count_together,
    planners_keep_counts_made_after_a_snapshot,
    policies_have_one_type,
    adopting_twice_is_adopting_once,
    merging_again_changes_nothing,
    sources_with_one_policy_route_whole_keys_alike,
    restore_checks_the_number_of_workers,
    memory_stays_within_its_bound,
    choices_are_among_distinct_candidates,
    planners_begin_with_whole_keys,
    table_agrees_with_routing,
)
