"""What the tasks of a stateful batch report to the driver."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from skewless.arguments import require
from skewless.histogram import Histogram
from skewless.kernels.position import keys_at
from skewless.spark.state.task import REPORT
from skewless.store import Receipt

REPORTED = StructType([StructField(field.name, from_arrow_type(field.type)) for field in REPORT])


class Reports:
    """The reports of a batch, one of each worker. They are exact: of several attempts of a task, Spark takes one."""

    def __init__(self, tasks: DataFrame, n_workers: int) -> None:
        """Runs the tasks and collects their reports."""
        rows = tasks.toArrow().to_pylist()
        reports = {report["worker"]: report for report in rows}
        complete = len(rows) == n_workers and sorted(reports) == list(range(n_workers))
        require(complete, f"each of {n_workers} workers must report once, but there are {len(rows)} reports")
        self._reports: list[dict[str, Any]] = [reports[number] for number in range(n_workers)]

    @property
    def receipts(self) -> list[Receipt]:
        return [Receipt.from_bytes(report["receipt"]) for report in self._reports]

    @property
    def outputs(self) -> list[str]:
        """The files of output."""
        return [report["output"] for report in self._reports if report["output"]]

    @property
    def loads(self) -> list[int]:
        """The rows of each worker."""
        return [report["rows"] for report in self._reports]

    def record(self) -> dict[str, Any]:
        return {
            "keys": sum(report["keys"] for report in self._reports),
            "expired": sum(report["expired"] for report in self._reports),
            "loads": self.loads,
            "state_read": sum(report["read"] for report in self._reports),
        }

    def histogram(self) -> Histogram:
        """Returns the histogram of keys; a key is on one worker, so that the counts of hot keys are exact."""
        positions, counts = (
            [value for report in self._reports for value in report[name]] for name in ("positions", "counts")
        )
        keys, rows = keys_at(np.array(positions, np.int64).view(np.uint64)), np.array(counts, np.float64)
        order = np.lexsort((keys, -rows))
        return Histogram(keys[order], rows[order], float(sum(self.loads) - rows.sum()))
