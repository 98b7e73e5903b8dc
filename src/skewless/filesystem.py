"""Files on any filesystem that Arrow reaches: paths and URIs, atomic writes, and write errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from skewless.arguments import require


@lru_cache(maxsize=64)
def resolve(directory: str) -> tuple[Any, str]:
    """Returns the filesystem of a directory, given as a path or a URI, and its path there without a final slash."""
    require(bool(directory), "a directory is given as a path or a URI, not as an empty string")
    if "://" in directory or directory.startswith("file:"):
        filesystem, path = fs.FileSystem.from_uri(directory)
        return filesystem, path.rstrip("/")
    return fs.LocalFileSystem(), str(Path(directory).absolute()).rstrip("/")


def write_file(directory: str, name: str, data: pa.Buffer) -> None:
    """Writes a file whose name is new and that no one reads before it is complete."""
    filesystem, path = resolve(directory)
    if isinstance(filesystem, fs.LocalFileSystem):
        filesystem.create_dir(path, recursive=True)
    with write_errors_name(f"{path}/{name}"), filesystem.open_output_stream(f"{path}/{name}") as file:
        file.write(data)


def write_atomically(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Writes or replaces a file: to `<path>.tmp` first, then moved, so that readers see all of it or the old one."""
    with write_errors_name(path):
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(f"{path}.tmp") as file:
            file.write(data)
        filesystem.move(f"{path}.tmp", path)


@contextmanager
def write_errors_name(path: str) -> Iterator[None]:
    """Adds the path to write errors."""
    try:
        yield
    except OSError as error:
        raise OSError(f"cannot write {path}: {error}") from error
