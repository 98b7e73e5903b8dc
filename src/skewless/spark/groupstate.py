"""The state of a key as its function sees it: with the names of PySpark's GroupState."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from skewless.arrays import require
from skewless.store import Values

Timeout: TypeAlias = Literal["NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"]  # as in PySpark


class GroupState:
    """The state of one key while its function runs: with the names of PySpark's GroupState.

    As there, a timeout lasts until the function is called again: then it is set anew, or there is none.
    """

    __slots__ = ("_clock", "_timeout", "_touched", "_value", "hasTimedOut")

    def __init__(self, clock: Clock, value: Values | None, expired: bool) -> None:
        self._clock = clock
        self._value = value
        self._timeout: int | None = None
        self._touched = False
        self.hasTimedOut = expired

    @property
    def exists(self) -> bool:
        return self._value is not None

    @property
    def get(self) -> Values:
        if self._value is None:
            raise ValueError("this key has no state: look at state.exists first")
        return self._value

    @property
    def getOption(self) -> Values | None:  # noqa: N802
        return self._value

    def update(self, newValue: Iterable[Any]) -> None:  # noqa: N803
        """Set the state: a tuple with the fields of its schema."""
        fits = isinstance(newValue, (tuple, list)) and len(newValue) == self._clock.width
        require(fits, f"a state is a tuple of {self._clock.width} fields, not {type(newValue).__name__}")
        self._value = tuple(newValue)
        self._touched = True

    def remove(self) -> None:
        self._value = None
        self._touched = True

    def setTimeoutDuration(self, durationMs: int) -> None:  # noqa: N802, N803
        """Time out so many milliseconds of processing time from now."""
        self._clock.check("ProcessingTimeTimeout")
        require(durationMs > 0, f"a timeout is more than 0 milliseconds from now, not {durationMs}")
        self._timeout = self._clock.now + int(durationMs)

    def setTimeoutTimestamp(self, timestampMs: int) -> None:  # noqa: N802, N803
        """Time out when the watermark is after this time, in milliseconds."""
        self._clock.check("EventTimeTimeout")
        require(timestampMs > 0, f"a timeout is after 1970, not {timestampMs}")
        watermark = self._clock.watermark
        require(timestampMs >= watermark, f"a timeout is not before the watermark {watermark}, as {timestampMs} is")
        self._timeout = int(timestampMs)

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        require(self._clock.timed, "there is no watermark: give the stream a time, as in sl.stream(..., time='ts')")
        return self._clock.watermark

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802
        return self._clock.now

    def __str__(self) -> str:
        return f"GroupState({self._value if self.exists else '<undefined>'})"


@dataclass(frozen=True)
class Clock:
    """The times of a batch, in milliseconds, and what they are for."""

    now: int
    watermark: int
    timeout: Timeout
    timed: bool  # do rows have a time?
    width: int  # fields of a state
    timers: bool = False  # are timeouts those of timers?

    def check(self, wanted: Timeout) -> None:
        require(self.timeout == wanted, f'this timeout needs timeoutConf="{wanted}"; here it is "{self.timeout}"')

    @property
    def expiring(self) -> int | None:
        """Timeouts up to this time are over. As in Spark, a timer is over at its time, and a timeout after it."""
        if self.timeout == "NoTimeout":
            return None
        time = self.now if self.timeout == "ProcessingTimeTimeout" else self.watermark
        return time if self.timers else time - 1
