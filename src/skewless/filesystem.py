"""Files on any filesystem that Arrow reaches: paths, atomic writes and write errors; and locks of local files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from skewless.arguments import require

if TYPE_CHECKING:  # it takes long to import, and `import skewless` needs no files
    import pyarrow as pa
    from pyarrow import fs


@lru_cache(maxsize=64)
def resolve(directory: str) -> tuple[Any, str]:
    """Returns the filesystem of a directory, given as a path or a URI, and its path there without a final slash."""
    from pyarrow import fs

    require(bool(directory), "a directory is given as a path or a URI, not as an empty string")
    if "://" in directory or directory.startswith("file:"):
        filesystem, path = fs.FileSystem.from_uri(directory)
        return filesystem, path.rstrip("/")
    return fs.LocalFileSystem(), str(Path(directory).absolute()).rstrip("/")


def write_file(directory: str, name: str, data: pa.Buffer) -> None:
    """Writes a new file, not atomically: readers must learn its name only after it is complete."""
    from pyarrow import fs

    filesystem, path = resolve(directory)
    if isinstance(filesystem, fs.LocalFileSystem):
        filesystem.create_dir(path, recursive=True)
    with naming_write_errors(f"{path}/{name}"), filesystem.open_output_stream(f"{path}/{name}") as file:
        file.write(data)


def write_atomically(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Writes or replaces a file: writes `<path>.tmp` and renames it, so that readers see the old or the new one."""
    with naming_write_errors(path):
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(f"{path}.tmp") as file:
            file.write(data)
        filesystem.move(f"{path}.tmp", path)


@contextmanager
def naming_write_errors(path: str) -> Iterator[None]:
    """Adds the path to write errors."""
    try:
        yield
    except OSError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def lock_file(path: Path, patience: float = 0.0) -> BinaryIO | None:
    """Opens and locks a local file; returns None if it is still locked elsewhere after `patience` seconds.

    The lock ends when the file is closed or the process ends, however that ends.
    """
    import fcntl  # not on Windows, where all else of this module works

    deadline = time.monotonic() + patience
    with naming_write_errors(str(path)):
        file = path.open("ab")
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.close()
                    return None
                time.sleep(0.05)
