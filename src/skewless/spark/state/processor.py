"""Runs a PySpark StatefulProcessor as a function of a key, its rows and its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, cast, get_args

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructField, StructType

from skewless.arguments import require, whole
from skewless.spark.schema import schema_of
from skewless.spark.state.group_state import GroupState, Timeout
from skewless.spark.state.task import Function, FunctionWithSetup
from skewless.spark.state.variables import Variable, variable
from skewless.store import Values

TimeMode: TypeAlias = Literal["None", "ProcessingTime", "EventTime"]  # as in PySpark
TIMERS = "timers"  # the field of the state with the timers, unless a variable has this name


class Handle(StatefulProcessorHandle):
    """The argument of a processor's `init`: declares variables, and has the timers of the current key.

    The driver calls `init` without a schema, to learn the types of the variables; tasks call it with the schema of the
    state, as they have no Spark session that could parse one.
    """

    def __init__(self, schema: StructType | None, timed: bool) -> None:
        self.types: dict[str, DataType] = {}
        self._schema = schema
        self._timed = timed
        self._variables: dict[str, Variable] = {}
        self._in_init = True
        self._timers: set[int] | None = None  # of the current key
        self._stored_timers: set[int] = set()  # of the current key, before the call

    def getValueState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ValueState:
        return cast(ValueState, self._declare(stateName, lambda: schema_of(schema), ttlDurationMs))

    def getListState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ListState:
        return cast(ListState, self._declare(stateName, lambda: ArrayType(schema_of(schema)), ttlDurationMs))

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: StructType | str,  # noqa: N803
        valueSchema: StructType | str,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> MapState:
        def kind() -> MapType:
            return MapType(schema_of(userKeySchema), schema_of(valueSchema))

        return cast(MapState, self._declare(stateName, kind, ttlDurationMs))

    def _declare(self, name: str, kind: Callable[[], DataType], ttl: int | None) -> Variable:
        self._require_init(f"state {name!r} is declared")
        require(name not in self.types, f"init declares state {name!r} twice: give each state its own name")
        require(not ttl, f"state {name!r} has a ttlDurationMs of {ttl}, which is not supported: use a timer")
        if self._schema is None:
            self.types[name] = kind()
        else:
            require(name in self._schema.names, f"init declares state {name!r} in a task, but not on the driver")
            self.types[name] = self._schema[name].dataType
        self._variables[name] = variable(name, self.types[name])
        return self._variables[name]

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        self._require_init(f"state {stateName!r} is deleted")
        self.types.pop(stateName, None)
        self._variables.pop(stateName, None)

    def _require_init(self, action: str) -> None:
        require(self._in_init, f"{action} after init: only init may do that")

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._pending().add(whole("a timer", expiryTimestampMs, -(2**63), 2**63 - 1))

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._pending().discard(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        return iter(sorted(self._pending()))

    def due(self, until: int | None) -> list[int]:
        """Returns the timers of the current key that have expired, in order of time.

        until: the latest time that expires; None: no timer does.
        """
        return [] if until is None else sorted(timer for timer in self._pending() if timer <= until)

    def _pending(self) -> set[int]:
        require(self._timed, 'timers need timeMode="ProcessingTime" or "EventTime"; here it is "None"')
        if self._timers is None:
            raise ValueError("timers can only be used while a key is handled")
        return self._timers

    def begin(self) -> None:
        """Ends `init`: no more variables can be declared."""
        self._in_init = False

    def bind(self, state: GroupState) -> None:
        """Makes the key of this state the current key."""
        names = cast(StructType, self._schema).names
        values = dict(zip(names, state.getOption or (None,) * len(names), strict=True))
        for name, declared in self._variables.items():
            declared.bind(values[name])
        self._stored_timers = set(values[names[-1]] or ()) if self._timed else set()
        self._timers = set(self._stored_timers)

    def release(self, state: GroupState) -> None:
        """Stores variables and timers in the state of the key; removes the state if all are empty."""
        timers = self._timers or set()
        values = {name: declared.release() for name, declared in self._variables.items()}
        names = cast(StructType, self._schema).names
        if self._timed:
            values[names[-1]] = sorted(timers) or None
        if timers != self._stored_timers or any(declared.is_changed for declared in self._variables.values()):
            if any(value is not None for value in values.values()):
                state.update([values[name] for name in names])
            else:
                state.remove()
        # Set directly, as setTimeoutTimestamp refuses times in the past, for which a processor may register timers.
        state._timeout = min(timers, default=None)
        self._timers = None


@dataclass(frozen=True)
class Processing(FunctionWithSetup):
    """A processor as a function with state.

    The state has a field for each variable and, unless timeMode is "None", one for the timers, which is the last.
    """

    processor: StatefulProcessor
    state: StructType
    timeout: Timeout
    in_pandas: bool
    output: pa.Schema
    is_initial: bool = False  # whether the rows are those of the initial state

    @contextmanager
    def running(self) -> Iterator[Function]:
        handle = Handle(self.state, self.timeout != "NoTimeout")
        self.processor.init(handle)
        handle.begin()
        try:
            yield partial(self._call, handle)
        finally:
            self.processor.close()

    def _call(self, handle: Handle, key: Values, rows: Any, state: GroupState) -> list[Any]:
        """Handles the rows of a key, then its expired timers, in order of time.

        As in Spark, timers that are registered or deleted while a timer is handled count from the next batch on.
        """
        clock, results = state._clock, []
        times = TimerValues() if self.timeout == "NoTimeout" else TimerValues(clock.now, clock.watermark)
        handle.bind(state)
        if self.is_initial:
            for row in self._input(rows):
                self.processor.handleInitialState(key, row, times)
        else:
            if not state.hasTimedOut:
                results.append(self._output(self.processor.handleInputRows(key, self._input(rows), times)))
            for timer in handle.due(clock.expiring):
                results.append(self._output(self.processor.handleExpiredTimer(key, times, ExpiredTimerInfo(timer))))
                handle.deleteTimer(timer)
        handle.release(state)
        return results

    def _input(self, rows: Any) -> Iterator[Any]:
        """Returns rows as the processor takes them: one frame, or a Row each."""
        if self.in_pandas:
            return iter((rows,))
        row = Row(*rows.column_names)
        return (row(*values) for values in zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def _output(self, result: Any) -> Any:
        """Exhausts the iterator that a processor returned, while its key is the current one."""
        results = list(result) if isinstance(result, Iterator) else result
        if self.in_pandas or not results:
            return results
        return pa.Table.from_pylist([row.asDict(True) for row in results], schema=self.output)


def processing(processor: StatefulProcessor, mode: str, output: pa.Schema, in_pandas: bool) -> Processing:
    """Returns a processor as a function with state; calls its `init` for the types of its variables."""
    is_processor = isinstance(processor, StatefulProcessor)
    require(is_processor, f"transformWithState takes an instance of a StatefulProcessor, not {processor!r}")
    modes = dict(zip((name.lower() for name in get_args(TimeMode)), get_args(Timeout), strict=True))
    is_mode = isinstance(mode, str) and mode.lower() in modes
    require(is_mode, f"timeMode is one of {', '.join(get_args(TimeMode))}, not {mode!r}")
    timeout: Timeout = modes[mode.lower()]
    handle = Handle(None, timeout != "NoTimeout")
    # On a copy, as in tasks: `init` must not change the user's object, which is sent to them.
    copy = cloudpickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
    copy.init(handle)
    copy.close()
    # Sorted, as the order of declarations may change between runs.
    fields = [StructField(name, handle.types[name]) for name in sorted(handle.types)]
    require(bool(fields), "this processor's init declares no state: call getValueState, getListState or getMapState")
    if timeout != "NoTimeout":
        name = TIMERS
        while name in handle.types:
            name += "_"
        fields.append(StructField(name, ArrayType(T.LongType())))
    return Processing(
        processor=processor, state=StructType(fields), timeout=timeout, in_pandas=in_pandas, output=output
    )
