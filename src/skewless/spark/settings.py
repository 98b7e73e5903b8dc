"""Reads settings of a Spark session."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession


def is_on(spark: SparkSession, name: str, default: str) -> bool:
    """Returns whether a setting is true; Spark accepts the word in any case."""
    return str(spark.conf.get(name, default)).lower() == "true"


def in_bytes(spark: SparkSession, name: str, default: int) -> int:
    """Returns a size such as 64MB or 1048576b in bytes."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)i?b?", str(spark.conf.get(name, str(default))).lower())
    return int(match[1]) * 1024 ** " kmgt".index(match[2] or " ") if match else default


def shuffle_partitions(spark: SparkSession) -> int:
    """Returns into how many partitions plain Spark shuffles rows, before adaptive execution merges small ones."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
