"""Paths, atomic writes, write errors and locks."""

from __future__ import annotations

from pathlib import Path
from threading import Timer

import pyarrow as pa
import pytest
from pyarrow import fs

from skewless.filesystem import lock_file, resolve, write_atomically, write_file


def test_paths_and_uris_of_a_directory_resolve_to_the_same_path(tmp_path: Path) -> None:
    for directory in (str(tmp_path), f"{tmp_path}/", tmp_path.as_uri(), f"{tmp_path.as_uri()}/"):
        filesystem, path = resolve(directory)
        assert isinstance(filesystem, fs.LocalFileSystem)
        assert path == str(tmp_path)
    with pytest.raises(ValueError, match="not as an empty string"):
        resolve("")


def test_an_atomic_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    for content in (b"old", b"new"):
        write_atomically(fs.LocalFileSystem(), f"{tmp_path}/below/file", content)
        assert (tmp_path / "below" / "file").read_bytes() == content
    assert [path.name for path in (tmp_path / "below").iterdir()] == ["file"]


def test_write_errors_name_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match=f"cannot write {tmp_path}/file"):
        write_file(str(tmp_path), "file", pa.py_buffer(b"content"))
    with pytest.raises(OSError, match=f"cannot write {tmp_path}/file"):
        write_atomically(fs.LocalFileSystem(), f"{tmp_path}/file", b"content")


def test_a_lock_has_one_holder_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock_file(path)
    assert held is not None
    with held:
        assert lock_file(path) is None
        assert lock_file(path, patience=0.1) is None
    again = lock_file(path)
    assert again is not None
    again.close()


def test_a_lock_that_becomes_free_in_time_is_taken(tmp_path: Path) -> None:
    held = lock_file(tmp_path / "lock")
    assert held is not None
    closing = Timer(0.2, held.close)
    closing.start()
    taken = lock_file(tmp_path / "lock", patience=30)
    assert taken is not None
    taken.close()
    closing.join()
