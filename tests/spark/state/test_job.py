"""Functions with state are checked before they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import skewless.spark as sl
from skewless.spark.state.operator import Stateful
from tests.spark.batches import read, write

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]
SCHEMA = "k string"


def same(key: tuple[Any, ...], rows: pa.Table, state: Any) -> pa.Table:
    return rows.select(["k"])


def test_bad_functions_and_timeouts_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    events = read(spark, write(tmp_path / "in", []))
    stream, wrong = sl.stream(events, "k"), "a function"
    anything: Any = wrong
    refused: list[tuple[str, Callable[[], object]]] = [
        (
            r"takes a function \(key, rows, state\), not 'a function'",
            lambda: stream.applyInArrowWithState(anything, SCHEMA, SCHEMA),
        ),
        ("timeoutConf is one of NoTimeout,", lambda: stream.applyInArrowWithState(same, SCHEMA, SCHEMA, anything)),
        ("need the time of rows", lambda: stream.applyInArrowWithState(same, SCHEMA, SCHEMA, "EventTimeTimeout")),
        (
            "cannot have fields of type interval year",
            lambda: stream.applyInArrowWithState(same, SCHEMA, "n interval year"),
        ),
        (
            "give the partitioner itself, not an Exact",
            lambda: sl.stream(events, "k", partitioner=sl.Exact("kip")).applyInArrowWithState(same, SCHEMA, SCHEMA),
        ),
    ]
    for sentence, call in refused:
        with pytest.raises(ValueError, match=sentence):
            call()


def test_parameters_come_to_the_operator(spark: SparkSession, tmp_path: Path) -> None:
    events = read(spark, write(tmp_path / "in", []))
    stream = sl.stream(events, "k", time="ts", n_workers=3)
    job = stream.applyInArrowWithState(same, SCHEMA, "n long", "EventTimeTimeout")
    assert isinstance(job.operator, Stateful)
    function = job.operator.function
    assert (function.output.simpleString(), function.state.simpleString()) == ("struct<k:string>", "struct<n:bigint>")
    assert (function.timeout, function.timed, function.in_pandas) == ("EventTimeTimeout", True, False)
    assert (job.split, job.prepare) == (False, None)
