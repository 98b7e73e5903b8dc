"""The state of a key as the user's function sees it, with the interface of PySpark's GroupState."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from skewless.arguments import require
from skewless.store import Values

Timeout: TypeAlias = Literal["NoTimeout", "ProcessingTimeTimeout", "EventTimeTimeout"]  # as in PySpark


class GroupState:
    """The state of a key during a call of the user's function, with the interface of PySpark's GroupState.

    As in PySpark, a timeout ends with the next call of the function for the key, which may set a new one. `hasTimedOut`
    is whether the call is made because the key timed out.

    >>> clock = BatchTime(now=1000, watermark=0, timeout="ProcessingTimeTimeout", timed=False, width=1)
    >>> state = GroupState(clock, value=None, expired=False)
    >>> state.update((state.get[0] + 1 if state.exists else 1,))
    >>> state.setTimeoutDuration(60_000)
    >>> state.get
    (1,)
    """

    __slots__ = ("_clock", "_timeout", "_touched", "_value", "hasTimedOut")

    def __init__(self, clock: BatchTime, value: Values | None, expired: bool) -> None:
        self._clock = clock
        self._value = value
        self._timeout: int | None = None
        self._touched = False
        self.hasTimedOut = expired

    @property
    def exists(self) -> bool:
        """Whether the key has a state."""
        return self._value is not None

    @property
    def get(self) -> Values:
        """The state, as a tuple with the fields of its schema; raises ValueError if there is none."""
        if self._value is None:
            raise ValueError("this key has no state: check state.exists first")
        return self._value

    @property
    def getOption(self) -> Values | None:  # noqa: N802
        """The state, or None if there is none."""
        return self._value

    def update(self, newValue: Iterable[Any]) -> None:  # noqa: N803
        """Sets the state to a tuple with the fields of its schema."""
        fits = isinstance(newValue, (tuple, list)) and len(newValue) == self._clock.width
        require(fits, f"a state must be a tuple of {self._clock.width} fields, not {newValue!r}")
        self._value = tuple(newValue)
        self._touched = True

    def remove(self) -> None:
        """Deletes the state."""
        self._value = None
        self._touched = True

    def setTimeoutDuration(self, durationMs: int) -> None:  # noqa: N802, N803
        """Sets a timeout `durationMs` milliseconds of processing time from now."""
        self._clock.check("ProcessingTimeTimeout")
        require(durationMs > 0, f"a timeout duration must be more than 0 milliseconds, not {durationMs}")
        self._timeout = self._clock.now + int(durationMs)

    def setTimeoutTimestamp(self, timestampMs: int) -> None:  # noqa: N802, N803
        """Sets a timeout for when the watermark has passed this time, in milliseconds since 1970."""
        self._clock.check("EventTimeTimeout")
        require(timestampMs > 0, f"a timeout timestamp must be more than 0 milliseconds since 1970, not {timestampMs}")
        watermark = self._clock.watermark
        is_allowed = timestampMs >= watermark
        require(is_allowed, f"a timeout timestamp must not be before the watermark {watermark}, but is {timestampMs}")
        self._timeout = int(timestampMs)

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        """Returns the watermark of the batch, in milliseconds since 1970."""
        require(self._clock.timed, "there is no watermark: name a time column, as in sl.stream(..., time='ts')")
        return self._clock.watermark

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802
        """Returns the time at which the batch began, in milliseconds since 1970."""
        return self._clock.now

    def __str__(self) -> str:
        return f"GroupState({self._value if self.exists else '<undefined>'})"


@dataclass(frozen=True)
class BatchTime:
    """The times of a batch, in milliseconds, and how they are used."""

    now: int
    watermark: int
    timeout: Timeout
    timed: bool  # whether rows have a time column
    width: int  # the number of fields of a state
    timers: bool = False  # whether timeouts are timers of a StatefulProcessor

    def check(self, timeout: Timeout) -> None:
        """Refuses a timeout of another kind than the query has."""
        require(self.timeout == timeout, f'this timeout needs timeoutConf="{timeout}"; here it is "{self.timeout}"')

    @property
    def expiring(self) -> int | None:
        """The latest timeout that expires in this batch; None if the query has no timeouts.

        As in Spark, timers expire at their time, timeouts after it.
        """
        if self.timeout == "NoTimeout":
            return None
        time = self.now if self.timeout == "ProcessingTimeTimeout" else self.watermark
        return time if self.timers else time - 1
