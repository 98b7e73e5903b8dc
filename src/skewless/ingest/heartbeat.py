"""Predicts when Spark will ask for the next batch, and when the batch must close to be planned by then."""

from __future__ import annotations

from collections import deque
from statistics import median

SHARE = 0.05  # most of an interval that a batch closes early: all that the paper ever needed
MARGIN = 1.5  # times the longest plan of late, so that one that takes longer is ready, too
MEMORY = 5  # intervals and plans to go by
ENOUGH = 3  # intervals to know before going by them


class Heartbeat:
    """Prompt's early batch release (section 4.2): when to close a batch, so that its plan is ready at the heartbeat.

    A heartbeat is a moment at which Spark asks for a batch. Its trigger may have an interval; else it asks when the
    last batch is done. Only intervals after a batch that had rows count: after an empty one, Spark asks again at once.

    >>> heart = Heartbeat()
    >>> for second in (0.0, 10.0, 20.0, 30.0):
    ...     heart.beat(second, had_rows=True)
    >>> heart.planned(0.2)
    >>> round(heart.closing, 3)
    39.7
    """

    def __init__(self) -> None:
        self._last: float | None = None  # when Spark got a batch with rows, unless it asked again since
        self._intervals = deque[float](maxlen=MEMORY)
        self._plans = deque[float](maxlen=MEMORY)

    def beat(self, now: float, had_rows: bool) -> None:
        """Takes note that Spark asked.

        now: in seconds. had_rows: whether there were any for it.
        """
        if self._last is not None:
            self._intervals.append(now - self._last)
        self._last = now if had_rows else None

    def planned(self, seconds: float) -> None:
        """Takes note of the time that the plan of a batch took."""
        self._plans.append(seconds)

    @property
    def closing(self) -> float | None:
        """When the next batch should close; None if that cannot be known yet."""
        if self._last is None or len(self._intervals) < ENOUGH:
            return None
        interval = median(self._intervals)
        slack = min(MARGIN * max(self._plans, default=0.0), SHARE * interval)
        return self._last + interval - slack
