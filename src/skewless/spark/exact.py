"""Routes rows tuple by tuple with a partitioner's own kernel: every input partition is a source with its own state.

For users who want PKG or Dalton as published. A table routes in the JVM; here the hash of each key goes to Python and a
worker's number comes back, while the rest of the row stays where it is. Sources cannot communicate during a pass
over the rows, only between two passes, by `Pass.left` and `agreed`. A stream makes one pass (`passed`) for each batch.
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
from skewless.partitioner import AnyPartitioner
from skewless.partitioners import described, rebuilt
from skewless.spark.keys import Keyed, column, hashed, unused
from skewless.spark.profile import observed
from skewless.spark.task_startup import quick_start


@dataclass(frozen=True)
class Exact:
    """Makes a verb route every row by the partitioner itself, instead of by a table planned with it.

    Each input partition is a source. Planners look at all rows first, and plan together. A partitioner that keeps keys
    whole by what it has seen before (`potc`, `on_greedy`, `am`, `cam`) must see all rows where a verb needs whole keys:
    then all rows go through one source. Executors must be able to import Skewless, and the class of a partitioner of
    your own.

    partitioner: a name or an instance.

    >>> sl.repartition(df, "user", partitioner=sl.Exact("kip"))                                  # doctest: +SKIP
    """

    partitioner: str | AnyPartitioner


class Sources(NamedTuple):
    """What sources have learned, as bytes for files (no pickle)."""

    policy: bytes | None = None  # that the sources agreed on; a new source begins with it
    snapshots: Mapping[int, bytes] = MappingProxyType({})  # by the number of the source, which continues from it


NO_SOURCES = Sources()


@dataclass(frozen=True, eq=False)
class Sourced:
    """A partitioner and what its sources have learned; it routes rows as a RoutingTable does."""

    partitioner: AnyPartitioner
    sources: Sources = NO_SOURCES
    alone: bool = False  # all rows come through one source

    @property
    def n_workers(self) -> int:
        return self.partitioner.n_workers

    @property
    def splits_keys(self) -> bool:
        """Whether rows of one key may go to different workers, from one source or from several."""
        return self.partitioner.splits_keys or not (self.alone or self.partitioner.sources_agree)


def first_sources(partitioner: AnyPartitioner) -> Sources:
    """Returns what sources begin with: the policy that follows from what a partitioner has learned."""
    policy = partitioner.merge([partitioner.snapshot()])
    return Sources(None if policy is None else to_bytes(policy))


def agreed(partitioner: AnyPartitioner, sources: Sources) -> Sources:
    """Runs one round of cooperation: merges the snapshots of all sources, and lets all adopt the policy.

    As `protocol.exchange`, on bytes. Sources that had no rows in the last pass take part, too.
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


def learned(partitioner: AnyPartitioner, *frames: Keyed) -> Sources:
    """Returns the plan of a planner that has seen all rows; for other partitioners, what they have learned before."""
    begun = first_sources(partitioner)
    if not partitioner.plans_ahead:
        return begun
    seen: dict[int, bytes] = {}
    for frame in frames:
        hashes = frame.df.select(hashed(frame.df, frame.names).alias("hash"))
        rows = hashes.mapInArrow(_observing(described(partitioner), begun), "source int, snapshot binary").collect()
        first = max(seen, default=-1) + 1  # not the number of sources: tasks without rows return no snapshot
        seen |= {first + number: bytes(snapshot) for number, snapshot in rows}
    return begun if not seen else Sources(agreed(partitioner, Sources(None, seen)).policy)


def routed(df: DataFrame, keys: Sequence[str], by: Sourced, into: str) -> DataFrame:
    """Sends rows to their workers, with the worker's number in a new column.

    A retried task that reads its rows in another order may route them differently: see `checksums`.
    """
    rows = df.repartition(1) if by.alone else df
    number = _called(_routing(described(by.partitioner), by.sources, False), "int", hashed(rows, keys))
    return rows.select("*", number.alias(into)).repartitionById(by.n_workers, column(into))


def _called(function: Callable[[Iterator[pa.Array]], Iterator[pa.Array]], kind: str, hashes: Column) -> Column:
    """Calls a function with all hashes of a task, in order; Spark must not call it twice, nor for some rows only."""
    # The function's type hints tell Spark that it takes and returns iterators; Spark's own hints ask for a type.
    called = cast(Any, arrow_udf)(function, kind)
    result: Column = called.asNondeterministic()(hashes)
    return result


@dataclass(frozen=True, eq=False)
class Pass:
    """Rows on their workers, as `routed` returns them; once they are read, `left` has what their sources learned."""

    rows: DataFrame
    before: Sources
    observation: Observation

    def left(self) -> Sources:
        """Returns what each source has learned; waits for the first action that reads all rows.

        Sources without rows keep what they had learned before. If a task ran twice, either result is fine.
        """
        left = observed(self.observation).get("left", [])
        snapshots = {number: bytes(snapshot) for number, snapshot in sorted(left)}
        return Sources(self.before.policy, {**self.before.snapshots, **snapshots})


def passed(df: DataFrame, keys: Sequence[str], by: Sourced, into: str) -> Pass:
    """Routes as `routed` does, and keeps what the sources learn (`Pass.left`).

    One batch of a stream: `passed(batch, keys, Sourced(partitioner, sources), into)`, an action on its rows, then
    `sources = agreed(partitioner, its left())`, or only `left()` where sources must not cooperate. The same rows in the
    same partitions with the same `sources` give the same result. Planners count the rows while they route by the
    current plan: a batch is planned from those before it. All of `sources` goes to every task, so it must be small.
    """
    rows = df.repartition(1) if by.alone else df
    kind, (name,), watched = "worker int, source int, snapshot binary", unused(df, "routed"), Observation()
    route = _routing(described(by.partitioner), by.sources, True)
    routes = rows.select("*", _called(route, kind, hashed(rows, keys)).alias(name))
    snapshot = F.when(column(name)["snapshot"].isNotNull(), F.struct(column(name)["source"], column(name)["snapshot"]))
    routes = routes.observe(watched, F.collect_list(snapshot).alias("left"))
    routes = routes.select(*map(column, df.columns), column(name)["worker"].alias(into))
    return Pass(routes.repartitionById(by.n_workers, column(into)), by.sources, watched)


# The functions below return functions that Spark pickles for its Python processes. They hold only text and bytes, so
# that an executor without this library can unpickle them, and report that it is missing.


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
    def begin(description: str, policy: bytes | None, snapshots: dict[int, bytes]) -> tuple[AnyPartitioner, int, Any]:
        from pyspark import TaskContext

        quick_start()
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
    """Restores a source from its snapshot, or makes a new one that adopts the policy of the others."""
    source = rebuilt(description)
    if snapshot is not None:
        return source.restore(from_bytes(type(source.fresh()), snapshot))
    if policy is not None:
        kind: Any = type(source.merge([source.fresh()]))
        source.adopt(from_bytes(kind, policy))
    return source


def routing(source: AnyPartitioner, number: int, batches: Iterator[pa.Array], leaves: bool) -> Iterator[pa.Array]:
    """Yields the worker of each hash; with `leaves`, structs with the source's number, and its snapshot in the last."""
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
    """Yields the snapshot of a source that has seen all hashes; nothing if there are none."""
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
