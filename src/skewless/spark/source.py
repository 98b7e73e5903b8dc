"""The receiver as Spark's Python data source: offsets are addresses in its log, partitions are its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from skewless.receiver import Receiver
from skewless.records import Block, Lines, read


class ReceiverSource(DataSource):
    """`skewless.spark.receive` sets its options."""

    @classmethod
    def name(cls) -> str:
        return "skewless"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = dict(self.options)
        lines = Lines(to_arrow_schema(schema, timezone="UTC"), options["key"], options["text"] == "True")
        most_rows = int(options["most_rows"]) if "most_rows" in options else None
        address = options["host"], int(options["port"])
        return ReceiverReader(
            options["log"], lines, address, int(options["pending"]), most_rows, int(options["n_workers"])
        )


@dataclass
class ReceiverReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made in many processes, but only in that which Spark asks for offsets does it receive."""

    log: str
    lines: Lines
    address: tuple[str, int]
    pending: int
    most_rows: int | None
    n_workers: int
    _receiver: Receiver | None = field(default=None, repr=False)

    @property
    def receiver(self) -> Receiver:
        if self._receiver is None:
            self._receiver = Receiver(
                self.log, self.lines, self.address, pending=self.pending, most_rows=self.most_rows
            )
        return self._receiver

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"address": self.receiver.begin}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self.most_rows is None else ReadMaxRows(self.most_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.receiver.until(self.receiver.end)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return {"address": self.receiver.latest(start["address"], most)}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"address": self.receiver.end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        blocks = self.receiver.blocks(start["address"], end["address"], self.n_workers)
        return [InputPartition(block) for block in blocks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        block: Block = partition.value
        return read(block, self.lines.schema)

    def commit(self, end: dict[str, int]) -> None:
        self.receiver.forget(end["address"])

    def stop(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_receiver": None}
