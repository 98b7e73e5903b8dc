"""The tasks that write the states with which a query begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from skewless.arguments import require
from skewless.spark.task_startup import quick_start
from skewless.store import Share, StateStore
from skewless.table import RoutingTable


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Writes the initial states of a query, one task a worker: a callable for `mapInArrow`."""

    store: StateStore
    table: RoutingTable
    position: str  # the name of the column with the positions of keys
    version: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        quick_start()
        worker = TaskContext.get().partitionId()  # type: ignore[union-attr]  # not None in a task
        loaded = [batch.filter(pc.is_valid(batch[self.position])) for batch in batches]
        store = self.store
        if not sum(batch.num_rows for batch in loaded):
            return
        rows = pa.Table.from_batches(loaded).combine_chunks()
        keys, states = (rows.select(schema.names).cast(schema) for schema in (store.key, store.state))
        positions = rows[self.position].to_numpy().view(np.uint64)
        texts = store.key_codec.texts(keys)
        is_unique = len(set(zip(positions.tolist(), texts, strict=True))) == len(texts)
        require(is_unique, "the initial state has several rows for one key: give one row a key")
        columns = [pa.array(positions), _struct(keys), _struct(states), pa.nulls(len(texts), pa.int64())]
        share = Share.of(self.table, worker)
        receipt = store.write(pa.table(columns, schema=store.schema), share, self.version, worker)
        yield pa.record_batch([pa.array([receipt.to_bytes()], pa.binary())], names=["receipt"])


def _struct(rows: pa.Table) -> pa.StructArray:
    arrays = [column.combine_chunks() for column in rows.columns]
    return pa.StructArray.from_arrays(arrays, fields=list(rows.schema))
