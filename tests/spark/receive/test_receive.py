"""Parameters of `receive` are checked before anything listens."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import skewless.spark as sl

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]

SCHEMA = "word string, n bigint, ts timestamp"
TOO_OLD = find_spec("pyspark.sql.streaming.datasource") is None


@pytest.mark.skipif(not TOO_OLD, reason="this pyspark has all that receive needs")
def test_an_old_pyspark_is_named_with_what_is_needed(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"receive needs pyspark 4\.2 or newer, not 4\.1"):
        sl.receive(spark, tmp_path)


@pytest.mark.skipif(TOO_OLD, reason="receive needs pyspark 4.2")
def test_what_cannot_be_received_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for params, why in (
        ({"key": "nothing", "schema": SCHEMA}, "no column 'nothing'"),
        ({"key": "x", "schema": "x double"}, "whole numbers; 'x' is double"),
        ({"key": "k", "schema": "k string, d array<date>"}, "'d' has a date"),
        ({"key": "k", "schema": "k string, m map<string,int>"}, "'m' has a map"),
        ({"port": 70_000}, "port is between 0 and 65535"),
        ({"n_workers": 0}, "n_workers is at least 1"),
    ):
        with pytest.raises(ValueError, match=why):
            sl.receive(spark, tmp_path, **params)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(TOO_OLD, reason="receive needs pyspark 4.2")
def test_records_without_a_schema_are_lines_of_text(spark: SparkSession, tmp_path: Path) -> None:
    events = sl.receive(spark, tmp_path)
    assert events.isStreaming
    assert events.schema.simpleString() == "struct<value:string>"
