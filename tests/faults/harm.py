"""Small faults that other tests cause: processes that are killed or suspended, and files that are damaged."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Harm = Literal["flipped", "cut", "missing", "empty", "zeros", "rubbish"]


def kill(process: subprocess.Popen[Any] | int) -> None:
    """Ends a process with SIGKILL, so that it cannot clean up; nothing happens to a child that has ended already."""
    if isinstance(process, int):
        os.kill(process, signal.SIGKILL)
    else:
        process.kill()


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspends a process until the end of the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def killed_once(flag: str) -> Callable[[], None]:
    """Returns a function that kills its process if there is such a file, and deletes the file before.

    It is a nested function that imports what it needs, so that Spark sends it to Python workers by value.
    """

    def die() -> None:
        import os
        import signal

        if os.path.exists(flag):  # noqa: PTH110
            os.remove(flag)  # noqa: PTH107
            os.kill(os.getpid(), signal.SIGKILL)

    return die


def damage(path: Path, harm: Harm, at: int | None = None) -> None:
    """Damages a file: flips a bit, cuts off the end, deletes it, empties it, or overwrites it with zeros or rubbish.

    at: the byte that is flipped, or the first one that is cut off, from the end if it is negative; by default in the
        middle.
    """
    content = path.read_bytes()
    at = len(content) // 2 if at is None else at % len(content)
    if harm == "missing":
        path.unlink()
    elif harm == "flipped":
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    elif harm == "cut":
        path.write_bytes(content[:at])
    elif harm == "zeros":
        path.write_bytes(content[:4096] + bytes(max(0, len(content) - 4096)))
    else:
        path.write_bytes(b"" if harm == "empty" else b"rubbish" * 1000)


@contextmanager
def damaged(path: Path, harm: Harm) -> Iterator[None]:
    """Damages a file of Spark's until the end of the block, and deletes Hadoop's checksum, which would reveal it."""
    content = path.read_bytes()
    damage(path, harm)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    try:
        yield
    finally:
        path.write_bytes(content)


@contextmanager
def blocked(directory: Path) -> Iterator[None]:
    """Puts a file in the place of a directory until the end of the block."""
    kept = directory.rename(directory.with_name(f"{directory.name}-kept"))
    directory.write_text("no directory")
    try:
        yield
    finally:
        directory.unlink()
        kept.rename(directory)
