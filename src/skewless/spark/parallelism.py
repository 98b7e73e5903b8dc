"""How many workers there are if nobody says it."""

from __future__ import annotations

import re
from math import ceil, isinf

from pyspark.sql import SparkSession

from skewless.spark.profile import explained

SHARE = 2**25  # bytes read for a worker, at most; they are compressed, mostly, and Spark advises 64 MiB to shuffle


def parallelism(spark: SparkSession, size: float = 0.0) -> int:
    """As many as Spark runs tasks at a time, or more for much data; at most the session's shuffle partitions.

    Spark has two hundred of these by default, and merges small ones where it can. Balanced workers need not be many.

    size: bytes that are read, infinite if it is not known.
    """
    most = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    if isinf(size) or spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return most  # as many tasks at a time as there will be are not known before they are needed
    # A range is split into as many parts as tasks run at a time. Only its plan says how many over Connect, too.
    slots = re.search(r"splits=(?:Some\()?(\d+)", explained(spark.range(1)))
    return min(most, max(int(slots[1]), ceil(size / SHARE))) if slots else most
