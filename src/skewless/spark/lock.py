"""Who may write to a checkpoint: one process at a time, as long as it lives."""

from __future__ import annotations

import fcntl
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import Protocol
from uuid import uuid4

import pyarrow.fs as pafs

from skewless.store.files import naming

PATIENCE = 3.0  # seconds: over Connect, the process of a query outlives it a little
BEAT = 1.0  # seconds after which an owner says again that it lives
LAPSE = 6 * BEAT  # of silence, after which it is taken for dead
SETTLE = BEAT / 2  # for two who found nobody at the same time: the first sees that it was not alone


class Held(Protocol):
    """A checkpoint that is ours, until it is closed or this process ends."""

    def check(self) -> None:
        """Refused if another has it by now."""
        ...

    def close(self) -> None: ...


def hold(files: pafs.FileSystem, root: str, directory: str) -> Held:
    """Keep others off a directory, whose name they are told; refused if another has it."""
    with naming(root):
        files.create_dir(root, recursive=True)
    if isinstance(files, pafs.LocalFileSystem):
        return _Locked(Path(root, "lock"), directory)
    return Lease(files, f"{root}/owner", directory)


class _Locked:
    """A local file with a lock, which the operating system takes back when the process ends, however it does."""

    def __init__(self, path: Path, directory: str) -> None:
        with naming(str(path)):
            self._file = path.open("a")
        until = monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if monotonic() > until:
                    self._file.close()
                    raise _taken(directory) from None
                sleep(0.05)
            else:
                return

    def check(self) -> None:
        pass  # nobody can take it away

    def close(self) -> None:
        self._file.close()


class Lease:
    """A file that its owner writes again and again, for filesystems without locks.

    Whoever sees it change knows that the owner lives; no two clocks are compared. An owner that slept too long finds
    another one's name there, and must not write any more.
    """

    def __init__(self, files: pafs.FileSystem, path: str, directory: str) -> None:
        self._files, self._path, self._directory = files, path, directory
        self._name, self._beats = uuid4().hex.encode(), 0
        self._busy, self._ended = Lock(), Event()
        known, began = self._read(), monotonic()
        changed = began
        while known is not None and monotonic() - changed < LAPSE:
            sleep(BEAT / 4)
            seen = self._read()
            if seen is not None and seen != known:
                changed = monotonic()
                if changed - began > PATIENCE:
                    raise _taken(directory)
            known = seen
        self._write()
        sleep(SETTLE)
        self.check()
        Thread(target=self._live, name="skewless-lease", daemon=True).start()

    def check(self) -> None:
        with self._busy:
            if not self._is_ours():
                raise _taken(self._directory)

    def close(self) -> None:
        self._ended.set()
        with self._busy:
            if self._is_ours():
                self._files.delete_file(self._path)

    def _live(self) -> None:
        while not self._ended.wait(BEAT):
            with suppress(OSError), self._busy:  # what cannot be reached for a while may come back in time
                if self._ended.is_set() or not self._is_ours():
                    return
                self._write()

    def _is_ours(self) -> bool:
        return (self._read() or b"").startswith(self._name)

    def _read(self) -> bytes | None:
        """None, if there is no owner; not all of it, if it is being written."""
        try:
            with self._files.open_input_file(self._path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def _write(self) -> None:
        self._beats += 1
        with naming(self._path), self._files.open_output_stream(self._path) as file:
            file.write(self._name + b" %d" % self._beats)


def _taken(directory: str) -> ValueError:
    return ValueError(f"another query is running on the checkpoint {directory}: stop it first")
