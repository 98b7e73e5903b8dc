"""Merges segments of keyed state while batches run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from skewless.spark.state.routing import task_count
from skewless.spark.streaming.background import Background
from skewless.spark.task_startup import quick_start
from skewless.store import Manifest, Receipt, Segment, Share, StateStore, merge
from skewless.table import RoutingTable

_log = logging.getLogger("skewless")


class MergedSegments(NamedTuple):
    """Segments, and the receipts of the files that they were merged into."""

    segments: Sequence[Segment]
    receipts: list[Receipt]


def merge_later(
    background: Background[MergedSegments],
    spark: SparkSession,
    store: StateStore,
    manifest: Manifest,
    table: RoutingTable,
) -> None:
    """Starts to merge the segments that are due, unless others are being merged.

    table: the merged states of each of its workers are written to a file of their own.
    """
    segments = manifest.due()
    if segments and not background.is_busy:
        background.submit(_merge, spark, store, segments, table)


def with_merged(background: Background[MergedSegments], store: StateStore, manifest: Manifest) -> Manifest:
    """Returns the manifest with the result of a merge in place of the segments that were merged, if one has ended."""
    if not background.is_done:
        return manifest
    try:
        merged = background.result()
        return manifest.merged(store, merged.segments, merged.receipts)
    except Exception as error:
        # Nothing is lost: the segments are still there, and will be due again.
        _log.warning("segments of %s could not be merged, and will be tried again: %s", store.root, error)
        return manifest


def _merge(spark: SparkSession, store: StateStore, segments: Sequence[Segment], table: RoutingTable) -> MergedSegments:
    def part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        quick_start()
        for batch in batches:
            for number in batch["id"].to_pylist():
                receipt = merge(store, segments, Share.of(table, number), number)
                yield pa.record_batch([pa.array([receipt.to_bytes()], pa.binary())], names=["receipt"])

    n = table.n_workers
    parts = spark.range(0, n, 1, task_count(spark, n)).mapInArrow(part, "receipt binary")
    return MergedSegments(segments, [Receipt.from_bytes(bytes(row[0])) for row in parts.collect()])
