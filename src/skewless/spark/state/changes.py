"""The states and timeouts that a task changed, to be written to the store when it ends."""

from __future__ import annotations

import pyarrow as pa

from skewless.spark.state.group_state import GroupState
from skewless.store import Entry, StateStore, Values


class Changes:
    """Keys whose state or timeout changed, in the order of calls."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._positions: list[int] = []
        self._keys: list[Values] = []
        self._states: list[Values | None] = []
        self._timeouts: list[int | None] = []

    def add(self, position: int, key: Values, state: GroupState, before: Entry | None) -> None:
        """Adds the state of a key after a call if it differs from the entry before the call."""
        value, timeout = state._value, state._timeout
        if not state._touched and timeout == (None if before is None else before.timeout):
            return
        if before is None and value is None and timeout is None:
            return
        self._positions.append(position)
        self._keys.append(key)
        self._states.append(value)
        self._timeouts.append(timeout)

    def table(self) -> pa.Table:
        """Returns the changes with the columns that `StateStore.write` takes."""
        columns = [
            pa.array(self._positions, pa.uint64()),
            self._store.key_codec.array(self._keys),
            self._store.state_codec.array(self._states),
            pa.array(self._timeouts, pa.int64()),
        ]
        return pa.table(columns, schema=self._store.schema)
