"""The class style of keyed state: a StatefulProcessor of PySpark as a function of a key, its rows and its state."""

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

from skewless.arrays import require, whole
from skewless.spark.groupstate import GroupState, Timeout
from skewless.spark.schema import schema_of
from skewless.spark.task import Function, Lasting
from skewless.spark.variables import Variable, variable
from skewless.store import Values

TimeMode: TypeAlias = Literal["None", "ProcessingTime", "EventTime"]  # as in PySpark
TIMERS = "timers"  # the name of their field in the state, if no variable has it


class Handle(StatefulProcessorHandle):
    """What the `init` of a processor is given: its variables and timers, of the key at hand.

    The driver calls `init` to learn of which types they are; a task calls it with what the driver has learned.
    """

    def __init__(self, known: StructType | None, timed: bool) -> None:
        self.kinds: dict[str, DataType] = {}
        self._known = known
        self._timed = timed
        self._variables: dict[str, Variable] = {}
        self._is_new = True
        self._timers: set[int] | None = None  # of the key at hand
        self._before: set[int] = set()  # those that it came with

    def getValueState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ValueState:
        return cast(ValueState, self._declared(stateName, lambda: schema_of(schema), ttlDurationMs))

    def getListState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ListState:
        return cast(ListState, self._declared(stateName, lambda: ArrayType(schema_of(schema)), ttlDurationMs))

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: StructType | str,  # noqa: N803
        valueSchema: StructType | str,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> MapState:
        def kind() -> MapType:
            return MapType(schema_of(userKeySchema), schema_of(valueSchema))

        return cast(MapState, self._declared(stateName, kind, ttlDurationMs))

    def _declared(self, name: str, kind: Callable[[], DataType], ttl: int | None) -> Variable:
        self._require_new(f"state {name!r} is declared")
        require(name not in self.kinds, f"init declares state {name!r} twice: each has a name of its own")
        require(not ttl, f"state {name!r} has a ttlDurationMs of {ttl}, but states stay until cleared: take a timer")
        if self._known is None:
            self.kinds[name] = kind()
        else:  # there is no Spark in a task that could read a schema
            require(name in self._known.names, f"init declares state {name!r} in a task, but not on the driver")
            self.kinds[name] = self._known[name].dataType
        self._variables[name] = variable(name, self.kinds[name])
        return self._variables[name]

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        self._require_new(f"state {stateName!r} is deleted")
        self.kinds.pop(stateName, None)
        self._variables.pop(stateName, None)

    def _require_new(self, what: str) -> None:
        require(self._is_new, f"{what} by init, and not later")

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._pending().add(whole("a timer", expiryTimestampMs, -(2**63), 2**63 - 1))

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self._pending().discard(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        return iter(sorted(self._pending()))

    def due(self, until: int | None) -> list[int]:
        """The timers of the key at hand that are over, in order of time."""
        return [] if until is None else sorted(at for at in self._pending() if at <= until)

    def _pending(self) -> set[int]:
        require(self._timed, 'timers need timeMode="ProcessingTime" or "EventTime"; here it is "None"')
        if self._timers is None:
            raise ValueError("a timer is that of a key: it is there while one is handled")
        return self._timers

    def begin(self) -> None:
        """End of `init`: nothing is declared any more."""
        self._is_new = False

    def bind(self, state: GroupState) -> None:
        """Have this key at hand."""
        names = cast(StructType, self._known).names
        values = dict(zip(names, state.getOption or (None,) * len(names), strict=True))
        for name, each in self._variables.items():
            each.bind(values[name])
        self._before = set(values[names[-1]] or ()) if self._timed else set()
        self._timers = set(self._before)

    def release(self, state: GroupState) -> None:
        """Leave what there is now in the state of the key. A key that has nothing left has none."""
        timers = self._timers or set()
        kept = {name: each.release() for name, each in self._variables.items()}
        names = cast(StructType, self._known).names
        if self._timed:
            kept[names[-1]] = sorted(timers) or None
        if timers != self._before or any(each.is_changed for each in self._variables.values()):
            if any(value is not None for value in kept.values()):
                state.update([kept[name] for name in names])
            else:
                state.remove()
        # Not as a timeout is set: that of a timer may be over, and a processor may have registered it so.
        state._timeout = min(timers, default=None)
        self._timers = None


@dataclass(frozen=True)
class Processing(Lasting):
    """A processor as a function with state. The state is a struct: a field for each variable, and the timers."""

    processor: StatefulProcessor
    state: StructType
    timeout: Timeout
    in_pandas: bool
    output: pa.Schema
    is_initial: bool = False  # are these rows those of the initial state?

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
        """The rows of a key, then its timers that are over, each once and in order of time, as in Spark.

        As there, what a timer's call registers or deletes counts from the next batch on.
        """
        clock, found = state._clock, []
        times = TimerValues() if self.timeout == "NoTimeout" else TimerValues(clock.now, clock.watermark)
        handle.bind(state)
        if self.is_initial:
            for each in self._given(rows):
                self.processor.handleInitialState(key, each, times)
        else:
            if not state.hasTimedOut:
                found.append(self._told(self.processor.handleInputRows(key, self._given(rows), times)))
            for at in handle.due(clock.expiring):
                found.append(self._told(self.processor.handleExpiredTimer(key, times, ExpiredTimerInfo(at))))
                handle.deleteTimer(at)
        handle.release(state)
        return found

    def _given(self, rows: Any) -> Iterator[Any]:
        if self.in_pandas:
            return iter((rows,))
        row = Row(*rows.column_names)
        return (row(*values) for values in zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def _told(self, result: Any) -> Any:
        """All that it yields, while its key is at hand."""
        several = list(result) if isinstance(result, Iterator) else result
        if self.in_pandas or not several:
            return several
        return pa.Table.from_pylist([each.asDict(True) for each in several], schema=self.output)


def processing(processor: StatefulProcessor, mode: str, output: pa.Schema, in_pandas: bool) -> Processing:
    """A processor as a function with state; its `init` is asked for its variables."""
    is_one = isinstance(processor, StatefulProcessor)
    require(is_one, f"transformWithState takes an instance of a StatefulProcessor, not {processor!r}")
    modes = dict(zip((each.lower() for each in get_args(TimeMode)), get_args(Timeout), strict=True))
    known = isinstance(mode, str) and mode.lower() in modes
    require(known, f"timeMode is one of {', '.join(get_args(TimeMode))}, not {mode!r}")
    timeout: Timeout = modes[mode.lower()]
    handle = Handle(None, timeout != "NoTimeout")
    # A copy as the workers get theirs: the user's own stays as it is, and that is sent.
    one = cloudpickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
    one.init(handle)
    one.close()
    # In order of their names: which of them is declared first is no matter.
    fields = [StructField(name, handle.kinds[name]) for name in sorted(handle.kinds)]
    require(bool(fields), "this processor's init declares no state: take a value, a list or a map from its handle")
    if timeout != "NoTimeout":
        name = TIMERS
        while name in handle.kinds:
            name += "_"
        fields.append(StructField(name, ArrayType(T.LongType())))
    return Processing(processor, StructType(fields), timeout, in_pandas, output)
