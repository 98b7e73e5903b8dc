"""A durable, append-only log on disk that survives crashes; old files are deleted when no longer needed."""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, NamedTuple, Self
from zlib import crc32

from skewless.arguments import require, require_format
from skewless.filesystem import lock_file

FORMAT = 1
FILE_BYTES = 64 << 20  # bytes after which a new file is started
PATIENCE = 30.0  # seconds to wait for the lock of another process
_HEAD = Struct("<III")  # length of the notes, length of the content, checksum of both


class Frame(NamedTuple):
    """The unit of an append: a frame is in the log completely or not at all."""

    offset: int
    end: int  # the offset of the next frame
    notes: dict[str, Any]  # JSON
    content: memoryview


class JournalReader:
    """Reads the files of a log. An offset counts all bytes ever written to the log."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.bases = sorted(int(path.stem) for path in self.directory.glob("*.log"))
        self._files: dict[int, BinaryIO] = {}

    def path(self, base: int) -> Path:
        """Returns the path of the file whose first byte has this offset."""
        return self.directory / f"{base:020d}.log"

    def frame(self, offset: int) -> Frame:
        """Returns the frame at this offset; raises ValueError if its checksum does not match."""
        frame = self._read(offset)
        if isinstance(frame, Frame):
            return frame
        raise self._damage(offset)

    def frames(self, start: int, end: int) -> Iterator[Frame]:
        """Yields those frames between two offsets that hold records."""
        while start < end:
            frame = self.frame(start)
            if "rows" in frame.notes:
                yield frame
            start = frame.end

    def intact(self, base: int) -> Iterator[Frame]:
        """Yields the frames of a file up to the first that a crash cut off; only the last one can be cut off."""
        offset, end = base, base + self.path(base).stat().st_size
        while offset < end:
            frame = self._read(offset)
            if isinstance(frame, Frame):
                yield frame
                offset = frame.end
            elif frame < end:
                raise self._damage(offset)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _damage(self, offset: int) -> ValueError:
        base = self._base(offset)
        return ValueError(f"{self.path(base)} is damaged at byte {offset - base}")

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _base(self, offset: int) -> int:
        index = bisect_right(self.bases, offset) - 1
        begin = f"begins at {self.bases[0]}" if self.bases else "is empty"
        require(index >= 0, f"the log in {self.directory} {begin}: offset {offset} has been deleted")
        return self.bases[index]

    def _read(self, offset: int) -> Frame | int:
        """Returns the frame at an offset; if it is incomplete, the offset at which it should end."""
        base = self._base(offset)
        if base not in self._files:
            self._files[base] = self.path(base).open("rb")
        file = self._files[base]
        file.seek(offset - base)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return offset + _HEAD.size
        n_notes, n_content, checksum = _HEAD.unpack(head)
        end: int = offset + _HEAD.size + n_notes + n_content
        body = file.read(n_notes + n_content)
        if len(body) < n_notes + n_content or crc32(body) != checksum:
            return end
        return Frame(offset, end, json.loads(body[:n_notes]), memoryview(body)[n_notes:])


class Journal(JournalReader):
    """A log that one process at a time may write to.

    The log is a sequence of files, each named by the offset of its first byte. A file is a sequence of frames: lengths
    and checksum, notes (JSON) and content (bytes). The first frame of a file describes the records and counts those of
    each sender so far, so that older files can be deleted. A frame is on disk before `append` returns. A last frame
    that a crash cut off is dropped when the log is opened again; any other damage is an error that names the file.

    directory: where the files are; it is created if needed.
    holds: describes the records; a log with another description is refused.
    """

    def __init__(self, directory: str | Path, holds: dict[str, str]) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        lock = lock_file(Path(directory) / "lock", PATIENCE)
        if lock is None:
            raise ValueError(f"the log in {directory} is in use by another receiver: choose another directory")
        self._lock = lock
        self.broken = ""  # why a write failed, after which nothing more is written
        self.holds = holds
        self.tallies: dict[str, int] = {}  # number of records of each sender
        self._file: BinaryIO
        super().__init__(directory)
        try:
            self._open()
        except BaseException:
            super().close()
            self._lock.close()
            raise

    @property
    def begin(self) -> int:
        """The offset of the first byte that has not been deleted."""
        return self.bases[0]

    def skip_description(self, offset: int) -> int:
        """Returns the offset, or the next one if it is that of the first frame of a file, which holds no records."""
        return self.frame(offset).end if offset in self.bases else offset

    def append(self, content: bytes, rows: int, now: int, sender: str, tally: int) -> int:
        """Appends records of a sender and returns their offset.

        rows: the number of records.
        now: their time, in ms.
        tally: the number of records of this sender so far, these included.
        """
        require(not self.broken, self.broken)
        offset = self.end
        notes = {"rows": rows, "time": now, "sender": sender, "tally": tally}
        self._write(notes, content)
        self.tallies[sender] = tally
        if self.end - self.bases[-1] >= FILE_BYTES:
            self._start_file()
        return offset

    def delete_before(self, offset: int) -> None:
        """Deletes the files that end at or before this offset."""
        while len(self.bases) > 1 and self.bases[1] <= offset:
            base = self.bases.pop(0)
            if base in self._files:
                self._files.pop(base).close()
            self.path(base).unlink()

    def close(self) -> None:
        """Closes the files and releases the lock."""
        super().close()
        self._file.close()
        self._lock.close()

    def _open(self) -> None:
        """Reads the counts of senders, drops what a crash cut off, and opens the last file for writing."""
        for base, following in pairwise(self.bases):
            end = base + self.path(base).stat().st_size
            require(end == following, f"{self.path(base)} ends at {end}, but the next file begins at {following}")
        while self.bases:
            base, self.end = self.bases[-1], self.bases[-1]
            for number, frame in enumerate(self.intact(base)):
                if number == 0:
                    self._check_description(base, frame.notes)
                    self.tallies = dict(frame.notes["tallies"])
                else:
                    self.tallies[frame.notes["sender"]] = frame.notes["tally"]
                self.end = frame.end
            if self.end > base:
                self._file = self.path(base).open("r+b")
                self._file.truncate(self.end - base)
                self._file.seek(0, os.SEEK_END)
                os.fsync(self._file.fileno())
                return
            # A crash cut off its first frame, so no record in this file was ever acknowledged.
            self.path(base).unlink()
            self.bases.pop()
        self.end = 0
        self._start_file()

    def _check_description(self, base: int, notes: dict[str, Any]) -> None:
        holds = notes.get("holds")
        require_format(str(self.path(base)), notes.get("format"), FORMAT)
        differs = f"the log in {self.directory} holds {holds}, not {self.holds}"
        require(holds == self.holds, f"{differs}: choose another directory")

    def _start_file(self) -> None:
        """Starts a new file, whose first frame makes it independent of earlier files."""
        base = self.end
        path = self.path(base)
        if self.bases:
            self._file.close()
        self._file = path.open("xb")
        self.bases.append(base)
        self._write({"format": FORMAT, "holds": self.holds, "tallies": self.tallies}, b"")
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _write(self, notes: dict[str, Any], content: bytes) -> None:
        text = json.dumps(notes, separators=(",", ":")).encode()
        text += b" " * (-(_HEAD.size + len(text)) % 8)  # aligns the content for Arrow
        body = text + content
        frame = _HEAD.pack(len(text), len(content), crc32(body)) + body
        try:
            self._file.write(frame)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            # How much of the frame is on disk is unknown until the log is opened again.
            self.broken = f"the log {self.path(self.bases[-1])} cannot be written: {error}"
            raise ValueError(self.broken) from error
        self.end += len(frame)
