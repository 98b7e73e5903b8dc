"""Locks a checkpoint, so that one query at a time writes to it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Protocol
from uuid import uuid4

import pyarrow.fs as pafs

from skewless.filesystem import lock_file, naming_write_errors

PATIENCE = 3.0  # seconds to wait for a lock: over Connect, the process of a query outlives it a little
BEAT = 1.0  # seconds between two heartbeats of an owner
LAPSE = 6 * BEAT  # seconds without a heartbeat after which an owner is taken for dead
SETTLE = BEAT / 2  # seconds to wait for another query that takes the free lock at the same time


class Held(Protocol):
    """The lock of a checkpoint, held until it is closed or this process ends."""

    def check(self) -> None:
        """Raises ValueError if another query has taken the lock."""
        ...

    def close(self) -> None:
        """Releases the lock."""
        ...


def hold(files: pafs.FileSystem, root: str, directory: str) -> Held:
    """Locks a directory; raises ValueError if another query has it.

    root: the path of the directory on `files`.
    directory: its name for the error message.
    """
    with naming_write_errors(root):
        files.create_dir(root, recursive=True)
    if isinstance(files, pafs.LocalFileSystem):
        return _Locked(Path(root, "lock"), directory)
    return Lease(files, f"{root}/owner", directory)


class _Locked:
    """A lock on a local file, which the operating system releases when the process ends."""

    def __init__(self, path: Path, directory: str) -> None:
        file = lock_file(path, PATIENCE)
        if file is None:
            raise _taken(directory)
        self._file = file

    def check(self) -> None:
        pass  # the operating system gives the lock to no other query

    def close(self) -> None:
        self._file.close()


class Lease:
    """A file that its owner keeps rewriting, for filesystems without locks.

    A file that changes shows that its owner is alive; no clocks are compared. An owner that was suspended for too long
    finds another name in the file, and must not write to the checkpoint any more.
    """

    def __init__(self, files: pafs.FileSystem, path: str, directory: str) -> None:
        self._files, self._path, self._directory = files, path, directory
        self._name, self._beats = uuid4().hex.encode(), 0
        self._busy, self._ended = Lock(), Event()
        content, began = self._read(), monotonic()
        changed = began
        while content is not None and monotonic() - changed < LAPSE:
            sleep(BEAT / 4)
            seen = self._read()
            if seen is not None and seen != content:
                changed = monotonic()
                if changed - began > PATIENCE:
                    raise _taken(directory)
            content = seen
        self._write()
        sleep(SETTLE)
        self.check()
        self._thread = Thread(target=self._beat, name="skewless-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        with self._busy:
            if not self._is_ours():
                raise _taken(self._directory)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        with self._busy:
            if self._is_ours():
                self._files.delete_file(self._path)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with suppress(OSError), self._busy:  # a filesystem that is unreachable may come back in time
                if self._ended.is_set() or not self._is_ours():
                    return
                self._write()

    def _is_ours(self) -> bool:
        return (self._read() or b"").startswith(self._name)

    def _read(self) -> bytes | None:
        """Returns the content, possibly only a part while it is being written; None if there is no owner."""
        try:
            with self._files.open_input_file(self._path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def _write(self) -> None:
        self._beats += 1
        with naming_write_errors(self._path), self._files.open_output_stream(self._path) as file:
            file.write(self._name + b" %d" % self._beats)


def _taken(directory: str) -> ValueError:
    return ValueError(f"another query is running on the checkpoint {directory}: stop it first")
