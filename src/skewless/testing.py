"""The laws of the contract, for our partitioners and for yours: `check_partitioner(YourClass)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from skewless import streams
from skewless.arrays import Keys, from_bytes, n_bytes, to_bytes
from skewless.coordinate import exchange
from skewless.partitioner import Partitioner
from skewless.partitioners.baselines import Hash
from skewless.table import RoutingTable

AnyPartitioner: TypeAlias = Partitioner[Any, Any]
New: TypeAlias = Callable[[int], AnyPartitioner]  # n_workers -> a fresh partitioner, always with the same parameters
Law: TypeAlias = Callable[[New, int, Keys], None]


class LawBroken(AssertionError):
    """A partitioner does not keep the contract; the message says what it did."""


def check_partitioner(cls: type[AnyPartitioner], **params: Any) -> None:
    """Hold a class to every law, on a range of streams and numbers of workers; raises LawBroken at the first breach.

    >>> from skewless.partitioners.pkg import Pkg
    >>> check_partitioner(Pkg, choices=3)
    """
    tries = (
        (4, np.empty(0, np.uint64)),
        (3, np.array([2**64 - 1], np.uint64)),
        (5, streams.uniform(500, keys=100)),
        (16, streams.zipf(1500, keys=300, exponent=1.2)),
        (64, streams.drifting(1500, keys=200, exponent=1.5, every=400)),
        (7, np.zeros(300, np.uint64)),
    )
    for law in LAWS:
        for n_workers, keys in tries:
            try:
                law(lambda n: cls(n, **params), n_workers, keys)
            except LawBroken as broken:
                raise LawBroken(f"{cls.__name__}, {n_workers} workers, {keys.size} tuples: {broken}") from None


def _hold(claim: bool, otherwise: str) -> None:
    if not claim:
        raise LawBroken(otherwise)


def _ready(new: New, n_workers: int, keys: Keys) -> AnyPartitioner:
    """A partitioner that may route: a planner has planned with the keys."""
    partitioner = new(n_workers)
    if partitioner.plans_ahead:
        partitioner.observe(keys)
        exchange([partitioner])
    return partitioner


def _used(new: New, n_workers: int, keys: Keys) -> AnyPartitioner:
    """A partitioner that has routed the keys."""
    partitioner = _ready(new, n_workers, keys)
    partitioner.route(keys)
    return partitioner


def each_tuple_gets_one_worker(new: New, n_workers: int, keys: Keys) -> None:
    workers = _ready(new, n_workers, keys).route(keys)
    _hold(workers.dtype == np.int32 and workers.shape == keys.shape, f"{keys.size} keys got {workers.shape} workers")
    _hold(bool(np.all((workers >= 0) & (workers < n_workers))), f"a worker is not in [0, {n_workers})")


def chunking_changes_nothing(new: New, n_workers: int, keys: Keys) -> None:
    whole = _ready(new, n_workers, keys).route(keys)
    cuts = sorted({0, 1, keys.size // 7, keys.size // 2, keys.size // 2 + 1, keys.size})
    pieces = _ready(new, n_workers, keys)
    parts = [pieces.route(piece) for piece in np.split(keys, [cut for cut in cuts if cut <= keys.size])]
    _hold(np.array_equal(whole, np.concatenate(parts)), "routing in pieces differs from routing at once")


def same_input_gives_same_output(new: New, n_workers: int, keys: Keys) -> None:
    first, second = (_ready(new, n_workers, keys).route(keys) for _ in range(2))
    _hold(np.array_equal(first, second), "two equal partitioners decided differently")


def input_is_not_written_to(new: New, n_workers: int, keys: Keys) -> None:
    given = keys.copy()
    given.flags.writeable = False
    partitioner = _ready(new, n_workers, given)
    _hold(np.array_equal(partitioner.route(given), _ready(new, n_workers, keys).route(keys)), "read-only keys differ")
    given = keys.copy()
    partitioner.route(given)
    partitioner.observe(given)
    _hold(np.array_equal(given, keys), "the keys were changed")


def a_restored_one_continues(new: New, n_workers: int, keys: Keys) -> None:
    half = keys.size // 2
    original = _ready(new, n_workers, keys)
    original.route(keys[:half])
    snapshot = original.snapshot()
    restored = new(n_workers).restore(snapshot)
    _overwrite(snapshot)
    rest = original.route(keys[half:])
    _hold(np.array_equal(rest, restored.route(keys[half:])), "it goes on differently after restore, or shares memory")
    _overwrite(original.snapshot())
    _hold(np.array_equal(original.route(keys), restored.route(keys)), "writing to a snapshot changed the partitioner")


def _overwrite(state: tuple[Any, ...]) -> None:
    for field in state:
        if isinstance(field, tuple):
            _overwrite(field)
        else:
            field.fill(1)


def state_survives_bytes(new: New, n_workers: int, keys: Keys) -> None:
    partitioner = _used(new, n_workers, keys)
    for state in (partitioner.snapshot(), partitioner.merge([partitioner.snapshot()])):
        if state is not None:
            again = from_bytes(type(state), to_bytes(state))
            _hold(to_bytes(again) == to_bytes(state), f"{type(state).__name__} differs after bytes and back")
    restored = new(n_workers).restore(from_bytes(type(partitioner.snapshot()), to_bytes(partitioner.snapshot())))
    _hold(np.array_equal(partitioner.route(keys), restored.route(keys)), "a snapshot from bytes goes on differently")


def whole_keys_stay_whole(new: New, n_workers: int, keys: Keys) -> None:
    partitioner = _ready(new, n_workers, keys)
    if not partitioner.splits_keys:
        pairs = np.unique(np.column_stack((keys, partitioner.route(keys).astype(np.uint64))), axis=0)
        _hold(len(pairs) == len(np.unique(keys)), "splits_keys is False, yet a key went to two workers")


def one_worker_gets_everything(new: New, n_workers: int, keys: Keys) -> None:
    _hold(not _ready(new, 1, keys).route(keys).any(), "with one worker, a tuple went elsewhere")


def merge_has_no_order(new: New, n_workers: int, keys: Keys) -> None:
    sources = [_used(new, n_workers, part) for part in np.array_split(keys, 3)]
    snapshots = [source.snapshot() for source in sources]
    merged = sources[0].merge(snapshots)
    for others in (snapshots[::-1], [*snapshots[1:], new(n_workers).snapshot(), snapshots[0]]):
        again = sources[0].merge(others)
        same = merged is None if again is None else merged is not None and to_bytes(merged) == to_bytes(again)
        _hold(same, "merge depends on the order of snapshots, or on one of a source that has seen nothing")


def adopting_twice_is_adopting_once(new: New, n_workers: int, keys: Keys) -> None:
    sources = [_used(new, n_workers, part) for part in np.array_split(keys, 2)]
    policy = sources[0].merge([source.snapshot() for source in sources])
    if policy is None:
        return
    before = to_bytes(policy)
    once, twice = sources[0], new(n_workers).restore(sources[0].snapshot())
    once.adopt(policy)
    twice.adopt(policy)
    twice.adopt(policy)
    _hold(np.array_equal(once.route(keys), twice.route(keys)), "adopting a policy twice differs from once")
    _hold(to_bytes(policy) == before, "the policy was changed by those who adopted it")


def memory_stays_within_its_bound(new: New, n_workers: int, keys: Keys) -> None:
    partitioner = new(n_workers)
    for piece in np.array_split(np.concatenate((keys, np.arange(1000, dtype=np.uint64))), 5):
        partitioner.observe(piece)
        exchange([partitioner])
        partitioner.route(piece)
    taken, bound = n_bytes(partitioner.snapshot()), partitioner.memory_bound(len(np.unique(keys)) + 1000)
    _hold(taken <= bound, f"its state takes {taken} bytes, more than the {bound} declared")


def choices_are_among_distinct_candidates(new: New, n_workers: int, keys: Keys) -> None:
    partitioner = _ready(new, n_workers, keys)
    try:
        candidates = partitioner.candidates(keys)
    except TypeError:
        return
    in_order = np.sort(candidates, axis=1)
    _hold(bool(np.all((candidates >= 0) & (candidates < n_workers))), f"a candidate is not in [0, {n_workers})")
    _hold(bool(np.all(in_order[:, 1:] != in_order[:, :-1])), "two candidates of a key coincide")
    hashed = Hash(n_workers, seed=partitioner.seed).route(keys)
    _hold(np.array_equal(candidates[:, 0], hashed), "the first candidate is not the hash of the key")
    workers = partitioner.route(keys)
    _hold(bool(np.all((candidates == workers[:, None]).any(axis=1))), "a tuple went to none of its candidates")


def planners_begin_like_hash(new: New, n_workers: int, keys: Keys) -> None:
    partitioner = new(n_workers)
    if partitioner.plans_ahead:
        pairs = np.unique(np.column_stack((keys, partitioner.route(keys).astype(np.uint64))), axis=0)
        _hold(len(pairs) == len(np.unique(keys)), "a planner without a plan split a key")


def its_table_does_likewise(new: New, n_workers: int, keys: Keys) -> None:
    partitioner = _ready(new, n_workers, keys)
    before = to_bytes(partitioner.snapshot())
    table = partitioner.table(keys)
    _hold(to_bytes(partitioner.snapshot()) == before, "making a table changed the partitioner")
    _hold(table.n_workers == n_workers, f"its table is for {table.n_workers} workers")
    _hold(partitioner.splits_keys or not table.splits_keys, "it keeps keys whole, but its table splits them")
    again = RoutingTable.from_json(table.to_json())
    _hold(np.array_equal(again.route(keys), table.route(keys)), "its table differs after JSON and back")


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
    adopting_twice_is_adopting_once,
    memory_stays_within_its_bound,
    choices_are_among_distinct_candidates,
    planners_begin_like_hash,
    its_table_does_likewise,
)
