"""The laws of the contract, for our partitioners and for yours: `check_partitioner(YourClass)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skewless import streams
from skewless.arrays import Keys, Times, Workers, from_bytes, n_bytes, to_bytes
from skewless.coordinate import exchange
from skewless.partitioner import Partitioner
from skewless.partitioners.baselines import Hash
from skewless.table import RoutingTable

AnyPartitioner: TypeAlias = Partitioner[Any, Any]
New: TypeAlias = Callable[[int], AnyPartitioner]  # n_workers -> a fresh partitioner, always with the same parameters


@dataclass(frozen=True, eq=False)
class Tuples:
    """Keys, with times or without."""

    keys: Keys
    times: Times | None = None

    def part(self, which: slice) -> Tuples:
        return Tuples(self.keys[which], None if self.times is None else self.times[which])

    def parts(self, number: int) -> list[Tuples]:
        cuts = [self.keys.size * i // number for i in range(number + 1)]
        return [self.part(slice(start, end)) for start, end in pairwise(cuts)]

    def routed_by(self, partitioner: AnyPartitioner) -> Workers:
        return partitioner.route(self.keys, self.times)

    def pairs(self, workers: Workers) -> NDArray[np.uint64]:
        """Each (key, worker) that occurs."""
        return np.unique(np.column_stack((self.keys, workers.astype(np.uint64))), axis=0)


Law: TypeAlias = Callable[[New, int, Tuples], None]


class LawBroken(AssertionError):
    """A partitioner does not keep the contract; the message says what it did."""


def check_partitioner(cls: type[AnyPartitioner], **params: Any) -> None:
    """Hold a class to every law, on a range of streams and numbers of workers; raises LawBroken at the first breach.

    >>> from skewless.partitioners.pkg import Pkg
    >>> check_partitioner(Pkg, choices=3)
    """
    late = np.array([-5, 3, 0, 400, 399, 10_000], np.int64).repeat(50)
    tries = (
        (4, Tuples(np.empty(0, np.uint64))),
        (3, Tuples(np.array([2**64 - 1], np.uint64))),
        (5, Tuples(streams.uniform(500, keys=100))),
        (16, Tuples(streams.zipf(1500, keys=300, exponent=1.2))),
        (64, Tuples(streams.drifting(1500, keys=200, exponent=1.5, every=400))),
        (7, Tuples(np.zeros(300, np.uint64))),
        (6, Tuples(streams.zipf(300, keys=50, exponent=1.0), late)),
    )
    for law in LAWS:
        for n_workers, tuples in tries:
            try:
                law(lambda n: cls(n, **params), n_workers, tuples)
            except LawBroken as broken:
                given = f"{cls.__name__}, {n_workers} workers, {tuples.keys.size} tuples"
                raise LawBroken(f"{given}: {broken}") from None


def _hold(claim: bool, otherwise: str) -> None:
    if not claim:
        raise LawBroken(otherwise)


def _ready(new: New, n_workers: int, tuples: Tuples) -> AnyPartitioner:
    """A partitioner that may route: a planner has planned with the tuples."""
    partitioner = new(n_workers)
    if partitioner.plans_ahead:
        partitioner.observe(tuples.keys, tuples.times)
        exchange([partitioner])
    return partitioner


def _used(new: New, n_workers: int, tuples: Tuples) -> AnyPartitioner:
    """A partitioner that has routed the tuples."""
    partitioner = _ready(new, n_workers, tuples)
    tuples.routed_by(partitioner)
    return partitioner


def _same(policy: Any, other: Any) -> bool:
    return other is None if policy is None else other is not None and to_bytes(policy) == to_bytes(other)


def each_tuple_gets_one_worker(new: New, n_workers: int, tuples: Tuples) -> None:
    workers = tuples.routed_by(_ready(new, n_workers, tuples))
    fits = workers.dtype == np.int32 and workers.shape == tuples.keys.shape
    _hold(fits, f"{tuples.keys.size} keys got {workers.shape} workers of {workers.dtype}")
    _hold(bool(np.all((workers >= 0) & (workers < n_workers))), f"a worker is not in [0, {n_workers})")


def chunking_changes_nothing(new: New, n_workers: int, tuples: Tuples) -> None:
    whole = tuples.routed_by(_ready(new, n_workers, tuples))
    pieces, size = _ready(new, n_workers, tuples), tuples.keys.size
    cuts = sorted({0, min(1, size), size // 7, size // 2, size})
    parts = [tuples.part(slice(*cut)).routed_by(pieces) for cut in pairwise(cuts)]
    together = np.concatenate(parts) if parts else whole
    _hold(np.array_equal(whole, together), "routing in pieces differs from routing at once")


def same_input_gives_same_output(new: New, n_workers: int, tuples: Tuples) -> None:
    first, second = (tuples.routed_by(_ready(new, n_workers, tuples)) for _ in range(2))
    _hold(np.array_equal(first, second), "two equal partitioners decided differently")


def input_is_not_written_to(new: New, n_workers: int, tuples: Tuples) -> None:
    given = Tuples(tuples.keys.copy(), None if tuples.times is None else tuples.times.copy())
    partitioner = _ready(new, n_workers, given)
    expected = given.routed_by(partitioner)
    partitioner.observe(given.keys, given.times)
    _hold(np.array_equal(given.keys, tuples.keys), "the keys were changed")
    same = given.times is None or tuples.times is None or np.array_equal(given.times, tuples.times)
    _hold(same, "the times were changed")
    given.keys.flags.writeable = False
    _hold(np.array_equal(given.routed_by(_ready(new, n_workers, given)), expected), "read-only keys went elsewhere")


def a_restored_one_continues(new: New, n_workers: int, tuples: Tuples) -> None:
    before, after = tuples.parts(2)
    original = _ready(new, n_workers, tuples)
    before.routed_by(original)
    snapshot = original.snapshot()
    restored = new(n_workers).restore(snapshot)
    _overwrite(snapshot)
    same = np.array_equal(after.routed_by(original), after.routed_by(restored))
    _hold(same, "it goes on differently after restore, or shares memory with the snapshot")
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
    partitioner = _used(new, n_workers, tuples)
    snapshot = partitioner.snapshot()
    for state in (snapshot, partitioner.merge([snapshot])):
        if state is not None:
            again = from_bytes(type(state), to_bytes(state))
            _hold(_same(again, state), f"{type(state).__name__} differs after bytes and back")
    restored = new(n_workers).restore(from_bytes(type(snapshot), to_bytes(snapshot)))
    same = np.array_equal(tuples.routed_by(partitioner), tuples.routed_by(restored))
    _hold(same, "a snapshot from bytes goes on differently")


def whole_keys_stay_whole(new: New, n_workers: int, tuples: Tuples) -> None:
    partitioner = _ready(new, n_workers, tuples)
    if not partitioner.splits_keys:
        pairs = tuples.pairs(tuples.routed_by(partitioner))
        _hold(len(pairs) == len(np.unique(tuples.keys)), "splits_keys is False, yet a key went to two workers")


def one_worker_gets_everything(new: New, n_workers: int, tuples: Tuples) -> None:
    _hold(not tuples.routed_by(_ready(new, 1, tuples)).any(), "with one worker, a tuple went elsewhere")


def merge_has_no_order(new: New, n_workers: int, tuples: Tuples) -> None:
    sources = [_used(new, n_workers, part) for part in tuples.parts(3)]
    snapshots = [source.snapshot() for source in sources]
    merged = sources[0].merge(snapshots)
    for others in (snapshots[::-1], [*snapshots[1:], new(n_workers).snapshot(), snapshots[0]]):
        same = _same(merged, sources[0].merge(others))
        _hold(same, "merge depends on the order of snapshots, or on one of a source that has seen nothing")


def planners_count_together(new: New, n_workers: int, tuples: Tuples) -> None:
    alone = new(n_workers)
    if alone.plans_ahead:
        alone.observe(tuples.keys, tuples.times)
        sources = [new(n_workers) for _ in range(3)]
        for source, part in zip(sources, tuples.parts(3), strict=True):
            source.observe(part.keys, part.times)
        together = alone.merge([source.snapshot() for source in sources])
        same = _same(alone.merge([alone.snapshot()]), together)
        _hold(same, "three that counted a part each plan differently from one")


def planners_keep_what_came_after_they_told(new: New, n_workers: int, tuples: Tuples) -> None:
    first, second = tuples.parts(2)
    late, prompt = new(n_workers), new(n_workers)
    if late.plans_ahead:
        for source in (late, prompt):
            source.observe(first.keys, first.times)
        told = late.snapshot()
        late.observe(second.keys, second.times)
        policy = late.merge([told])
        late.adopt(policy, told)
        prompt.adopt(policy)
        prompt.observe(second.keys, second.times)
        same = _same(late.merge([late.snapshot()]), prompt.merge([prompt.snapshot()]))
        _hold(same, "what a planner saw between its message and the answer was lost or counted twice")


def adopting_twice_is_adopting_once(new: New, n_workers: int, tuples: Tuples) -> None:
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
    _hold(to_bytes(policy) == before, "the policy was changed by those who adopted it")


def telling_it_again_is_no_news(new: New, n_workers: int, tuples: Tuples) -> None:
    sources = [_used(new, n_workers, part) for part in tuples.parts(3)]
    policy = sources[0].merge([source.snapshot() for source in sources])
    exchange(sources)
    first = sources[0].merge([source.snapshot() for source in sources])
    agreed = not sources[0].plans_ahead or _same(policy, first)
    _hold(agreed, "planners that have adopted a plan, and seen nothing since, make another")
    exchange(sources)
    again = sources[0].merge([source.snapshot() for source in sources])
    _hold(_same(first, again), "what sources had told each other counted twice when they told it again")


def sources_that_agree_place_whole_keys_alike(new: New, n_workers: int, tuples: Tuples) -> None:
    sources = [_used(new, n_workers, part) for part in tuples.parts(2)]
    if exchange(sources) and not sources[0].splits_keys:
        one, other = (tuples.routed_by(source) for source in sources)
        _hold(np.array_equal(one, other), "two sources under one policy sent a whole key to different workers")


def restore_refuses_others(new: New, n_workers: int, tuples: Tuples) -> None:
    snapshot = _used(new, n_workers + 1, tuples).snapshot()
    try:
        restored = new(n_workers).restore(snapshot)
    except ValueError:
        return
    workers = tuples.routed_by(restored)
    _hold(
        bool(np.all(workers < n_workers)), f"restored from {n_workers + 1} workers, it sends tuples to the last of them"
    )


def memory_stays_within_its_bound(new: New, n_workers: int, tuples: Tuples) -> None:
    partitioner = new(n_workers)
    keys = np.concatenate((tuples.keys, np.arange(1000, dtype=np.uint64)))
    for piece in Tuples(keys).parts(5):
        partitioner.observe(piece.keys)
        exchange([partitioner])
        piece.routed_by(partitioner)
    taken, bound = n_bytes(partitioner.snapshot()), partitioner.memory_bound(len(np.unique(keys)))
    _hold(taken <= bound, f"its state takes {taken} bytes, more than the {bound} declared")


def choices_are_among_distinct_candidates(new: New, n_workers: int, tuples: Tuples) -> None:
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
    partitioner = new(n_workers)
    if partitioner.plans_ahead:
        pairs = tuples.pairs(tuples.routed_by(partitioner))
        _hold(len(pairs) == len(np.unique(tuples.keys)), "a planner without a plan split a key")


def its_table_does_likewise(new: New, n_workers: int, tuples: Tuples) -> None:
    partitioner = _ready(new, n_workers, tuples)
    before = to_bytes(partitioner.snapshot())
    table = partitioner.table(tuples.keys)
    _hold(to_bytes(partitioner.snapshot()) == before, "making a table changed the partitioner")
    _hold(table.n_workers == n_workers, f"its table is for {table.n_workers} workers")
    _hold(partitioner.splits_keys or not table.splits_keys, "it keeps keys whole, but its table splits them")
    if not partitioner.plans_ahead:
        # A sample has no times: what is distilled is what the partitioner does without them.
        used = set(map(tuple, tuples.pairs(partitioner.route(tuples.keys)).tolist()))
        claimed = {(key, worker) for key in table.keys.tolist() for worker in table.places(key)}
        _hold(claimed <= used, "its table sends a hot key where it did not send it itself")
    again = RoutingTable.from_json(table.to_json())
    _hold(np.array_equal(again.route(tuples.keys), table.route(tuples.keys)), "its table differs after JSON and back")


LAWS: tuple[Law, ...] = (
    each_tuple_gets_one_worker,
    chunking_changes_nothing,
    same_input_gives_same_output,
    input_is_not_written_to,
    a_restored_one_continues,
    state_survives_bytes,
    whole_keys_stay_whole,
    one_worker_gets_everything,
    merge_has_no_order,
    planners_count_together,
    planners_keep_what_came_after_they_told,
    adopting_twice_is_adopting_once,
    telling_it_again_is_no_news,
    sources_that_agree_place_whole_keys_alike,
    restore_refuses_others,
    memory_stays_within_its_bound,
    choices_are_among_distinct_candidates,
    planners_begin_with_whole_keys,
    its_table_does_likewise,
)
