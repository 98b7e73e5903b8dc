"""Fragments of split keys are merged on all workers alike."""

from __future__ import annotations

import numpy as np
import pytest

from skewless.spark.streaming.fragments import reducing
from skewless.table import RoutingTable

pytestmark = pytest.mark.compiled


def test_parts_of_split_keys_are_merged_on_workers_in_turn() -> None:
    keys = np.repeat(np.arange(6, dtype=np.uint64), 4)
    table = RoutingTable.distill(keys, np.tile(np.arange(4, dtype=np.int32), 6), 4)
    merging = reducing(table)
    assert table.splits_keys
    assert not merging.splits_keys
    assert np.bincount(merging.main_workers(merging.keys), minlength=4).max() == 2
    assert np.array_equal(merging.hosts, table.hosts)
