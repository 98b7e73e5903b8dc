"""The hash table behaves like a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skewless.kernels import hashtable

_1 = np.uint64(1)
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "remove"]), st.integers(0, 30), st.integers(1, 9)), max_size=200
)


@given(OPERATIONS)
def test_hash_table_is_a_dict(operations: list[tuple[str, int, int]]) -> None:
    table, model = hashtable.table(), dict[int, int]()
    for what, number, value in operations:
        # Few different upper bits, so that slots are fought over; the key 0 among them.
        key = np.uint64((number % 4) << 62 | number)
        slot = hashtable.find(table, key)
        if what == "put":
            if hashtable.full(table):
                table = hashtable.grown(table)
                slot = hashtable.find(table, key)
            hashtable.put(table, slot, key, np.uint64(value))
            model[int(key)] = value
        elif int(key) in model:
            hashtable.remove(table, slot)
            del model[int(key)]
        keys, values = hashtable.entries(table)
        assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == model
        assert table.used[0] == len(model)
        assert all(int(table.slots[hashtable.find(table, np.uint64(k)) + _1]) == v for k, v in model.items())
        assert keys.nbytes * 2 <= table.slots.nbytes <= hashtable.most_bytes(max(len(model), 30)) + 256
