"""Garbage in Spark's Python processes, which collect it after each task: what was imported is not looked at again."""

from __future__ import annotations

import gc
from collections.abc import Callable

_DONE = "spared by skewless"  # an attribute of gc: a process has one, whatever else it has imported


def sparing() -> Callable[[], None]:
    """What takes all that is there for lasting; once in a process, at the end of its first task.

    A function inside another, which Spark pickles by value: it does not need this library where it runs.
    """
    done = _DONE

    def spare() -> None:
        if not hasattr(gc, done):  # to ask gc how much is frozen already takes it 15 milliseconds
            gc.freeze()
            setattr(gc, done, True)

    return spare
