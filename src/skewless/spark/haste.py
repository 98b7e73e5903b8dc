"""What keeps a Python task of Spark waiting for nothing: acknowledgements, and garbage that is none."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
_TASKS = "tasks hastened by skewless"  # an attribute of gc: a process has one, whatever else it has imported


def hastening() -> Callable[[], None]:
    """What a task does before it asks for rows.

    A function inside another, which Spark pickles by value: it does not need this library where it runs.
    """
    tasks = _TASKS

    def hasten() -> None:
        # Spark sends a task, then its rows, and the second waits until the first is acknowledged (Nagle), which takes
        # Linux 40 milliseconds if nothing is sent back. This acknowledges at once what has come, and what will come.
        at_once: int = getattr(socket, "TCP_QUICKACK", 0)
        is_open = Path("/proc/self/fd")
        for place in is_open.iterdir() if at_once and is_open.is_dir() else ():
            with suppress(OSError):  # another thread may close what was open
                if place.is_socket():
                    with socket.socket(fileno=os.dup(int(place.name))) as one:
                        if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                            one.setsockopt(socket.IPPROTO_TCP, at_once, 1)
        # After each task Spark has all garbage collected. What the first one has imported need not be looked at again.
        done = getattr(gc, tasks, 0)  # to ask gc whether something is frozen takes it 15 milliseconds
        if done == 1:
            gc.freeze()
        setattr(gc, tasks, done + 1)

    return hasten


class _Hasten:
    """Done by whoever unpickles it."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return hastening(), ()


def hastened(function: Function) -> Function:
    """For a function that Spark pickles by value and calls when it has rows: its tasks hasten when they unpickle it."""
    function.__dict__["hastened"] = _Hasten()
    return function
