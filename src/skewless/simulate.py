"""Simulates a partitioner on a stream with one or several sources and yields a record of measures per batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import Keys, Workers, array_of, check_numbers, checked
from skewless.cooperation.network import Cooperation, Network
from skewless.cooperation.protocol import exchange
from skewless.metrics import counted, estimated_measurement, exact_measurement, measure, metrics
from skewless.partitioner import Partitioner, Window
from skewless.partitioners.baselines import Hash

BATCH = 100_000  # tuples between two records
SOURCES = 0x736F757263657300  # changes the seed of the hash that assigns keys to sources


@dataclass(frozen=True, eq=False)
class Record:
    """The measures after a batch: of all tuples so far, or of the last window if `simulate` was given one.

    >>> import skewless
    >>> keys = skewless.streams.zipf(1000, keys=100, exponent=1.0)
    >>> (record,) = simulate(skewless.partitioner("hash", 4), keys)
    >>> record.tuples, record.keys, record.fragments, int(record.load.sum())
    (1000, 97, 97, 1000)
    """

    tuples: int  # routed so far
    imbalance: float  # largest load minus the mean: PKG's I(t)
    mean_imbalance: float  # mean over all records so far: PKG's average imbalance
    imbalance_ratio: float  # largest load over the mean
    keys: int  # distinct keys
    fragments: int  # distinct (key, worker) pairs
    cardinality_imbalance: float  # most keys of a worker minus the mean
    key_split_ratio: float  # fragments per key
    syncs: int  # exchanges between sources, or plans made, so far
    ns_per_tuple: float  # time to route (and plan) this batch
    load: NDArray[np.int64]  # tuples of each worker


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
    """Routes a stream from one or several sources and yields a record after each batch.

    partitioner: used, and changed, by the first source; the other sources start from the policy it shares.
    stream: an array of keys, or an iterable of such arrays; either is cut into batches.
    sources: the number of sources.
    sync_every: how often the sources exchange what they have learned (snapshot, merge, adopt). The PKG paper compares
        the first three ways:
        None: never; each source only knows what it sent itself (local, L);
        k: after every k-th batch all sources adopt the merged policy (local with probing, LP);
        0: always; the sources act as one (global, G);
        a Network: by messages that may be late or lost, at intervals set by Dalton's protocol.
        A planner (`plans_ahead`) observes every batch before it routes it and plans with batches 1, k + 1, 2 k + 1
        and so on; with None it never plans and follows the policy that it adopted before.
    split: how tuples are assigned to sources: "uniform" in turn, "by_key" by a hash of the key, or an array with the
        source of each tuple.
    window: measure the last `window.size` tuples after each slide, instead of all so far; a slide is then a batch.
    cardinality: "exact" remembers each (key, worker) pair; "hll" estimates with 4 KB a worker for any length.
    batch: tuples between two records.

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
        raise TypeError("split is an array, so the stream must be an array too, not an iterable of batches")
    else:
        array_of("the sources of a split", split, np.int32, "partitioner('hash', sources).route returns such an array")
        require(
            split.size == len(stream),
            f"split has {split.size} sources for {len(stream)} tuples: give one for each tuple",
        )
        check_numbers("sources", split, sources)
    batches = _slides(stream, window.slide) if window else _pieces(stream, batch)
    return _records(partitioner, batches, _SourceSettings(sources, sync_every, split), window, cardinality)


@dataclass(frozen=True)
class _SourceSettings:
    """How many sources there are, how often they exchange what they learned, and which tuples each of them routes."""

    number: int
    sync_every: int | Network | None
    split: Literal["uniform", "by_key"] | Workers


