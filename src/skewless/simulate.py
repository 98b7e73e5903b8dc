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

from skewless.arrays import Keys, Workers, require
from skewless.coordinate import exchange
from skewless.metrics import counted, exactly, measure, metrics, roughly
from skewless.partitioner import Partitioner, Window
from skewless.partitioners.baselines import Hash

BATCH = 100_000


@dataclass(frozen=True)
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
    sync_every: int | None = 1,
    split: Literal["uniform", "by_key"] | Workers = "uniform",
    window: Window | None = None,
    cardinality: Literal["exact", "hll"] = "exact",
    batch: int = BATCH,
) -> Iterator[Record]:
    """Route a stream from several sources and measure after each batch.

    partitioner: of the first source; the others begin as copies of it. It is used, and changed.
    stream: an array, cut into pieces of `batch` tuples, or the batches one by one: memory is bounded by a batch.
    sync_every: batches between two exchanges (snapshots, merge, adopt). These are PKG's three ways to know the load:
        None: never, each source knows what it sent itself (L);
        k: every k batches each learns the truth (LP), or whatever policy its kind shares;
        0: always, all sources being one (G).
        A planner (`plans_ahead`) observes each batch and plans with every k-th of them before it routes it; with
        None it follows what it adopted before.
    split: how tuples come to sources: in turn, by the hash of their key, or the source of each tuple.
    window: measure the tuples of the last window.size tuples, after each slide, instead of all so far.
    cardinality: "exact" remembers each (key, worker) pair; "hll" needs 4 KB a worker, however long the stream.

    >>> import skewless
    >>> keys = skewless.streams.zipf(300_000, keys=10_000, exponent=1.0)
    >>> for r in simulate(skewless.partitioner("pkg", 8), keys, sources=5, sync_every=None):
    ...     print(r.tuples, r.imbalance, r.fragments)
    100000 5.0 12952
    200000 6.0 16357
    300000 5.0 17806
    """
    require(sources >= 1, f"sources is at least 1, not {sources}")
    require(batch >= 1, f"a batch has at least 1 tuple, not {batch}")
    require(sync_every is None or sync_every >= 0, f"sync_every is None, 0 or more, not {sync_every}")
    require(cardinality in ("exact", "hll"), f'cardinality is "exact" or "hll", not {cardinality!r}')
    if isinstance(split, str):
        require(split in ("uniform", "by_key"), f'split is "uniform", "by_key" or an array, not {split!r}')
    elif not isinstance(stream, np.ndarray):
        raise TypeError("a split given as an array goes with a stream given as an array")
    else:
        require(split.size == len(stream), f"every tuple has a source: {len(stream)} tuples, {split.size} sources")
        within = split.size == 0 or (int(split.min()) >= 0 and int(split.max()) < sources)
        require(within, f"sources are numbered from 0 to {sources - 1}")
    batches = _pieces(stream, window.slide if window else batch)
    return _records(partitioner, batches, sources, sync_every, split, window, cardinality)


def _records(
    partitioner: Partitioner[Any, Any],
    batches: Iterable[Keys],
    sources: int,
    sync_every: int | None,
    split: Literal["uniform", "by_key"] | Workers,
    window: Window | None,
    cardinality: Literal["exact", "hll"],
) -> Iterator[Record]:
    learners = [partitioner, *(deepcopy(partitioner) for _ in range(1, 1 if sync_every == 0 else sources))]
    seen = (exactly if cardinality == "exact" else roughly)(partitioner.n_workers)
    slides: deque[tuple[Keys, Workers]] = deque(maxlen=window.slides if window else 0)
    tuples, syncs, imbalances = 0, 0, 0.0
    for number, keys in enumerate(batches):
        parts = _parts(keys, tuples, len(learners), split)
        times = np.arange(tuples, tuples + keys.size, dtype=np.int64)
        due = sync_every is not None and number % max(sync_every, 1) == 0
        workers = np.empty(keys.size, np.int32)
        began = perf_counter()
        if partitioner.plans_ahead and due:
            for learner, part in zip(learners, parts, strict=True):
                learner.observe(keys[part], times[part])
            syncs += exchange(learners)
        for learner, part in zip(learners, parts, strict=True):
            workers[part] = learner.route(keys[part], times[part])
        if due and len(learners) > 1 and not partitioner.plans_ahead:
            syncs += exchange(learners)
        seconds = perf_counter() - began
        tuples += keys.size
        if window:
            slides.append((keys, workers))
            last_keys, last_workers = zip(*slides, strict=True)
            now = measure(np.concatenate(last_keys), np.concatenate(last_workers), partitioner.n_workers)
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


def _pieces(stream: Keys | Iterable[Keys], size: int) -> Iterator[Keys]:
    for piece in [stream] if isinstance(stream, np.ndarray) else stream:
        for start in range(0, piece.size, size):
            yield piece[start : start + size]


def _parts(
    keys: Keys, start: int, sources: int, split: Literal["uniform", "by_key"] | Workers
) -> list[slice | NDArray[np.int64]]:
    """Which tuples of a batch, the first of which is number `start` of the stream, come from which source."""
    if isinstance(split, str) and split == "uniform":
        return [slice((source - start) % sources, None, sources) for source in range(sources)]
    source = Hash(sources).route(keys) if isinstance(split, str) else split[start : start + keys.size]
    return [np.flatnonzero(source == number) for number in range(sources)]
