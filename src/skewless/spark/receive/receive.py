"""A streaming source: records from sockets, logged before they are acknowledged, in balanced partitions."""

from __future__ import annotations

from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, DateType, MapType, StringType, StructField, StructType

from skewless.arguments import require, whole
from skewless.spark.plans import parallelism

TEXT = StructType([StructField("value", StringType())])
PENDING = 64 << 20  # default bytes of the log that may wait for Spark


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
    """Returns a streaming DataFrame of the records sent to a socket, in partitions balanced by key.

    While the query runs, a receiver listens on the driver's machine. `skewless.spark.send` sends the records of any
    iterator, each exactly once, even if the sender or the driver crashes and is restarted. Other senders speak the same
    protocol: connect, send a line with a name, read the number of lines already logged under it, and send the following
    records, one a line; the number is sent again after every piece that is on disk.

    Prompt's algorithms 1 and 2 divide each micro-batch into blocks of equal size and equal numbers of keys, with few
    keys split.

    spark: the session.
    log: a directory that the driver and all executors can read, not shared by queries. Finished batches are
        deleted from it. Its file `address` has the host and port of the receiver.
    key: the column to balance by: text, binary or a whole number.
    schema: the fields of a JSON object; without it, a record is a line of text in the column `value`.
    port: the port to listen on; 0 takes a free one.
    host: the address to listen on; by default only the driver's machine can connect. Senders are not authenticated.
    n_workers: how many blocks a batch has; by default as many as Spark runs tasks at a time.
    most_rows: the most rows of a batch; no limit by default.
    pending: bytes of the log that may wait for Spark; when there are more, senders wait, too.

    >>> import skewless.spark as sl
    >>> events = sl.receive(spark, "/tmp/log", key="user", schema="user long, amount double")  # doctest: +SKIP
    >>> query = events.writeStream.format("console").start()  # doctest: +SKIP
    >>> sl.send([{"user": 1, "amount": 9.5}], open("/tmp/log/address").read(), name="shop")  # doctest: +SKIP
    1
    """
    try:
        from skewless.spark.receive.source import ReceiverSource
    except ModuleNotFoundError as missing:
        if not str(missing.name).startswith("pyspark"):
            raise
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
    """Raises ValueError for columns that cannot be read from JSON, and for a key of a type that cannot be hashed."""
    types = {field.name: field.dataType for field in schema.fields}
    require(key in types, f"there is no column {key!r} to balance by; there are {', '.join(types)}")
    key_type = types[key].simpleString()
    hashed = key_type in ("string", "binary", "tinyint", "smallint", "int", "bigint")
    require(hashed, f"blocks are balanced by text, binary or whole numbers; {key!r} is {key_type}: send it as text")
    for name, data_type in types.items():
        unreadable = _unreadable(data_type)
        require(not unreadable, f"column {name!r} has a {unreadable}, which cannot be read from JSON: send it as text")


def _unreadable(data_type: DataType) -> str:
    """Returns the name of a type, nested or not, that cannot be read from JSON; empty if there is none."""
    if isinstance(data_type, (MapType, DateType)):
        return data_type.typeName()
    inner = [field.dataType for field in data_type.fields] if isinstance(data_type, StructType) else []
    inner += [data_type.elementType] if hasattr(data_type, "elementType") else []
    return next((unreadable for nested in inner if (unreadable := _unreadable(nested))), "")
