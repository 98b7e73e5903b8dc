"""Reads settings of a Spark session."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:  # versions of pyspark that are too old, and refused because of that, may lack it
    from pyspark.sql import SparkSession


def spark_version() -> tuple[int, int]:
    """Returns the major and the minor version of the installed pyspark."""
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def is_on(spark: SparkSession, name: str, default: str | None = None) -> bool:
    """Returns whether a setting is true; Spark accepts the word in any case.

    default: its value if it is not set; None: Spark's own default, or false if this version has no such setting.
    """
    if default is not None:
        return str(spark.conf.get(name, default)).lower() == "true"
    try:  # without a default of ours: Spark would return that instead of its own
        return str(spark.conf.get(name)).lower() == "true"
    except Exception:  # this version of Spark has no such setting; Classic and Connect raise different classes
        return False


def in_bytes(spark: SparkSession, name: str, default: int) -> int:
    """Returns a size such as 64MB or 1048576b in bytes."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", str(spark.conf.get(name, str(default))).lower())
    return int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else default


def shuffle_partitions(spark: SparkSession) -> int:
    """Returns into how many partitions plain Spark shuffles rows, before adaptive execution merges small ones."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
