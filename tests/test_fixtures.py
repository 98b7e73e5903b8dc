"""Snapshots, policies and tables that version 0.1.0 wrote still open, and route as they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skewless
from skewless import RoutingTable
from tests.fixtures import make

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize("name", make.PARTITIONERS)
def test_a_saved_snapshot_routes_as_it_did(name: str) -> None:
    p = skewless.partitioner(name, 6, seed=1)
    with np.load(make.HERE / "partitioners" / f"{name}.npz") as saved:
        p.restore(skewless.from_bytes(type(p.snapshot()), saved["snapshot"].tobytes()))
        if p.plans_ahead:
            assert p.table().to_json() == RoutingTable.load(make.HERE / "partitioners" / f"{name}.json").to_json()
        np.testing.assert_array_equal(p.route(make.keys(2)), saved["workers"])


@pytest.mark.parametrize("name", make.PARTITIONERS)
def test_a_saved_policy_is_adopted(name: str) -> None:
    """Repeats what `make` did, with the saved policy as the last one; and what a new source learns from it matters."""
    p = skewless.partitioner(name, 6, seed=1)
    p.observe(make.keys(0))
    p.adopt(p.merge([p.snapshot()]))
    p.route(make.keys(0))
    p.observe(make.keys(1))
    policy: Any = p.merge([p.snapshot()])
    with np.load(make.HERE / "partitioners" / f"{name}.npz") as saved:
        read: Any = skewless.from_bytes(type(policy), saved["policy"].tobytes())
        assert skewless.to_bytes(read) == skewless.to_bytes(policy)
        p.adopt(read)
        p.route(make.keys(1))
        np.testing.assert_array_equal(p.route(make.keys(2)), saved["workers"])
    adopting, fresh = (skewless.partitioner(name, 6, seed=1) for _ in range(2))
    for source in (adopting, fresh):
        source.observe(make.keys(0))
    adopting.adopt(read)
    if adopting.plans_ahead:
        table = RoutingTable.load(make.HERE / "partitioners" / f"{name}.json")
        assert (adopting.table().route(make.keys(2)) == table.route(make.keys(2))).mean() > 0.95
    assert not np.array_equal(adopting.route(make.keys(2)), fresh.route(make.keys(2)))


@pytest.mark.parametrize("name", ["level", "auto", "kip", "mixed"])
def test_a_saved_table_is_saved_again_as_it_was(name: str, tmp_path: Path) -> None:
    path, keys = make.HERE / "partitioners" / f"{name}.json", make.keys(2)
    table = RoutingTable.load(path)
    workers = table.route(keys)
    assert not np.array_equal(workers, RoutingTable.hashed(6).route(keys))
    if table.splits_keys:
        assert all(worker in table.shares(key) for key, worker in zip(keys.tolist(), workers.tolist(), strict=True))
    else:
        with np.load(path.with_suffix(".npz")) as saved:
            np.testing.assert_array_equal(workers, saved["workers"])
    table.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()
