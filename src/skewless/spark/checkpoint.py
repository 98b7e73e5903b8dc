"""The files that a stream keeps beside Spark's checkpoint: small, checked, written whole or not at all, by batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pyarrow.fs as pafs
import xxhash
from pyspark.sql import DataFrame

from skewless.arrays import require
from skewless.spark.lock import Held, hold
from skewless.store.files import naming, resolved

FORMAT = 3
KEPT = 10_000  # records of batches that are kept, at the least
_LENGTH = 2_000  # a record is seldom longer, in bytes


class Checkpoint:
    """A directory on any filesystem that Arrow knows: `spark` in it is Spark's, `skewless` is ours.

    What belongs to a batch has its number in its name. A file appears under its name when it is complete, and carries a
    checksum, so that whatever is there is true or refused.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._files, path = filesystem(directory)
        self._root, self._of_spark = f"{path}/skewless", f"{path}/spark"

    @property
    def of_spark(self) -> str:
        return f"{self.directory.rstrip('/')}/spark"

    def place(self, name: str) -> str:
        """Where a file or directory of ours is, for Spark."""
        return f"{self.directory.rstrip('/')}/skewless/{name}"

    def read(self, name: str) -> Any:
        """The content of a JSON file; None if there is none."""
        path = f"{self._root}/{name}"
        if self._files.get_file_info(path).type == pafs.FileType.NotFound:
            return None
        try:
            with self._files.open_input_file(path) as file:
                data: bytes = file.read()
        except OSError as error:
            raise OSError(f"cannot read {path}: {error}") from error
        check, content = data[:16], data[17:]
        if check.decode(errors="replace") != xxhash.xxh64_hexdigest(content):
            raise OSError(f"{path} is damaged: it is not what was written")
        return json.loads(content)

    def write(self, name: str, content: Any) -> None:
        path, data = f"{self._root}/{name}", json.dumps(content, separators=(",", ":")).encode()
        with naming(path):
            self._files.create_dir(path.rpartition("/")[0], recursive=True)
            with self._files.open_output_stream(f"{path}.tmp") as file:
                file.write(xxhash.xxh64_hexdigest(data).encode() + b"\n" + data)
            self._files.move(f"{path}.tmp", path)

    def numbered(self, kind: str) -> list[int]:
        """The batches of which there is a file, or directory, of a kind."""
        found = self._files.get_file_info(pafs.FileSelector(f"{self._root}/{kind}", allow_not_found=True))
        names = [info.base_name.partition(".") for info in found]
        return sorted(int(number) for number, _, ending in names if number.isdigit() and not ending.endswith("tmp"))

    def forget(self, kind: str, batches: list[int], ending: str = "") -> None:
        """Delete what is no longer needed. What is gone already is no error."""
        for batch in batches:
            path = f"{self._root}/{kind}/{batch}{ending}"
            kinds = self._files.get_file_info(path).type
            if kinds == pafs.FileType.Directory:
                self._files.delete_dir(path)
            elif kinds == pafs.FileType.File:
                self._files.delete_file(path)

    def identify(self, identity: Mapping[str, str]) -> str:
        """Refuse a checkpoint of another query, or of a newer version; returns the name of this one."""
        known = self.read("query.json")
        if known is None:
            leftover = self.numbered("commits")
            require(not leftover, f"{self.place('query.json')} is missing, but there are {len(leftover)} commits")
            known = {"format": FORMAT, "id": uuid4().hex, "identity": dict(identity)}
            self.write("query.json", known)
        found = known["format"]
        require(found == FORMAT, f"{self.directory} has format {found}; this version of skewless reads {FORMAT}")
        before = known["identity"]
        changed = [
            f"{name} was {before.get(name, 'not there')}, and is {identity.get(name, 'not there')} now"
            for name in sorted({*before, *identity})
            if before.get(name) != identity.get(name)
        ]
        require(not changed, f"{self.directory} is the checkpoint of another query: {'; '.join(changed)}")
        return str(known["id"])

    def lock(self) -> Held:
        """Keep others off, as long as this process lives; refused if another has it."""
        return hold(self._files, self._root, self.directory)

    def unfinished(self, since: float) -> str | None:
        """The file of Spark's that was begun last and never finished, after a time."""
        found = self._files.get_file_info(pafs.FileSelector(self._of_spark, allow_not_found=True, recursive=True))
        # Spark writes .<name>.<some UUID>.tmp, and gives it its name when it is complete.
        torn = [info for info in found if info.extension == "tmp" and info.mtime.timestamp() >= since]
        if not torn:
            return None
        last = max(torn, key=lambda info: info.mtime_ns)
        return f"{last.path.rpartition('/')[0]}/{last.base_name.split('.')[1]}"

    def record(self, record: Mapping[str, Any]) -> None:
        """Append to batches.jsonl; when that is too long, the older half of it goes."""
        path = f"{self._root}/batches.jsonl"
        line = json.dumps(record, separators=(",", ":")).encode()
        with naming(path):
            self._files.create_dir(self._root, recursive=True)
            if (self._files.get_file_info(path).size or 0) > 2 * KEPT * _LENGTH:
                lines = [json.dumps(line, separators=(",", ":")).encode() for line in self.records()[-KEPT:]]
                with self._files.open_output_stream(f"{path}.tmp") as file:
                    file.write(b"\n".join(lines))
                self._files.move(f"{path}.tmp", path)
            with self._files.open_append_stream(path) as file:
                file.write(b"\n" + line)  # the line before may be torn

    def records(self) -> list[dict[str, Any]]:
        """The records of batches, one for each: of a batch that ran twice the last one. Torn lines are left out."""
        path = f"{self._root}/batches.jsonl"
        if self._files.get_file_info(path).type == pafs.FileType.NotFound:
            return []
        with self._files.open_input_file(path) as file:
            lines = file.read().splitlines()
        found: dict[int, dict[str, Any]] = {}
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            found[record["batch"]] = record
        return [found[batch] for batch in sorted(found)]


def write_rows(rows: DataFrame, place: str) -> None:
    """Compute rows, and write them to a directory of Parquet files, in place of what is there."""
    try:
        rows.write.mode("overwrite").parquet(place)
    except Exception as error:
        error.add_note(f"this came up while {place} was written")  # Spark does not always say so
        raise


def filesystem(directory: str) -> tuple[pafs.FileSystem, str]:
    """The filesystem of a path or URI, and the path on it."""
    require(bool(directory), "a directory has a name, or a URI")
    files, path = resolved(directory)
    return files, path.rstrip("/")
