"""Cuts the start-up time of Python tasks: immediate TCP acknowledgements and a frozen garbage collector."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
TASK_COUNT = "tasks started by skewless"  # an attribute of gc, as the process may not be able to import this module


def _made_to_be_pickled() -> Callable[[], None]:
    """Returns `quick_start` as a nested function, which Spark pickles by value: executors need not have skewless."""

    def quick_start() -> None:
        # Spark sends a task, then its rows. Nagle's algorithm holds the rows back until the task is acknowledged, and
        # Linux delays that by 40 ms if there is no answer to send. TCP_QUICKACK acknowledges at once.
        quick_ack: int = getattr(socket, "TCP_QUICKACK", 0)
        open_files = Path("/proc/self/fd")
        for path in open_files.iterdir() if quick_ack and open_files.is_dir() else ():
            with suppress(OSError):  # another thread may close the file
                if path.is_socket():
                    with socket.socket(fileno=os.dup(int(path.name))) as connection:
                        is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6)
                        if is_tcp and connection.type == socket.SOCK_STREAM:
                            connection.setsockopt(socket.IPPROTO_TCP, quick_ack, 1)
        # Spark collects garbage after each task. Freezing exempts what the first task has imported from that.
        tasks = getattr(gc, TASK_COUNT, 0)  # gc.get_freeze_count() would take 15 ms
        if tasks == 1:
            gc.freeze()
        setattr(gc, TASK_COUNT, tasks + 1)

    return quick_start


# Call this at the start of a Python task, before it reads rows.
quick_start = _made_to_be_pickled()


class _StartsWhenUnpickled:
    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return quick_start, ()


def with_quick_start(function: AnyFunction) -> AnyFunction:
    """Makes a task call `quick_start` when it unpickles this function.

    For functions that Spark pickles by value and calls only when it has rows already.
    """
    function.__dict__["quick_start"] = _StartsWhenUnpickled()
    return function
