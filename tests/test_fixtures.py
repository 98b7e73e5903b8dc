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


@pytest.mark.parametrize("name", [name for name in make.PARTITIONERS if name != "pkg"])
def test_a_saved_policy_is_adopted(name: str) -> None:
    """A planner that adopts it routes nearly as the table that was saved with it."""
    p = skewless.partitioner(name, 6, seed=1)
    p.observe(make.keys(0))
    with np.load(make.HERE / "partitioners" / f"{name}.npz") as saved:
        kind: Any = type(p.merge([p.snapshot()]))
        p.adopt(skewless.from_bytes(kind, saved["policy"].tobytes()))
    if p.plans_ahead:
        table = RoutingTable.load(make.HERE / "partitioners" / f"{name}.json")
        assert (p.table().route(make.keys(2)) == table.route(make.keys(2))).mean() > 0.95
    assert set(p.route(make.keys(2)).tolist()) <= set(range(6))


@pytest.mark.parametrize("name", ["level", "auto", "kip", "mixed"])
def test_a_saved_table_is_saved_again_as_it_was(name: str, tmp_path: Path) -> None:
    path = make.HERE / "partitioners" / f"{name}.json"
    table = RoutingTable.load(path)
    assert set(table.route(make.keys(2)).tolist()) <= set(range(6))
    table.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()
