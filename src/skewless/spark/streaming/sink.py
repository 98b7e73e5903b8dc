"""A directory as the sink of a stream: each batch appears in it once, when it is complete."""

from __future__ import annotations

import pyarrow.fs as pafs
from pyspark.sql import DataFrame

from skewless.arguments import require
from skewless.filesystem import resolve, write_atomically
from skewless.spark.streaming.checkpoint import write_rows

OWNER = "_skewless"  # the file that names the query; readers skip names that begin with an underscore
_UNFINISHED = f"{OWNER}.tmp"


def claim(directory: str, query: str) -> None:
    """Makes a directory the sink of one query, since batches of another would have the same numbers.

    query: the id of the query.
    """
    files, path = resolve(directory)
    files.create_dir(path, recursive=True)
    owner = f"{path}/{OWNER}"
    if files.get_file_info(owner).type == pafs.FileType.File:
        with files.open_input_file(owner) as file:
            saved = file.read().decode()
        require(saved == query, f"{directory} has the output of another query: take an empty directory")
        return
    others = {info.base_name for info in files.get_file_info(pafs.FileSelector(path))} - {_UNFINISHED}
    require(not others, f"{directory} is not empty, and no query of this library has written to it: take an empty one")
    write_atomically(files, owner, query.encode())


def emit(output: DataFrame, directory: str, batch: int) -> None:
    """Writes a batch to a hidden directory, then renames it to batch_id=<batch>, which readers see as a column."""
    files, path = resolve(directory)
    name, hidden = f"batch_id={batch}", f"_writing-{batch}"
    if files.get_file_info(f"{path}/{name}").type == pafs.FileType.Directory:
        return  # an earlier attempt completed it
    write_rows(output, f"{directory.rstrip('/')}/{hidden}")
    files.move(f"{path}/{hidden}", f"{path}/{name}")
