"""Settings of a session are read in every form that Spark accepts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from skewless.spark.settings import in_bytes, is_on, shuffle_partitions

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]
NAME = "spark.skewless.test"


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Yields a session that does not have the setting, and removes it afterwards."""
    spark.conf.unset(NAME)
    yield spark
    spark.conf.unset(NAME)


def test_switches_are_on_or_off_in_any_case(session: SparkSession) -> None:
    assert [is_on(session, NAME, default) for default in ("true", "false")] == [True, False]
    for word, on in (("true", True), ("TRUE", True), ("False", False)):
        session.conf.set(NAME, word)
        assert is_on(session, NAME, "false") == on


def test_sizes_are_in_bytes_whatever_their_unit(session: SparkSession) -> None:
    assert in_bytes(session, NAME, 12) == 12
    for text, size in (("1048576b", 2**20), ("64MB", 2**26), ("64m", 2**26), ("2 GiB", 2**31), ("1k", 1024), ("7", 7)):
        session.conf.set(NAME, text)
        assert in_bytes(session, NAME, 12) == size
    session.conf.set(NAME, "much")
    assert in_bytes(session, NAME, 12) == 12


def test_shuffle_partitions_are_those_of_the_session(spark: SparkSession) -> None:
    assert shuffle_partitions(spark) == 7
