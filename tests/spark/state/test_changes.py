"""Only states and timeouts that a call has changed are written. No Spark is started."""

from __future__ import annotations

import pyarrow as pa
import pytest

from skewless.spark.state.changes import Changes
from skewless.spark.state.group_state import BatchTime, GroupState
from skewless.store import Entry, StateStore

pytestmark = pytest.mark.compiled
CLOCK = BatchTime(now=1000, watermark=0, timeout="ProcessingTimeTimeout", timed=False, width=1)


def state_of(value: int | None) -> GroupState:
    return GroupState(CLOCK, None if value is None else (value,), False)


def test_changed_states_removals_and_timeouts_are_written_and_nothing_else() -> None:
    store = StateStore("nowhere", pa.schema({"k": pa.string()}), pa.schema({"n": pa.int64()}))
    changes = Changes(store)
    updated, removed, timed, same, never = state_of(1), state_of(2), state_of(3), state_of(4), state_of(None)
    updated.update((10,))
    removed.remove()
    timed.setTimeoutDuration(500)
    states = {"updated": updated, "removed": removed, "timed": timed, "same": same}
    for position, (key, state) in enumerate(states.items()):
        changes.add(position, (key,), state, Entry(position, (key,), (position + 1,), None))
    changes.add(9, ("never",), never, None)
    rows = changes.table().select(["key", "state", "timeout"]).to_pylist()
    assert [(row["key"]["k"], row["state"] and row["state"]["n"], row["timeout"]) for row in rows] == [
        ("updated", 10, None),
        ("removed", None, None),
        ("timed", 3, 1500),
    ]
