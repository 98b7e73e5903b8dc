"""Partitioner x stream x sources x windows, as an iterator of flat records over time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, Workers, array_of, checked, require, whole
from skewless.coordinate import exchange
from skewless.metrics import counted, exactly, measure, metrics, roughly
from skewless.network import Cooperation, Network
from skewless.partitioner import Partitioner, Window
from skewless.partitioners.baselines import Hash

BATCH = 100_000
SOURCES = 0x736F757263657300  # makes another hash of a partitioner's


@dataclass(frozen=True, eq=False)
class Record:
    """What was known after a batch. The measures are of all tuples so far, or of the last window if there is one."""

    tuples: int  # so far
    imbalance: float  # PKG's I(t)
    mean_imbalance: float  # of all records so far: PKG's average imbalance
    imbalance_ratio: float
    keys: int
    fragments: int
    cardinality_imbalance: float
    key_split_ratio: float
    syncs: int  # exchanges between sources, or plans made, so far
    ns_per_tuple: float  # deciding (and planning), in this batch
    load: NDArray[np.int64]


def simulate(
    partitioner: Partitioner[Any, Any],
    stream: Keys | Iterable[Keys],
    *,
    sources: int = 1,
    sync_every: int | Network | None = 1,
    split: Literal["uniform", "by_key"] | Workers = "uniform",
    window: Window | None = None,
    cardinality: Literal["exact", "hll"] = "exact",
    batch: int = BATCH,
) -> Iterator[Record]:
    """Route a stream from several sources and measure after each batch.

    partitioner: of the first source, which is used, and changed; the others begin with what it can tell them.
    stream: an array, cut into pieces of `batch` tuples, or the batches one by one: memory is bounded by a batch.
    sync_every: batches between two exchanges (snapshots, merge, adopt). These are PKG's three ways to know the load:
        None: never, each source knows what it sent itself (L);
        k: after every k-th batch each learns the truth (LP), or whatever policy its kind shares;
        0: always, all sources being one (G);
        a Network: by messages that may be late or lost, as often as Dalton's protocol finds right.
        A planner (`plans_ahead`) observes every batch before it routes it, and plans with the first, the k + 1st, ...
        of them; with None it follows what it adopted before.
    split: how tuples come to sources: in turn, by the hash of their key, or the source of each tuple.
    window: measure the last window.size tuples, after each slide, instead of all so far; a slide is then a batch.
    cardinality: "exact" remembers each (key, worker) pair; "hll" needs 4 KB a worker, however long the stream.

    >>> import skewless
    >>> keys = skewless.streams.zipf(300_000, keys=10_000, exponent=1.0)
    >>> for r in simulate(skewless.partitioner("pkg", 8), keys, sources=5, sync_every=None):
    ...     print(r.tuples, r.imbalance, r.fragments)
    100000 5.0 12952
    200000 6.0 16357
    300000 5.0 17806
    """
    whole("sources", sources, 1)
    whole("batch", batch, 1)
    if sync_every is not None and not isinstance(sync_every, Network):
        whole("sync_every", sync_every, 0)
    require(cardinality in ("exact", "hll"), f'cardinality is "exact" or "hll", not {cardinality!r}')
    require(window is None or cardinality == "exact", "a window is measured exactly: leave cardinality out")
    if isinstance(stream, np.ndarray):
        checked(stream)
    if isinstance(split, str):
        require(split in ("uniform", "by_key"), f'split is "uniform", "by_key" or an array, not {split!r}')
    elif not isinstance(stream, np.ndarray):
        raise TypeError("a split given as an array goes with a stream given as an array")
    else:
        array_of("the sources of a split", split, np.int32, "partitioner('hash', sources).route gives such an array")
        require(split.size == len(stream), f"every tuple has a source: {len(stream)} tuples, {split.size} sources")
        within = split.size == 0 or (int(split.min()) >= 0 and int(split.max()) < sources)
        require(within, f"sources are numbered from 0 to {sources - 1}")
    batches = _slides(stream, window.slide) if window else _pieces(stream, batch)
    return _records(partitioner, batches, sources, sync_every, split, window, cardinality)


def _records(
    partitioner: Partitioner[Any, Any],
    batches: Iterable[Keys],
    sources: int,
    sync_every: int | Network | None,
    split: Literal["uniform", "by_key"] | Workers,
    window: Window | None,
    cardinality: Literal["exact", "hll"],
) -> Iterator[Record]:
    learners = [partitioner, *_others(partitioner, (1 if sync_every == 0 else sources) - 1)]
    seen = (exactly if cardinality == "exact" else roughly)(partitioner.n_workers)
    slides: deque[tuple[Keys, Workers]] = deque(maxlen=window.slides if window else 0)
    talk = Cooperation(sync_every, learners) if isinstance(sync_every, Network) else None
    every = max(sync_every, 1) if isinstance(sync_every, int) else 0
    tuples, syncs, imbalances = 0, 0, 0.0
    for number, keys in enumerate(batches):
        parts = _parts(keys, tuples, len(learners), split, partitioner.seed)
        times = np.arange(tuples, tuples + keys.size, dtype=np.int64)
        workers = np.empty(keys.size, np.int32)
        at_work = learners if talk is None else talk.at_work(tuples)
        began = perf_counter()
        if partitioner.plans_ahead and (every or talk):
            for learner, part in zip(at_work, parts, strict=True):
                learner.observe(keys[part], times[part])
            syncs += exchange(learners) if every and number % every == 0 else 0
            if talk:
                talk.until(tuples)
        for learner, part in zip(at_work, parts, strict=True):
            workers[part] = learner.route(keys[part], times[part])
        if not partitioner.plans_ahead and len(learners) > 1 and every and (number + 1) % every == 0:
            syncs += exchange(learners)
        if talk:
            talk.until(tuples + keys.size)
            syncs = talk.merges
        seconds = perf_counter() - began
        tuples += keys.size
        if window:
            slides.append((keys, workers))
            last_keys, last_workers = (np.concatenate(part)[-window.size :] for part in zip(*slides, strict=True))
            now = measure(last_keys, last_workers, partitioner.n_workers)
        else:
            seen = counted(seen, keys, workers)
            now = metrics(seen)
        imbalances += now.imbalance
        yield Record(
            tuples,
            now.imbalance,
            imbalances / (number + 1),
            now.imbalance_ratio,
            now.keys,
            now.fragments,
            now.cardinality_imbalance,
            now.key_split_ratio,
            syncs,
            1e9 * seconds / max(keys.size, 1),
            now.load,
        )


def _others(partitioner: Partitioner[Any, Any], number: int) -> list[Partitioner[Any, Any]]:
    """More sources of the same kind, which have seen nothing, but know what the first has to tell."""
    others = [deepcopy(partitioner).restore(partitioner.fresh()) for _ in range(number)]
    policy = partitioner.merge([partitioner.snapshot()])
    for source in [partitioner, *others] if others and policy is not None else []:
        source.adopt(policy)
    return others


def _pieces(stream: Keys | Iterable[Keys], size: int) -> Iterator[Keys]:
    for piece in [stream] if isinstance(stream, np.ndarray) else stream:
        checked(piece)
        for start in range(0, piece.size, size):
            yield piece[start : start + size]


def _slides(stream: Keys | Iterable[Keys], size: int) -> Iterator[Keys]:
    """Pieces of exactly this size, whatever the batches are; the last may be shorter."""
    held: list[Keys] = []
    for piece in _pieces(stream, size):
        held.append(piece)
        if sum(part.size for part in held) >= size:
            together = np.concatenate(held)
            yield together[:size]
            held = [together[size:]]
    if sum(part.size for part in held):
        yield np.concatenate(held)


def _parts(
    keys: Keys, start: int, sources: int, split: Literal["uniform", "by_key"] | Workers, seed: int
) -> list[slice | NDArray[np.int64]]:
    """Which tuples of a batch, the first of which is number `start` of the stream, come from which source."""
    if sources == 1:
        return [slice(None)]
    if isinstance(split, str) and split == "uniform":
        return [slice((source - start) % sources, None, sources) for source in range(sources)]
    if isinstance(split, str):
        # Not by the hash that gives a key its first candidate: sources would then each have workers of their own.
        source = Hash(sources, seed=seed ^ SOURCES).route(keys)
    else:
        source = split[start : start + keys.size]
    return [np.flatnonzero(source == number) for number in range(sources)]
