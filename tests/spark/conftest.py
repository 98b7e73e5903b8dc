"""A real Spark on this machine: a classic session, then one over Connect.

Tests of one `xdist_group` share them. There are two groups that take about as long, "batch" and "streams": they run
beside each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests import environment

SETTINGS = {
    "spark.sql.shuffle.partitions": "7",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",  # else Spark 4.1 cannot tell the size of frames from pandas
    # Splitting keys needs these; they are off by default in Spark 4.1.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}


@pytest.fixture(scope="session", params=["classic", "connect"])
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Yields a session. A test runs on both kinds, unless it takes long and a shorter one covers what may differ."""
    os.environ |= environment.SETTINGS
    builder = SparkSession.builder
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    if request.param == "classic":
        session = builder.master("local[2]").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
    else:
        os.environ["SPARK_TESTING"] = "1"  # a free port, so that two runs do not meet
        session = builder.remote("local[2]").getOrCreate()
    yield session
    session.stop()
