"""Reads the states of keys from the checkpoint of a query."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from skewless.arguments import require
from skewless.spark.keys import quoted
from skewless.spark.schema import nullable
from skewless.spark.state.committed import KeyedState
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.commit import name_of, read_commit
from skewless.store import Share, entries
from skewless.store.files import POSITION_COLUMN
from skewless.table import RoutingTable


def read_state(spark: SparkSession, checkpoint: str, batch: int | None = None) -> DataFrame:
    """Returns the states of all keys after a batch: the columns of the key, those of the state, and `timeout`.

    `timeout` is in milliseconds, NULL where none is set.

    spark: the session.
    checkpoint: the directory that `start` was given; the query may be running.
    batch: the number of a batch, of which the last few are kept; by default the last one.

    >>> sl.read_state(spark, "/data/checkpoint").where("user = 'ada'").show()  # doctest: +SKIP
    """
    files = Checkpoint(checkpoint)
    batches = files.numbered("commits")
    require(bool(batches), f"{checkpoint} has no complete batch yet: check the path, or wait for the first batch")
    number = batches[-1] if batch is None else batch
    kept = number in batches
    require(kept, f"{checkpoint} has the states after batches {batches[0]} to {batches[-1]}, not after {number}")
    has_state = "manifest" in files.read(name_of(number))["state"]
    require(has_state, f"{checkpoint} is the checkpoint of a query without keyed state")
    committed = read_commit(files, number, KeyedState.from_json).state
    store, manifest, n = committed.store(files), committed.manifest, committed.n_workers
    table = RoutingTable.hashed(n)  # only divides the keys among the tasks that read: any table would do

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch["id"].to_pylist():
                rows = entries(store, manifest, Share.of(table, part))
                yield from rows.drop_columns([POSITION_COLUMN]).combine_chunks().to_batches()

    fields = [
        StructField("key", nullable(committed.key)),
        StructField("state", nullable(committed.state)),
        StructField("timeout", LongType()),
    ]
    rows = spark.range(0, n, 1, n).mapInArrow(read, StructType(fields))
    pairs = zip(committed.key.names, committed.names, strict=True)
    keys = [F.col(f"key.{quoted(name)}").alias(shown) for name, shown in pairs]
    return rows.select(*keys, "state.*", "timeout")
