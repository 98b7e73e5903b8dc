"""The jobs of functions and processors with state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import get_args

from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from skewless.arguments import require
from skewless.spark.exact import Exact
from skewless.spark.schema import arrow_schema, schema_of
from skewless.spark.state.function import KeyFunction
from skewless.spark.state.group_state import Timeout
from skewless.spark.state.initial import load
from skewless.spark.state.operator import Stateful
from skewless.spark.state.processor import TimeMode, processing
from skewless.spark.state.task import Function, FunctionWithSetup
from skewless.spark.streaming.job import Job
from skewless.spark.streaming.rows import KeyedRows


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """The parameters that functions with state have in common."""

    output: StructType | str
    state: StructType | str
    timeout: Timeout
    initial: DataFrame | None
    in_pandas: bool


def state_job(rows: KeyedRows, function: Function | FunctionWithSetup, settings: StateSettings) -> Job:
    """Checks and resolves the parameters of `Stream.applyInArrowWithState`."""
    by_table = not isinstance(rows.partitioner, Exact)
    require(by_table, "keyed state is routed by tables only: give the partitioner itself, not an Exact")
    is_function = callable(function) or isinstance(function, FunctionWithSetup)
    require(is_function, f"keyed state takes a function (key, rows, state), not {function!r}")
    timeout, initial = settings.timeout, settings.initial
    require(timeout in get_args(Timeout), f"timeoutConf is one of {', '.join(get_args(Timeout))}, not {timeout!r}")
    has_time = timeout != "EventTimeTimeout" or rows.time is not None
    require(has_time, 'timeouts in event time need the time of rows: sl.stream(..., time="ts")')
    called = KeyFunction(
        call=function,
        output=schema_of(settings.output),
        state=schema_of(settings.state),
        timeout=timeout,
        in_pandas=settings.in_pandas,
        timed=rows.time is not None,
    )
    arrow_schema(called.state)  # refuses types that states cannot have
    operator = Stateful(key=rows.key, function=called, time=rows.time)
    prepare = None if initial is None else partial(load, initial, rows.key, called)
    return Job(rows, operator, split=False, prepare=prepare)


def processor_job(
    rows: KeyedRows,
    processor: StatefulProcessor,
    output: StructType | str,
    mode: TimeMode,
    initial: DataFrame | None,
    *,
    in_pandas: bool,
) -> Job:
    """Checks and resolves the parameters of `Stream.transformWithState`."""
    function = processing(processor, mode, arrow_schema(schema_of(output)), in_pandas)
    settings = StateSettings(
        output=output, state=function.state, timeout=function.timeout, initial=initial, in_pandas=in_pandas
    )
    return state_job(rows, function, settings)
