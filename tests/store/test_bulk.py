"""States that arrived in bulk are read from their file, and only if they are valid and the file is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from skewless import RoutingTable
from skewless.store import Share, StateStore
from skewless.store.bulk import Bulk
from tests.faults.harm import Harm, damage
from tests.store.states import KEY, STATE, changed, owned, positions

KEYS = list(range(200))
WHOLE = Share.whole()


def written(directory: Path, share: Share = WHOLE) -> Bulk:
    """Writes a state for each key; every tenth key has a timeout at its number."""
    store = StateStore(str(directory), KEY, STATE)
    rows = changed(store, {key: (2 * key, None if key % 10 else key) for key in KEYS})
    return Bulk.written(directory / "0.sqlite", rows, share)


def states(rows: pa.Table) -> dict[int, int]:
    found = {row["key"]["k"]: row["state"]["n"] for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def test_states_are_found_by_position_and_by_timeout(tmp_path: Path) -> None:
    bulk = written(tmp_path)
    assert states(bulk.rows()) == {key: 2 * key for key in KEYS}
    # Two keys have the same position in these tests: both are found.
    assert states(bulk.at(positions([6, 40, 9999]))) == {6: 12, 7: 14, 40: 80, 41: 82}
    assert states(bulk.at(positions([]))) == {}
    assert states(bulk.expired(20)) == {0: 0, 10: 20, 20: 40}


def test_only_the_keys_of_its_share_are_valid(tmp_path: Path) -> None:
    mine, others = (Share.of(RoutingTable.hashed(2), worker) for worker in range(2))
    bulk = written(tmp_path, mine)
    own = owned(mine, KEYS)
    assert 0 < len(own) < len(KEYS)
    assert states(bulk.rows()) == {key: 2 * key for key in own}
    assert states(bulk.at(positions(KEYS))).keys() == set(own)
    assert set(states(bulk.expired(10**6))) == {key for key in own if key % 10 == 0}
    assert bulk.within(others) is None
    part = bulk.within(Share.of(RoutingTable.hashed(4), 0))
    assert part is not None
    assert set(states(part.rows())) == set(owned(Share.of(RoutingTable.hashed(4), 0), own))
    again = Bulk.from_json(bulk.to_json(), tmp_path / "0.sqlite")
    assert (again.path, again.checksum) == (bulk.path, bulk.checksum)
    assert states(again.rows()) == states(bulk.rows())


@pytest.mark.parametrize("harm", ["flipped", "cut", "missing", "empty"])
def test_a_damaged_file_is_refused(tmp_path: Path, harm: Harm) -> None:
    bulk = written(tmp_path)
    damage(bulk.path, harm)
    reads: list[Any] = [bulk.rows, lambda: bulk.at(positions([1])), lambda: bulk.expired(5)]
    for read in reads:
        with pytest.raises(ValueError, match=f"{bulk.path.name} is missing or damaged"):
            read()


def test_rows_are_sorted_by_position(tmp_path: Path) -> None:
    with pa.memory_map(str(written(tmp_path).path)) as file:
        at = pa.ipc.open_file(file).read_all()["place"].to_numpy()
    assert (np.diff(at.astype(np.float64)) >= 0).all()
