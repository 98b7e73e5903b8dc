"""The receiver as a Python data source of Spark: offsets are those of its log, partitions are its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from skewless.ingest.receiver import Receiver
from skewless.ingest.records import Block, LineFormat, read_block

OFFSET = "address"  # the name that an offset in the log has in Spark's checkpoint


class ReceiverSource(DataSource):
    """The data source behind `skewless.spark.receive`, which sets its options."""

    @classmethod
    def name(cls) -> str:
        return "skewless"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = dict(self.options)
        return ReceiverReader(
            log=options["log"],
            lines=LineFormat(
                schema=to_arrow_schema(schema, timezone="UTC"), key=options["key"], text=options["text"] == "True"
            ),
            address=(options["host"], int(options["port"])),
            pending=int(options["pending"]),
            most_rows=int(options["most_rows"]) if "most_rows" in options else None,
            n_workers=int(options["n_workers"]),
        )


@dataclass
class ReceiverReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log. Spark makes it in several processes; the process that is asked for offsets starts the receiver."""

    log: str
    lines: LineFormat
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
        return {OFFSET: self.receiver.begin}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self.most_rows is None else ReadMaxRows(self.most_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.receiver.stop_at(self.receiver.end)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return {OFFSET: self.receiver.latest(start[OFFSET], most)}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return {OFFSET: self.receiver.end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        blocks = self.receiver.blocks(start[OFFSET], end[OFFSET], self.n_workers)
        return [InputPartition(block) for block in blocks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        block: Block = partition.value
        return read_block(block, self.lines.schema)

    def commit(self, end: dict[str, int]) -> None:
        self.receiver.delete_before(end[OFFSET])

    def stop(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_receiver": None}
