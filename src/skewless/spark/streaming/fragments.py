"""Sends the fragments of split keys, one state for each worker of a key, to one worker, where they are merged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pyspark.sql import DataFrame

from skewless.partitioners.prompt import allocate
from skewless.spark.keys import column, hashing
from skewless.spark.route import worker
from skewless.table import RoutingTable


def sent_to_reducers(states: DataFrame, keys: Sequence[str], table: RoutingTable, into: str) -> DataFrame:
    """Returns states on the worker where their key is merged, with its number in a new column.

    table: routed the rows that the states were made of.
    into: the name of the new column.
    """
    reducer = worker(reducing(table), hashing(states, keys))
    return states.select("*", reducer.alias(into)).repartitionById(table.n_workers, column(into))


def reducing(table: RoutingTable) -> RoutingTable:
    """Returns the table by which fragments of split keys are sent to one worker: Prompt's bucket allocation.

    Other keys do not move.
    """
    lengths = np.diff(table.starts)
    split = lengths > 1
    workers = table.main_workers(table.keys)
    none = np.zeros(int(split.sum()), np.bool_)
    workers[split] = allocate(table.keys[split], lengths[split].astype(np.float64), none, table.n_workers)
    starts = np.arange(table.keys.size + 1, dtype=np.int64)
    return table.with_hot_keys(table.keys, starts, workers, np.ones(table.keys.size))
