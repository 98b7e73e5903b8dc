"""A streaming source of our own: records from sockets, logged before they are acknowledged, in balanced blocks."""

from __future__ import annotations

from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, DateType, MapType, StringType, StructField, StructType

from skewless.arrays import require, whole
from skewless.spark.parallelism import parallelism

TEXT = StructType([StructField("value", StringType())])
PENDING = 64 << 20  # bytes


def receive(
    spark: SparkSession,
    log: str | Path,
    *,
    key: str = "value",
    schema: StructType | str | None = None,
    port: int = 0,
    host: str = "127.0.0.1",
    n_workers: int | None = None,
    most_rows: int | None = None,
    pending: int = PENDING,
) -> DataFrame:
    """A streaming DataFrame of what senders send to a socket, in partitions that are balanced by key.

    While the query runs, a receiver listens beside the driver. A sender connects, sends a line with its name, is told
    how many of its lines are safe already, and sends the next ones, a record a line: a JSON object with the fields of
    `schema`, or, without one, a text. It is told again after every piece that is on the disk. So no line is lost and
    none counts twice, whoever crashes and begins anew: `skewless.sender.send` does this for any iterator.

    Each micro-batch comes in blocks by Prompt's algorithms 1 and 2: equal sizes, equal numbers of keys, few keys split.

    log: a directory that the driver and all executors see; one for each query. What a finished batch had is deleted.
        Its file `address` has the host and port that the receiver listens on.
    key: the column to balance by: text, binary or a whole number.
    port: 0 takes a free one. host: the default takes connections from this machine only; nobody is asked who he is.
    n_workers: blocks of a batch; as many as Spark runs tasks at a time if left out.
    most_rows: of a batch; as many as there are if left out.
    pending: bytes that may wait in the log for Spark; beyond, senders must wait.
    """
    try:
        from skewless.spark.source import ReceiverSource
    except ModuleNotFoundError:
        raise ImportError(f"receive needs pyspark 4.2 or newer, not {pyspark.__version__}") from None
    options = {
        "log": str(Path(log).absolute()),
        "host": host,
        "port": str(whole("port", port, 0, 65_535)),
        "pending": str(whole("pending", pending, 1)),
        "text": str(schema is None),
        "key": key,
    }
    if most_rows is not None:
        options["most_rows"] = str(whole("most_rows", most_rows, 1))
    if n_workers is None:
        n_workers = parallelism(spark)
    options["n_workers"] = str(whole("n_workers", n_workers, 1))
    spark.dataSource.register(ReceiverSource)
    rows = spark.readStream.format(ReceiverSource.name()).schema(TEXT if schema is None else schema)
    events = rows.options(**options).load()
    _check(events.schema, key)
    return events


def _check(schema: StructType, key: str) -> None:
    """Refuse what lines cannot be read as, and keys that have no hash here."""
    known = {field.name: field.dataType for field in schema.fields}
    require(key in known, f"there is no column {key!r} to balance by; there are {', '.join(known)}")
    kind = known[key].simpleString()
    hashed = kind in ("string", "binary", "tinyint", "smallint", "int", "bigint")
    require(hashed, f"blocks are balanced by text, binary or whole numbers; {key!r} is {kind}: send it as text")
    for name, kind_of in known.items():
        wrong = _unreadable(kind_of)
        require(not wrong, f"column {name!r} has a {wrong}, which is not read from JSON here: send it as text")


def _unreadable(kind: DataType) -> str:
    if isinstance(kind, (MapType, DateType)):
        return kind.typeName()
    inner = [field.dataType for field in kind.fields] if isinstance(kind, StructType) else []
    inner += [kind.elementType] if hasattr(kind, "elementType") else []
    return next((wrong for each in inner if (wrong := _unreadable(each))), "")
