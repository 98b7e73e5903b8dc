"""Aggregates that tell on which workers the rows of each key were."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

import skewless.spark as sl

STATE = "vs array<long>, tasks array<int>"


def workers_in_arrow() -> sl.ArrowAggregate:
    """Returns an aggregate of values v and of the workers that had them, in the same order.

    Its steps are nested functions, so that Spark sends them by value.
    """

    def partial(rows: pa.Table) -> pa.Table:
        from pyspark import TaskContext

        task = TaskContext.get()
        number = -1 if task is None else task.partitionId()
        return listed(rows["v"].to_pylist(), [number] * rows.num_rows)

    def merge(states: pa.Table) -> pa.Table:
        return listed(pc.list_flatten(states["vs"]).to_pylist(), pc.list_flatten(states["tasks"]).to_pylist())

    def finish(state: pa.Table) -> pa.Table:
        return state

    def listed(values: list[int], tasks: list[int]) -> pa.Table:
        return pa.table({"vs": [values], "tasks": pa.array([tasks], pa.list_(pa.int32()))})

    return sl.ArrowAggregate(partial, merge, finish, STATE, STATE)


def workers_in_columns() -> sl.Aggregate:
    """Returns an aggregate of values v with their workers, which collects rows as `sl.collect_list` does.

    A function in Python finds the worker: Spark takes no expression for it in an aggregate.
    """

    def task_of(_: int) -> int:
        from pyspark import TaskContext

        task = TaskContext.get()
        return -1 if task is None else task.partitionId()

    def merged(state: Any) -> Any:
        return {"rows": F.flatten(F.collect_list(state["rows"]))}

    row = F.struct("v", F.udf(task_of, "int")("v").alias("worker"))
    return sl.Aggregate(lambda: {"rows": F.collect_list(row)}, merged, lambda state: state["rows"], grows=True)
