"""Rows routed tuple by tuple, by a partitioner's own kernel: every input partition is a source with a state of its own.

For those who want PKG or Dalton as published. A table routes in the JVM; here the hash of each key goes to Python and
the number of a worker comes back, the rest of the row stays where it is. Sources cannot talk while a pass over the rows
runs. They do between two passes, by what `Pass.left` and `agreed` give: a stream calls `passed` for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from skewless.arrays import from_bytes, to_bytes
from skewless.partitioner import Partitioner
from skewless.partitioners import described, rebuilt
from skewless.partitioners.baselines import Hash
from skewless.spark.haste import hastening
from skewless.spark.keys import column, hashed, unused
from skewless.spark.profile import observed

AnyPartitioner = Partitioner[Any, Any]


@dataclass(frozen=True)
class Exact:
    """For the `partitioner` of a verb: this one routes every row itself, instead of a table planned with it.

    Each input partition is a source. Planners look at all rows first, and plan together. One that keeps keys whole by
    what it has seen before (`potc`, `on_greedy`, `am`, `cam`) needs to see all rows where a verb needs whole keys:
    these then all come through one source.

    Skewless must be installed on the executors too.
    """

    partitioner: str | AnyPartitioner


class Sources(NamedTuple):
    """What sources know, as bytes that can be kept in files (no pickle)."""

    policy: bytes | None = None  # what they agreed on: a source that is new begins with it
    snapshots: Mapping[int, bytes] = MappingProxyType({})  # of each source, by its number: there it goes on


NOTHING = Sources()


@dataclass(frozen=True, eq=False)
class Sourced:
    """A partitioner and what its sources know. It says where rows go, as a RoutingTable does."""

    partitioner: AnyPartitioner
    sources: Sources = NOTHING
    alone: bool = False  # all rows come through one source

    @property
    def n_workers(self) -> int:
        return self.partitioner.n_workers

    @property
    def splits_keys(self) -> bool:
        """May rows of one key go to different workers, of one source or of several?"""
        return self.partitioner.splits_keys or not (self.alone or agrees(self.partitioner))


def agrees(partitioner: AnyPartitioner) -> bool:
    """Do sources under one policy all decide alike, whatever rows they have had?"""
    return partitioner.plans_ahead or isinstance(partitioner, Hash)


def told(partitioner: AnyPartitioner) -> Sources:
    """For sources that begin with what this one can tell them."""
    policy = partitioner.merge([partitioner.snapshot()])
    return Sources(None if policy is None else to_bytes(policy))


def agreed(partitioner: AnyPartitioner, sources: Sources) -> Sources:
    """One round of cooperation: all sources tell what they know, and adopt what follows from it.

    As `coordinate.exchange`, on bytes. Sources that had no rows in the last pass take part too.
    """
    source, kind = rebuilt(described(partitioner)), type(partitioner.fresh())
    snapshots = {number: from_bytes(kind, sources.snapshots[number]) for number in sorted(sources.snapshots)}
    policy = source.merge(list(snapshots.values())) if snapshots else None
    if policy is None:
        return sources
    after = {}
    for number, snapshot in snapshots.items():
        source.restore(snapshot).adopt(policy)
        after[number] = to_bytes(source.snapshot())
    return Sources(to_bytes(policy), after)


def learned(partitioner: AnyPartitioner, *frames: tuple[DataFrame, Sequence[str]]) -> Sources:
    """The plan of a planner that has seen all rows of these; for others, what they know already."""
    begun = told(partitioner)
    if not partitioner.plans_ahead:
        return begun
    seen: dict[int, bytes] = {}
    for df, keys in frames:
        hashes = df.select(hashed(df, keys).alias("hash"))
        rows = hashes.mapInArrow(_observing(described(partitioner), begun), "source int, snapshot binary").collect()
        seen |= {len(seen) + number: bytes(snapshot) for number, snapshot in sorted(rows)}
    return begun if not seen else Sources(agreed(partitioner, Sources(None, seen)).policy)


def routed(df: DataFrame, keys: Sequence[str], by: Sourced, into: str) -> DataFrame:
    """The rows on their workers, with the number of the worker in a new column.

    A retried task that reads its rows in another order may route them otherwise: see `batch.checksums`.
    """
    rows = df.repartition(1) if by.alone else df
    number = _called(_routing(described(by.partitioner), by.sources, False), "int", hashed(rows, keys))
    return rows.select("*", number.alias(into)).repartitionById(by.n_workers, column(into))


def _called(function: Callable[[Iterator[pa.Array]], Iterator[pa.Array]], kind: str, hashes: Column) -> Column:
    """A function of all hashes of a task in their order; Spark must not call it twice, nor for some rows only."""
    # The type hints of the function say that it takes and gives iterators; Spark's own say that a type is needed.
    called = cast(Any, arrow_udf)(function, kind)
    result: Column = called.asNondeterministic()(hashes)
    return result


@dataclass(frozen=True, eq=False)
class Pass:
    """Rows on their workers, as `routed` gives them, that leave what their sources know when they have been read."""

    rows: DataFrame
    before: Sources
    observation: Observation

    def left(self) -> Sources:
        """What each source knows, after the first action on the rows that reads them all; it waits for that.

        Sources that had no rows know what they knew before. Of a task that ran twice, either does: both saw its rows.
        """
        found = observed(self.observation).get("left", [])
        snapshots = {number: bytes(snapshot) for number, snapshot in sorted(found)}
        return Sources(self.before.policy, {**self.before.snapshots, **snapshots})


def passed(df: DataFrame, keys: Sequence[str], by: Sourced, into: str) -> Pass:
    """As `routed`, and after the rows were read there is what their sources know (`Pass.left`).

    One batch of a stream: `passed(batch, keys, Sourced(partitioner, known), into)`, an action on its rows, then
    `known = agreed(partitioner, its left())`, or only `left()` where sources are not to talk. The same rows in the same
    partitions and the same `known` give the same again. Planners count the rows while they follow the plan that there
    is: a batch is planned for from those before it. Everything known goes to every task: keep it small.
    """
    rows = df.repartition(1) if by.alone else df
    kind, (name,), watched = "worker int, source int, snapshot binary", unused(df, "routed"), Observation()
    route = _routing(described(by.partitioner), by.sources, True)
    every = rows.select("*", _called(route, kind, hashed(rows, keys)).alias(name))
    snapshot = F.when(column(name)["snapshot"].isNotNull(), F.struct(column(name)["source"], column(name)["snapshot"]))
    every = every.observe(watched, F.collect_list(snapshot).alias("left"))
    every = every.select(*map(column, df.columns), column(name)["worker"].alias(into))
    return Pass(every.repartitionById(by.n_workers, column(into)), by.sources, watched)


# What follows makes functions that run in Python workers. They carry nothing but text and bytes, so that a worker which
# lacks this library can say so.


def _routing(description: str, sources: Sources, leaves: bool) -> Callable[[Iterator[pa.Array]], Iterator[pa.Array]]:
    policy, snapshots, begin = sources.policy, dict(sources.snapshots), _begin()

    def route(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        source, number, exact = begin(description, policy, snapshots)
        yield from exact.routing(source, number, batches, leaves)

    return route


def _observing(description: str, sources: Sources) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    policy, snapshots, begin = sources.policy, dict(sources.snapshots), _begin()

    def observe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        source, number, exact = begin(description, policy, snapshots)
        yield from exact.observing(source, number, (batch.column(0) for batch in batches))

    return observe


def _begin() -> Callable[[str, bytes | None, dict[int, bytes]], tuple[AnyPartitioner, int, Any]]:
    hasten = hastening()

    def begin(description: str, policy: bytes | None, snapshots: dict[int, bytes]) -> tuple[AnyPartitioner, int, Any]:
        from pyspark import TaskContext

        hasten()
        try:
            from skewless.spark import exact
        except ModuleNotFoundError as missing:
            advice = "install skewless[spark] on the executors, or leave sl.Exact out: tables need nothing there"
            raise ModuleNotFoundError(
                f"sl.Exact routes on the executors, which have no {missing.name}: {advice}"
            ) from None
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        return exact.source_of(description, policy, snapshots.get(number)), number, exact

    return begin


def source_of(description: str, policy: bytes | None, snapshot: bytes | None) -> AnyPartitioner:
    """A source as it was, or a new one that knows what others agreed on."""
    source = rebuilt(description)
    if snapshot is not None:
        return source.restore(from_bytes(type(source.fresh()), snapshot))
    if policy is not None:
        kind: Any = type(source.merge([source.fresh()]))
        source.adopt(from_bytes(kind, policy))
    return source


def routing(source: AnyPartitioner, number: int, batches: Iterator[pa.Array], leaves: bool) -> Iterator[pa.Array]:
    """The worker of each hash; if it leaves what it knows, then in the last row, with its number in all."""
    held = None
    for batch in batches:
        keys = _keys(batch)
        workers = pa.array(source.route(keys))
        if not leaves:
            yield workers
            continue
        if source.plans_ahead:
            source.observe(keys)
        if keys.size and held is not None:
            yield _row(held, number, None)
        held = workers if keys.size or held is None else held
    if held is not None:
        yield _row(held, number, to_bytes(source.snapshot()))


def observing(source: AnyPartitioner, number: int, batches: Iterator[pa.Array]) -> Iterator[pa.RecordBatch]:
    """What it knows after it has seen all hashes; nothing if there are none."""
    seen = 0
    for batch in batches:
        source.observe(_keys(batch))
        seen += len(batch)
    if seen:
        snapshot = pa.array([to_bytes(source.snapshot())], pa.binary())
        yield pa.RecordBatch.from_arrays([pa.array([number], pa.int32()), snapshot], ["source", "snapshot"])


def _keys(hashes: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    keys: np.ndarray[Any, np.dtype[np.uint64]] = hashes.to_numpy(zero_copy_only=False).view(np.uint64)
    return keys


def _row(workers: pa.Array, number: int, last: bytes | None) -> pa.Array:
    sources = pa.array(np.full(len(workers), number, np.int32))
    snapshots = pa.array([*[None] * (len(workers) - 1), last][: len(workers)], pa.binary())
    return pa.StructArray.from_arrays([workers, sources, snapshots], ["worker", "source", "snapshot"])
