"""The directory of a query's checkpoint: small JSON files with checksums, rows in Parquet, and Spark's own files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pyarrow.fs as pafs
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from skewless.arguments import require, require_format
from skewless.filesystem import naming_write_errors, resolve, write_atomically
from skewless.spark.streaming.lock import Held, hold

FORMAT = 3
KEPT = 10_000  # batch records that are always kept
_LENGTH = 2_000  # bytes of a long record


class Checkpoint:
    """A directory on any filesystem that Arrow reaches: Spark writes to `spark` in it, Skewless to `skewless`.

    Files of a batch have its number in their names. A file appears under its name only when it is complete, and has a
    checksum, so that damage is noticed.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._files, path = resolve(directory)
        self._root, self._of_spark = f"{path}/skewless", f"{path}/spark"

    @property
    def of_spark(self) -> str:
        """The path of Spark's own checkpoint."""
        return f"{self.directory.rstrip('/')}/spark"

    def path(self, name: str) -> str:
        """Returns the path of a file or directory below `skewless`, as Spark takes it."""
        return f"{self.directory.rstrip('/')}/skewless/{name}"

    def read(self, name: str) -> Any:
        """Returns the content of a JSON file; None if there is no such file."""
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
            raise OSError(f"{path} is damaged: its checksum is wrong")
        return json.loads(content)

    def write(self, name: str, content: Any) -> None:
        """Writes a JSON file; readers see either the one before or all of the new one."""
        path, data = f"{self._root}/{name}", json.dumps(content, separators=(",", ":")).encode()
        write_atomically(self._files, path, xxhash.xxh64_hexdigest(data).encode() + b"\n" + data)

    def numbered(self, kind: str) -> list[int]:
        """Returns the numbers of the batches that have a file or directory of this kind."""
        files = self._files.get_file_info(pafs.FileSelector(f"{self._root}/{kind}", allow_not_found=True))
        names = [info.base_name.partition(".") for info in files]
        return sorted(int(number) for number, _, ending in names if number.isdigit() and not ending.endswith("tmp"))

    def forget(self, kind: str, batches: list[int], ending: str = "") -> None:
        """Deletes the files or directories of batches; those that do not exist are ignored."""
        for batch in batches:
            path = f"{self._root}/{kind}/{batch}{ending}"
            file_type = self._files.get_file_info(path).type
            if file_type == pafs.FileType.Directory:
                self._files.delete_dir(path)
            elif file_type == pafs.FileType.File:
                self._files.delete_file(path)

    def identify(self, identity: Mapping[str, str]) -> str:
        """Refuses the checkpoint of another query or format; returns the id of the query."""
        saved = self.read("query.json")
        if saved is None:
            leftover = self.numbered("commits")
            path = self.path("query.json")
            require(not leftover, f"there are {len(leftover)} commits, but no {path}: restore that file")
            saved = {"format": FORMAT, "id": uuid4().hex, "identity": dict(identity)}
            self.write("query.json", saved)
        require_format(self.directory, saved["format"], FORMAT)
        before = saved["identity"]
        changed = [
            f"{name} was {before.get(name, 'not there')}, and is {identity.get(name, 'not there')} now"
            for name in sorted({*before, *identity})
            if before.get(name) != identity.get(name)
        ]
        require(not changed, f"{self.directory} is the checkpoint of another query: {'; '.join(changed)}")
        return str(saved["id"])

    def lock(self) -> Held:
        """Locks the checkpoint until closed or until the process ends; raises ValueError if another query has it."""
        return hold(self._files, self._root, self.directory)

    def unfinished(self, since: float) -> str | None:
        """Returns the last file that Spark began to write after this time, and did not finish."""
        files = self._files.get_file_info(pafs.FileSelector(self._of_spark, allow_not_found=True, recursive=True))
        # Spark writes .<name>.<some UUID>.tmp, and gives it its name when it is complete.
        torn = [info for info in files if info.extension == "tmp" and info.mtime.timestamp() >= since]
        if not torn:
            return None
        last = max(torn, key=lambda info: info.mtime_ns)
        return f"{last.path.rpartition('/')[0]}/{last.base_name.split('.')[1]}"

    def record(self, record: Mapping[str, Any]) -> None:
        """Appends to batches.jsonl; when that is larger than 40 MB, all but the last 10,000 records are deleted."""
        path = f"{self._root}/batches.jsonl"
        line = json.dumps(record, separators=(",", ":")).encode()
        if (self._files.get_file_info(path).size or 0) > 2 * KEPT * _LENGTH:
            lines = [json.dumps(line, separators=(",", ":")).encode() for line in self.records()[-KEPT:]]
            write_atomically(self._files, path, b"\n".join(lines))
        with naming_write_errors(path):
            self._files.create_dir(self._root, recursive=True)
            with self._files.open_append_stream(path) as file:
                file.write(b"\n" + line)  # the line before may be incomplete

    def records(self) -> list[dict[str, Any]]:
        """Returns one record for each batch, the last one if it ran twice. Incomplete lines are ignored."""
        path = f"{self._root}/batches.jsonl"
        if self._files.get_file_info(path).type == pafs.FileType.NotFound:
            return []
        with self._files.open_input_file(path) as file:
            lines = file.read().splitlines()
        records: dict[int, dict[str, Any]] = {}
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            records[record["batch"]] = record
        return [records[batch] for batch in sorted(records)]


def write_rows(rows: DataFrame, path: str) -> None:
    """Computes rows and writes them to a directory of Parquet files, which replaces what is there."""
    try:
        rows.write.mode("overwrite").parquet(path)
    except Exception as error:
        error.add_note(f"while writing {path}")  # Spark does not always name it
        raise


def read_rows(spark: SparkSession, schema: StructType, *paths: str, **options: str) -> DataFrame:
    """Returns the rows in directories of Parquet files, as they are now.

    options: of Spark's reader, by name.
    """
    # Over Connect, Spark 4.1 remembers a query with the files that it found. A restarted stream may ask the same
    # again after a replay has written other files: an option that nobody reads makes each query another one.
    return spark.read.schema(schema).options(**options, asked=uuid4().hex).parquet(*paths)