def _records(
    partitioner: Partitioner[Any, Any],
    batches: Iterable[Keys],
    sources: _SourceSettings,
    window: Window | None,
    cardinality: Literal["exact", "hll"],
) -> Iterator[Record]:
    sync_every = sources.sync_every
    learners = [partitioner, *_others(partitioner, (1 if sync_every == 0 else sources.number) - 1)]
    seen = (exact_measurement if cardinality == "exact" else estimated_measurement)(partitioner.n_workers)
    slides: deque[tuple[Keys, Workers]] = deque(maxlen=window.slides if window else 0)
    cooperation = Cooperation(sync_every, learners) if isinstance(sync_every, Network) else None
    every = max(sync_every, 1) if isinstance(sync_every, int) else 0
    tuples, syncs, imbalances = 0, 0, 0.0
    for number, keys in enumerate(batches):
        parts = _parts(keys, tuples, len(learners), sources.split, partitioner.seed)
        times = np.arange(tuples, tuples + keys.size, dtype=np.int64)
        workers = np.empty(keys.size, np.int32)
        routing = learners if cooperation is None else cooperation.routing(tuples)
        began = perf_counter()
        if partitioner.plans_ahead and (every or cooperation):
            for learner, part in zip(routing, parts, strict=True):
                learner.observe(keys[part], times[part])
            syncs += exchange(learners) if every and number % every == 0 else 0
            if cooperation:
                cooperation.advance(tuples)
        for learner, part in zip(routing, parts, strict=True):
            workers[part] = learner.route(keys[part], times[part])
        if not partitioner.plans_ahead and len(learners) > 1 and every and (number + 1) % every == 0:
            syncs += exchange(learners)
        if cooperation:
            cooperation.advance(tuples + keys.size)
            syncs = cooperation.merges
        seconds = perf_counter() - began
        tuples += keys.size
        if window:
            slides.append((keys, workers))
            last_keys, last_workers = (np.concatenate(part)[-window.size :] for part in zip(*slides, strict=True))
            measured = measure(last_keys, last_workers, partitioner.n_workers)
        else:
            seen = counted(seen, keys, workers)
            measured = metrics(seen)
        imbalances += measured.imbalance
        yield Record(
            tuples=tuples,
            imbalance=measured.imbalance,
            mean_imbalance=imbalances / (number + 1),
            imbalance_ratio=measured.imbalance_ratio,
            keys=measured.keys,
            fragments=measured.fragments,
            cardinality_imbalance=measured.cardinality_imbalance,
            key_split_ratio=measured.key_split_ratio,
            syncs=syncs,
            ns_per_tuple=1e9 * seconds / max(keys.size, 1),
            load=measured.load,
        )


def _others(partitioner: Partitioner[Any, Any], number: int) -> list[Partitioner[Any, Any]]:
    """Returns more sources of the same kind that have seen no tuples, but start from the policy of the first."""
    others = [deepcopy(partitioner).restore(partitioner.fresh()) for _ in range(number)]
    policy = partitioner.merge([partitioner.snapshot()])
    for source in [partitioner, *others] if others and policy is not None else []:
        source.adopt(policy)
    return others


def _pieces(stream: Keys | Iterable[Keys], size: int) -> Iterator[Keys]:
    """Yields the stream in pieces of at most this size."""
    for piece in [stream] if isinstance(stream, np.ndarray) else stream:
        checked(piece)
        for start in range(0, piece.size, size):
            yield piece[start : start + size]


def _slides(stream: Keys | Iterable[Keys], size: int) -> Iterator[Keys]:
    """Yields the stream in pieces of exactly this size, across the batches given; the last may be shorter."""
    pending: list[Keys] = []
    for piece in _pieces(stream, size):
        pending.append(piece)
        if sum(part.size for part in pending) >= size:
            joined = np.concatenate(pending)
            yield joined[:size]
            pending = [joined[size:]]
    if sum(part.size for part in pending):
        yield np.concatenate(pending)


def _parts(
    keys: Keys, start: int, sources: int, split: Literal["uniform", "by_key"] | Workers, seed: int
) -> list[slice | NDArray[np.int64]]:
    """Returns the tuples of each source, in a batch that begins at tuple `start` of the stream."""
    if sources == 1:
        return [slice(None)]
    if isinstance(split, str) and split == "uniform":
        return [slice((source - start) % sources, None, sources) for source in range(sources)]
    if isinstance(split, str):
        # Not the hash of the first candidate: with that, each source would send to workers of its own.
        source = Hash(sources, seed=seed ^ SOURCES).route(keys)
    else:
        source = split[start : start + keys.size]
    return [np.flatnonzero(source == number) for number in range(sources)]
