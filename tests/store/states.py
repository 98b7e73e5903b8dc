"""Stores of small states, for the tests of all of their modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from skewless import RoutingTable
from skewless.arrays import Keys
from skewless.kernels.position import key_positions
from skewless.store import (
    Entry,
    Manifest,
    Share,
    StateStore,
)

KEY = pa.schema({"k": pa.int64()})
STATE = pa.schema({"n": pa.int64()})


def hashes(keys: Keys) -> Keys:
    """Returns hashes of keys; pairs of keys have the same one."""
    return (keys // np.uint64(2)) * np.uint64(0x9E3779B97F4A7C15)


def positions(keys: list[int]) -> Keys:
    return key_positions(hashes(np.array(keys, np.uint64)))


def text(store: StateStore, keys: list[int]) -> list[str]:
    return [str(words) for words in store.key_codec.texts(store.key_codec.array([(key,) for key in keys]))]


def tables(draw: Any, keys: int) -> RoutingTable:
    """Draws a table: any number of workers and hosts, with hosts and hot keys on any of them."""
    n_workers = draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = RoutingTable.hashed(n_workers).hosts.size << draw(st.integers(0, 2))
    bare = RoutingTable.hashed(n_workers)
    hosts = rng.integers(0, n_workers, size).astype(np.int32)
    hot = np.unique(hashes(rng.integers(0, keys, draw(st.integers(0, 4))).astype(np.uint64)))
    whole = RoutingTable(n_workers, hosts, bare.keys, bare.starts, bare.workers, bare.parts)
    workers = rng.integers(0, n_workers, hot.size).astype(np.int32)
    return whole.with_hot_keys(hot, np.arange(hot.size + 1), workers, np.ones(hot.size))


def changed(store: StateStore, changes: Mapping[int, tuple[int | None, int | None]]) -> pa.Table:
    """Returns rows for `StateStore.write` from a state and a timeout by key."""
    keys = list(changes)
    columns = [
        pa.array(positions(keys), pa.uint64()),
        store.key_codec.array([(key,) for key in keys]),
        store.state_codec.array([None if state is None else (state,) for state, _ in changes.values()]),
        pa.array([timeout for _, timeout in changes.values()], pa.int64()),
    ]
    return pa.table(columns, schema=store.schema)


def owned(share: Share, keys: list[int]) -> list[int]:
    return [key for key, mine in zip(keys, share.has(positions(keys)).tolist(), strict=True) if mine]


def by_key(entries: list[Entry]) -> dict[int, tuple[int | None, int | None]]:
    return {entry.key[0]: (None if entry.state is None else entry.state[0], entry.timeout) for entry in entries}


def filled(store: StateStore, table: RoutingTable, n_keys: int) -> Manifest:
    """Writes a state for each of this many keys, in two versions."""
    manifest = Manifest.empty(store)
    for version, start in enumerate((0, n_keys // 2)):
        receipts = []
        for worker in range(table.n_workers):
            share = Share.of(table, worker)
            mine = owned(share, list(range(start, n_keys)))
            receipts.append(store.write(changed(store, dict.fromkeys(mine, (1, None))), share, version, worker))
        manifest = manifest.committed(store, version, receipts)
    return manifest
