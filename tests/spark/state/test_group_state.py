"""The state of a key during a call."""

from __future__ import annotations

import pytest

from skewless.spark.state.group_state import BatchTime, GroupState


def test_what_a_state_refuses() -> None:
    clock = BatchTime(now=1000, watermark=500, timeout="EventTimeTimeout", timed=False, width=2)
    state = GroupState(clock, None, False)
    assert not state.exists
    assert state.getOption is None
    for action, message in (
        (lambda: state.get, "no state"),
        (lambda: state.update((1,)), "tuple of 2 fields"),
        (lambda: state.setTimeoutDuration(5), 'needs timeoutConf="ProcessingTimeTimeout"'),
        (lambda: state.setTimeoutTimestamp(499), "must not be before the watermark 500"),
        (lambda: state.getCurrentWatermarkMs(), "no watermark"),
    ):
        with pytest.raises(ValueError, match=message):
            action()
    state.update((1, 2))
    assert state.get == (1, 2)
    state.remove()
    assert not state.exists
