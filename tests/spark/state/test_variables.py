"""The state variables of a processor, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import DoubleType, StructField, StructType

from skewless.spark.state.group_state import BatchTime, GroupState
from skewless.spark.state.processor import processing

pytestmark = pytest.mark.compiled


def test_what_a_handle_and_its_variables_refuse() -> None:
    kind = StructType([StructField("x", DoubleType())])

    class Both(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.one, self.some = handle.getValueState("one", kind), handle.getListState("timers", kind)
            self.named = handle.getMapState("named", kind, kind)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            refused: tuple[tuple[Callable[[], Any], str], ...] = (
                (lambda: self.one.update(5), r"a tuple of 1 fields \(x\), not int"),
                (lambda: self.some.appendValue((1, 2)), "not 2 fields"),
                (lambda: self.some.put([]), "at least one value"),
                (lambda: self.handle.registerTimer(0.5), "a whole number, not 0.5"),
                (lambda: self.handle.getValueState("late", kind), "only init may do that"),
            )
            for action, message in refused:
                with pytest.raises((ValueError, TypeError), match=message):
                    action()
            nan = float("nan")
            self.named.updateValue((nan,), (1.0,))
            self.named.updateValue((nan,), (2.0,))
            assert [value for _, value in self.named.iterator()] == [(2.0,)]

    function_of_key = processing(Both(), "EventTime", pa.schema([]), True)
    assert function_of_key.state.names == ["named", "one", "timers", "timers_"]
    clock = BatchTime(now=0, watermark=10, timeout="EventTimeTimeout", timed=True, width=4, timers=True)
    state = GroupState(clock, None, False)
    processor: Any = function_of_key.processor
    with function_of_key.running() as function:
        with pytest.raises(ValueError, match="while a key is handled"):
            processor.one.get()
        with pytest.raises(ValueError, match="while a key is handled"):
            processor.handle.listTimers()
        function(("a",), pd.DataFrame(), state)
    assert state.get[1:] == (None, None, None)
