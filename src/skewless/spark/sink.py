"""A directory that gets the output of a stream: each batch appears in it whole, and once."""

from __future__ import annotations

import pyarrow.fs as pafs
from pyspark.sql import DataFrame

from skewless.arrays import require
from skewless.spark.checkpoint import filesystem, write_rows
from skewless.store.files import naming

OWNER = "_skewless"  # the name of a file; readers skip what begins with an underscore
_TORN = f"{OWNER}.tmp"  # its name until it is whole


def claim(directory: str, query: str) -> None:
    """Refuse a directory with the output of another query: its batches have the same numbers as ours."""
    files, path = filesystem(directory)
    files.create_dir(path, recursive=True)
    place = f"{path}/{OWNER}"
    if files.get_file_info(place).type == pafs.FileType.File:
        with files.open_input_file(place) as file:
            known = file.read().decode()
        require(known == query, f"{directory} has the output of another query: take an empty directory")
        return
    found = {info.base_name for info in files.get_file_info(pafs.FileSelector(path))} - {_TORN}
    require(not found, f"{directory} is not empty, and no query of this library has written to it: take an empty one")
    with naming(place):
        with files.open_output_stream(f"{path}/{_TORN}") as file:
            file.write(query.encode())
        files.move(f"{path}/{_TORN}", place)


def emit(output: DataFrame, directory: str, batch: int) -> None:
    """Write a batch under a hidden name, then give it its own: batch_id=7, which readers take for a column."""
    files, path = filesystem(directory)
    place, hidden = f"batch_id={batch}", f"_writing-{batch}"
    if files.get_file_info(f"{path}/{place}").type == pafs.FileType.Directory:
        return  # it was complete when it got its name
    write_rows(output, f"{directory.rstrip('/')}/{hidden}")
    files.move(f"{path}/{hidden}", f"{path}/{place}")
