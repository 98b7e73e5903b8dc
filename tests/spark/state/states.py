"""States of text keys, written without a query."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from skewless import RoutingTable, streams
from skewless.kernels.position import key_positions
from skewless.store import Manifest, Share, StateStore


def write_states(
    store: StateStore, manifest: Manifest, table: RoutingTable, version: int, states: Mapping[str, int | None]
) -> Manifest:
    """Writes the states of keys, on the worker that a table has for each; returns the manifest with them."""
    positions = key_positions(streams.as_keys(list(states)))
    columns = [
        pa.array(positions),
        store.key_codec.array([(key,) for key in states]),
        store.state_codec.array([None if state is None else (state,) for state in states.values()]),
        pa.nulls(len(states), pa.int64()),
    ]
    rows = pa.table(columns, schema=store.schema)
    receipts = []
    for worker in range(table.n_workers):
        share = Share.of(table, worker)
        receipts.append(store.write(rows.filter(pa.array(share.has(positions))), share, version, worker))
    return manifest.committed(store, version, receipts)
