"""Settings of a session that are changed for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def setting(spark: SparkSession, name: str, value: str | None) -> Iterator[None]:
    """Changes a setting inside a `with` block; None: as if nobody had set it."""
    before = spark.conf.get(name, None)
    if value is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)
        if before is not None:
            spark.conf.set(name, before)
