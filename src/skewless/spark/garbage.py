"""Garbage in Spark's Python processes, which collect it after each task: what was imported is not looked at again."""

from __future__ import annotations

import gc
from functools import cache


@cache
def spare_imports() -> None:
    """Take all that is there now for lasting; once in a process, at the end of its first task."""
    gc.freeze()
