"""Reports of the workers of a batch add up, and none may be missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from skewless import RoutingTable
from skewless.kernels.position import key_positions
from skewless.spark.state.reports import REPORTED, Reports
from skewless.store import Share, StateStore

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]
KEYS = np.array([7, 2**63, 9], np.uint64)


def reports(spark: SparkSession, receipt: bytes, workers: list[int]) -> DataFrame:
    """Returns what the tasks of these workers would report: worker w has 10 + w rows of a hot key, and 5 others."""
    positions = key_positions(KEYS).view(np.int64).tolist()
    rows: list[dict[str, Any]] = [
        {
            "worker": worker,
            "rows": 15 + worker,
            "keys": 4,
            "expired": 1,
            "output": None if worker else "file of 0",
            "read": 100,
            "receipt": receipt,
            "positions": [positions[worker]],
            "counts": [10 + worker],
        }
        for worker in workers
    ]
    return spark.createDataFrame(rows, REPORTED)


def test_reports_add_up_in_any_order(spark: SparkSession, tmp_path: Any) -> None:
    store = StateStore(str(tmp_path), pa.schema({"k": pa.int64()}), pa.schema({"n": pa.int64()}))
    share = Share.of(RoutingTable.hashed(1), 0)
    receipt = store.write(store.schema.empty_table(), share, 0, 0)
    of_batch = Reports(reports(spark, receipt.to_bytes(), [2, 0, 1]), 3)
    assert of_batch.record() == {"keys": 12, "expired": 3, "loads": [15, 16, 17], "state_read": 300}
    assert of_batch.outputs == ["file of 0"]
    assert of_batch.receipts == [receipt] * 3
    histogram = of_batch.histogram()
    assert histogram.keys.tolist() == KEYS[::-1].tolist()
    assert histogram.counts.tolist() == [12, 11, 10]
    assert histogram.rest == 48 - 33


@pytest.mark.parametrize("workers", [[0, 1], [0, 1, 1], [0, 1, 2, 3]])
def test_a_missing_or_doubled_report_is_refused(spark: SparkSession, workers: list[int]) -> None:
    with pytest.raises(ValueError, match=f"each of 3 workers .* once, but there are {len(workers)} reports"):
        Reports(reports(spark, b"", [worker % 3 for worker in workers]), 3)
