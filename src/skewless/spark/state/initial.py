"""The states that a query begins with: `initialState`."""

from __future__ import annotations

from time import time

from pyspark.sql import DataFrame

from skewless.arguments import require
from skewless.spark.keys import column
from skewless.spark.plans import parallelism
from skewless.spark.state.committed import store_of
from skewless.spark.state.function import KeyFunction, TaskInput
from skewless.spark.state.loading import Loading
from skewless.spark.state.reports import REPORTED
from skewless.spark.state.routing import LateRows, RoutedRows
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.rows import StreamKey
from skewless.store import Manifest, Receipt, StateStore
from skewless.table import RoutingTable

INITIAL = "initial.json"  # the manifest that a query begins with
VERSION = -1  # of that manifest


def load(initial: DataFrame, key: StreamKey, function: KeyFunction, files: Checkpoint) -> None:
    """Writes the states that a query begins with, before its first batch.

    initial: one row for each key, with the columns of the key and the fields of the state. A processor makes the
        states itself, from any rows that have the columns of the key.
    """
    if files.read(INITIAL) is not None or files.numbered("commits"):
        return  # the query has begun already
    needed = [*key.names, *([] if function.is_processor else function.state.names)]
    lacking = [name for name in needed if name not in initial.columns]
    require(not lacking, f"the initial state lacks {', '.join(lacking)}; it has {', '.join(initial.columns)}")
    rows = initial if function.is_processor else initial.select(*map(column, needed))
    computed = [column(shown).alias(name) for name, shown in key.renames().items() if name in key.added]
    rows = rows.select("*", *computed)
    table, store = (
        RoutingTable.hashed(parallelism(rows.sparkSession)),
        store_of(files, key.stored(rows), function.state),
    )
    manifest, n = Manifest.empty(store), table.n_workers
    routed = RoutedRows.of(rows, table, n, key, LateRows(None))
    if function.is_processor:
        given = TaskInput(
            df=rows,
            key=key,
            position=routed.position,
            tasks=n,
            store=store,
            manifest=manifest,
            table=table,
            version=VERSION,
            files=files,
        )
        task = function.for_initial_state().task(given, int(time() * 1000), 0)
        written = routed.rows.mapInArrow(task, REPORTED).select("receipt")
    else:
        loading = Loading(store=store, table=table, position=routed.position, version=VERSION)
        written = routed.rows.mapInArrow(loading, "receipt binary")
    receipts = [Receipt.from_bytes(bytes(row[0])) for row in written.collect()]
    files.write(INITIAL, manifest.committed(store, VERSION, receipts).to_json())


def initial_manifest(files: Checkpoint, store: StateStore) -> Manifest:
    """Returns the manifest that the first batch begins with."""
    saved = files.read(INITIAL)
    return Manifest.empty(store) if saved is None else Manifest.from_json(saved)
