"""A log on disk: what it has taken is there again after any crash, in order, until it is no longer needed."""

from __future__ import annotations

import fcntl
import json
import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Any, BinaryIO, NamedTuple, Self
from zlib import crc32

from skewless.arrays import require

FORMAT = 1
SEGMENT = 64 << 20  # bytes of a file, after which the next one begins
PATIENCE = 30.0  # seconds until a lock that another process holds is taken for one that it will not give back
_HEAD = Struct("<III")  # bytes of the notes, bytes of the content, and the checksum of both


class Frame(NamedTuple):
    """What was appended at once: all of it is in the log, or nothing."""

    address: int
    end: int  # the address of the next one
    notes: dict[str, Any]
    content: memoryview


class Pages:
    """The files of a log, to read from: a frame has an address, which is its place among all bytes ever written."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.bases = sorted(int(path.stem) for path in self.directory.glob("*.log"))
        self._files: dict[int, BinaryIO] = {}

    def path(self, base: int) -> Path:
        return self.directory / f"{base:020d}.log"

    def frame(self, address: int) -> Frame:
        """The frame at this address, if its checksum holds."""
        found = self._read(address)
        if isinstance(found, Frame):
            return found
        raise self._damage(address)

    def frames(self, start: int, end: int) -> Iterator[Frame]:
        """All frames from one address to another that hold records."""
        while start < end:
            frame = self.frame(start)
            if "rows" in frame.notes:
                yield frame
            start = frame.end

    def intact(self, base: int) -> Iterator[Frame]:
        """The frames of a file up to the first that was cut off while it was written: only the last one can be."""
        address, end = base, base + self.path(base).stat().st_size
        while address < end:
            found = self._read(address)
            if isinstance(found, Frame):
                yield found
                address = found.end
            else:
                if found < end:
                    raise self._damage(address)
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _damage(self, address: int) -> ValueError:
        base = self._base(address)
        return ValueError(f"{self.path(base)} is damaged at byte {address - base}")

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _base(self, address: int) -> int:
        at = bisect_right(self.bases, address) - 1
        begin = self.bases[0] if self.bases else "nowhere"
        require(at >= 0, f"the log in {self.directory} begins at {begin}: what was at {address} is gone")
        return self.bases[at]

    def _read(self, address: int) -> Frame | int:
        """The frame at an address; if it is not whole, the address at which it should end."""
        base = self._base(address)
        if base not in self._files:
            self._files[base] = self.path(base).open("rb")
        file = self._files[base]
        file.seek(address - base)
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return address + _HEAD.size
        n_notes, n_content, checksum = _HEAD.unpack(head)
        end: int = address + _HEAD.size + n_notes + n_content
        body = file.read(n_notes + n_content)
        if len(body) < n_notes + n_content or crc32(body) != checksum:
            return end
        return Frame(address, end, json.loads(body[:n_notes]), memoryview(body)[n_notes:])


class Journal(Pages):
    """A log that one process at a time writes to.

    It is a row of files, each named by the address of its first byte, with frames of notes (JSON) and content (bytes),
    length and checksum before them. The first frame of a file says what the log holds and how many records each sender
    had sent by then, so that older files can go. A frame is on the disk before `append` returns. One that a crash cut
    off is the last of all, and is dropped when the log is opened again; anything else that does not read well is an
    error that names the file.

    holds: what the log is of; an older log of something else is refused.
    """

    def __init__(self, directory: str | Path, holds: dict[str, str]) -> None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._lock = _locked(Path(directory) / "lock")
        self.broken = ""  # why nothing can be written any more
        self.holds = holds
        self.tallies: dict[str, int] = {}  # records of each sender
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
        return self.bases[0]

    def past_notes(self, address: int) -> int:
        """The same address; behind the first frame of a file, which holds no records, if it is that of one."""
        return self.frame(address).end if address in self.bases else address

    def append(self, content: bytes, rows: int, now: int, sender: str, tally: int) -> int:
        """Some records of a sender, who has sent so many with them, and their time; the address they got."""
        require(not self.broken, self.broken)
        address = self.end
        notes = {"rows": rows, "time": now, "sender": sender, "tally": tally}
        self._write(notes, content)
        self.tallies[sender] = tally
        if self.end - self.bases[-1] >= SEGMENT:
            self._begin()
        return address

    def forget(self, until: int) -> None:
        """Delete the files of which all frames lie before this address."""
        while len(self.bases) > 1 and self.bases[1] <= until:
            base = self.bases.pop(0)
            if base in self._files:
                self._files.pop(base).close()
            self.path(base).unlink()

    def close(self) -> None:
        super().close()
        self._file.close()
        self._lock.close()

    def _open(self) -> None:
        for base, following in zip(self.bases, self.bases[1:], strict=False):
            ends = base + self.path(base).stat().st_size
            require(ends == following, f"{self.path(base)} ends at {ends}, but the next file begins at {following}")
        while self.bases:
            base, self.end = self.bases[-1], self.bases[-1]
            for number, frame in enumerate(self.intact(base)):
                if number == 0:
                    self._check(base, frame.notes)
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
            # Its first frame was cut off: nothing was ever told to be in this file.
            self.path(base).unlink()
            self.bases.pop()
        self.end = 0
        self._begin()

    def _check(self, base: int, notes: dict[str, Any]) -> None:
        known = notes.get("format")
        path = self.path(base)
        require(known == FORMAT, f"{path} has format {known}; this version of skewless reads {FORMAT}")
        held = notes["holds"]
        require(held == self.holds, f"the log in {self.directory} holds {held}, not {self.holds}: take another one")

    def _begin(self) -> None:
        """A new file, with what must be known if all before it are gone."""
        base = self.end
        path = self.path(base)
        if self.bases:
            self._file.close()
        self._file = path.open("xb")
        self.bases.append(base)
        self._write({"format": FORMAT, "holds": self.holds, "tallies": self.tallies}, b"")
        entry = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(entry)
        finally:
            os.close(entry)

    def _write(self, notes: dict[str, Any], content: bytes) -> None:
        text = json.dumps(notes, separators=(",", ":")).encode()
        text += b" " * (-(_HEAD.size + len(text)) % 8)  # Arrow likes its buffers aligned
        body = text + content
        frame = _HEAD.pack(len(text), len(content), crc32(body)) + body
        try:
            self._file.write(frame)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            # What is on the disk now is not known until the log is opened again.
            self.broken = f"the log {self.path(self.bases[-1])} cannot be written: {error}"
            raise ValueError(self.broken) from error
        self.end += len(frame)


def _locked(path: Path) -> BinaryIO:
    """The file, locked for this process; a crash frees it."""
    file = path.open("ab")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise ValueError(f"the log in {path.parent} is in use by another receiver") from None
            time.sleep(0.05)
        else:
            return file
