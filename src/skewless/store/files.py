"""The durable files of a store: blocks of rows, one for each host or hot key, and an index that says where they are."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import fs

from skewless.arrays import require
from skewless.kernels.place import hosts_at
from skewless.store.codec import Codec
from skewless.store.share import Places, Share

FORMAT = 2
GAP = 1 << 16  # blocks that are no farther apart than this are read in one go
INDEX = pa.schema(
    {
        "file": pa.string(),
        "size": pa.int32(),  # the number of hosts when the block was written
        "host": pa.int32(),  # -1: the block is that of a hot key
        "hot": pa.uint64(),
        "offset": pa.int64(),
        "length": pa.int64(),
        "rows": pa.int64(),
        "checksum": pa.uint32(),
    }
)


class Damaged(RuntimeError):
    """A durable file is not what was written; the message names it."""


@dataclass
class Tally:
    """What was read from durable files."""

    files: int = 0
    blocks: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Receipt:
    """What a task wrote, for the driver to commit: an index of blocks."""

    index: pa.Table

    def to_bytes(self) -> bytes:
        return _stream(self.index)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        return cls(pa.ipc.open_stream(data).read_all())


@dataclass(frozen=True)
class Segment:
    """What changed after version `since`, up to version `until`; None: since nothing was there."""

    since: int | None
    until: int
    index: str  # the file with the index
    rows: int
    bytes: int


@dataclass(frozen=True)
class Store:
    """Where the states of keys are kept for good, and of which types they are.

    root: a directory, or the address of one on any filesystem that pyarrow reaches.
    Files get names that nobody else uses, so that attempts of one task do not meet. A file counts only when a commit
    names it; all others are garbage, half-written ones too.
    """

    root: str
    key: pa.Schema
    state: pa.Schema

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.root, self.key, self.state)  # without what was made of them

    @cached_property
    def schema(self) -> pa.Schema:
        """Of changes: a key whose state and timeout are both NULL was removed."""
        fields = {"place": pa.uint64(), "key": pa.struct(list(self.key)), "state": pa.struct(list(self.state))}
        return pa.schema({**fields, "timeout": pa.int64()})

    @property
    def types(self) -> str:
        """The types of keys and states, for people and for comparison."""
        return f"key {self.schema.field('key').type}, state {self.schema.field('state').type}"

    @cached_property
    def key_codec(self) -> Codec:
        return Codec(self.key, canonical=True)

    @cached_property
    def state_codec(self) -> Codec:
        return Codec(self.state)

    def write(self, changes: pa.Table, share: Share, version: int, worker: int, kind: str = "changes") -> Receipt:
        """Write changes in blocks by the units of a share, and say where they are."""
        require(changes.schema.equals(self.schema), f"changes have the columns {self.schema}, not {changes.schema}")
        places = places_of(changes)
        require(bool(share.has(places).all()), f"worker {worker} wrote the state of keys that it does not answer for")
        hot = share.hot[share.owned]
        size = share.hosts.size
        # Owned hot keys are listed even if they did not change: then nobody looks for them among those of their host.
        lines = [("", size, -1, place, 0, 0, 0, 0) for place in hot.tolist()]
        if changes.num_rows:
            name = f"{kind}-{version:012d}-{worker:05d}-{uuid4().hex}.arrow"
            data, blocks = self._blocks(changes, share, places)
            put(self.root, name, data)
            lines += [(name, size, *block) for block in blocks]
        columns = zip(*lines, strict=True) if lines else [()] * len(INDEX)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, INDEX, strict=True)]
        return Receipt(pa.table(arrays, schema=INDEX))

    def _blocks(self, changes: pa.Table, share: Share, places: Places) -> tuple[pa.Buffer, list[tuple[Any, ...]]]:
        units = share.units(places)
        order = np.argsort(units, kind="stable")
        rows = changes.take(order).combine_chunks().to_batches()[0]
        bounds = np.append(np.flatnonzero(np.diff(units[order], prepend=-1)), order.size).tolist()
        sink, found = pa.BufferOutputStream(), []
        with pa.ipc.new_file(sink, self.schema) as file:
            for start, stop in pairwise(bounds):
                block = rows.slice(start, stop - start)
                file.write_batch(block)
                length = pa.ipc.get_record_batch_size(block)  # before the first one goes the head of the file
                unit = int(units[order[start]])
                is_host = unit < share.hosts.size
                place = None if is_host else int(share.hot[unit - share.hosts.size])
                found.append((unit if is_host else -1, place, sink.tell() - length, length, stop - start))
        data = sink.getvalue()
        return data, [(*block, zlib.crc32(data.slice(block[2], block[3]))) for block in found]

    def read(self, segment: Segment, share: Share, tally: Tally | None = None) -> pa.Table:
        """The rows of a share in a segment; only blocks that may hold them are read."""
        tally = Tally() if tally is None else tally
        index = load_index(self.root, segment.index)
        wanted = np.flatnonzero(_may_hold(index, share))
        by_file = np.split(wanted, np.flatnonzero(np.diff(index.file[wanted])) + 1)
        batches = [batch for blocks in by_file if blocks.size for batch in self._read(index, blocks, tally)]
        found = pa.Table.from_batches(batches, self.schema)
        own = share.has(places_of(found))
        # In one piece: there are many small blocks, and each would be filtered on its own.
        return found if own.all() else found.combine_chunks().filter(pa.array(own))

    def _read(self, index: Index, blocks: NDArray[np.int64], tally: Tally) -> Iterator[pa.RecordBatch]:
        """The rows of blocks of one file."""
        name = index.names[index.file[blocks[0]]]
        offsets, lengths, checksums = index.offset[blocks], index.length[blocks], index.checksum[blocks].tolist()
        ends = offsets + lengths
        first = np.flatnonzero(np.append(True, offsets[1:] > ends[:-1] + GAP)).tolist()
        tally.files += 1
        tally.blocks += blocks.size
        tally.bytes += int(lengths.sum())
        try:
            with opened(self.root).open_input_file(self._path(name)) as file:
                for start, stop in zip(first, [*first[1:], offsets.size], strict=True):
                    at = int(offsets[start])
                    data = pa.py_buffer(file.read_at(int(ends[stop - 1]) - at, at))
                    for number in range(start, stop):
                        block = data[int(offsets[number]) - at : int(ends[number]) - at]
                        whole = block.size == lengths[number] and zlib.crc32(block) == checksums[number]
                        if not whole:
                            raise Damaged(f"the state file {self._path(name)} is damaged at byte {offsets[number]}")
                        rows = pa.ipc.read_record_batch(block, self.schema)
                        tally.rows += rows.num_rows
                        yield rows
        except (OSError, pa.ArrowInvalid) as error:
            raise Damaged(f"the state file {self._path(name)} cannot be read: {error}") from error

    def _path(self, name: str) -> str:
        return path_of(self.root, name)

    def segment(self, receipts: Sequence[Receipt], since: int | None, until: int) -> Segment:
        """Write the index of what several tasks wrote."""
        index = pa.concat_tables([receipt.index for receipt in receipts]) if receipts else INDEX.empty_table()
        name = f"index-{until:012d}-{uuid4().hex}.arrow"
        data = _stream(index)
        put(self.root, name, pa.py_buffer(data + zlib.crc32(data).to_bytes(4, "little")))
        return Segment(since, until, name, _total(index, "rows"), _total(index, "length"))


def places_of(rows: pa.Table) -> Places:
    places: Places = rows["place"].to_numpy()
    return places


def _total(index: pa.Table, name: str) -> int:
    return int(index[name].to_numpy().sum())


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


class Index(NamedTuple):
    """Where the blocks of a segment are, in the order in which they lie in files: the columns of INDEX, to be read."""

    names: list[str]  # of files
    file: NDArray[np.int64]  # the number of the name
    size: NDArray[np.int32]
    host: NDArray[np.int32]
    hot: Places  # 0 if the block is not that of a hot key
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    rows: NDArray[np.int64]
    checksum: NDArray[np.uint32]


def _may_hold(index: Index, share: Share) -> NDArray[np.bool_]:
    """Which blocks may hold keys of the share."""
    alone = index.host < 0
    wanted: NDArray[np.bool_] = np.zeros(alone.size, np.bool_)
    wanted[alone] = share.has(index.hot[alone])
    # A hot key of ours may be among those of its host, unless it was hot to those who wrote this, too.
    among = share.hot[share.owned]
    among = among[~np.isin(among, index.hot[alone])]
    for size in np.unique(index.size[~alone]).tolist():
        mask = share.folded(size)
        mask[hosts_at(among, size)] = True
        here = ~alone & (index.size == size)
        wanted[here] = mask[index.host[here]]
    return np.asarray(wanted & (index.rows > 0))


@lru_cache(maxsize=64)
def opened(root: str) -> Any:
    return resolved(root)[0]


@lru_cache(maxsize=64)
def resolved(root: str) -> tuple[Any, str]:
    """The filesystem of a path or URI, and the path on it."""
    if "://" in root or root.startswith("file:"):
        filesystem, path = fs.FileSystem.from_uri(root)
        return filesystem, path
    return fs.LocalFileSystem(), str(Path(root).absolute())


def path_of(root: str, name: str) -> str:
    return f"{resolved(root)[1]}/{name}"


def put(root: str, name: str, data: pa.Buffer) -> None:
    """Write a file. Its name is new, and nobody knows it before it is whole."""
    filesystem, path = resolved(root)
    if isinstance(filesystem, fs.LocalFileSystem):
        filesystem.create_dir(path, recursive=True)
    with naming(f"{path}/{name}"), filesystem.open_output_stream(f"{path}/{name}") as file:
        file.write(data)


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Whoever cannot write says what."""
    try:
        yield
    except OSError as error:
        raise OSError(f"cannot write {path}: {error}") from error


@lru_cache(maxsize=256)
def load_index(root: str, name: str) -> Index:
    """The index of a segment. Files never change, so that a process reads each once."""
    path = path_of(root, name)
    try:
        with opened(root).open_input_file(path) as file:
            content = file.read()
    except OSError as error:
        raise Damaged(f"the state file {path} cannot be read: {error}") from error
    data = content[:-4]
    if zlib.crc32(data).to_bytes(4, "little") != content[-4:]:
        raise Damaged(f"the state file {path} is damaged")
    table = pa.ipc.open_stream(data).read_all()
    names, number = np.unique(np.array(table["file"].to_pylist(), np.str_), return_inverse=True)
    columns = {field.name: table[field.name].fill_null(0).to_numpy() for field in INDEX if field.name != "file"}
    order = np.lexsort((columns["offset"], number))
    return Index(names.tolist(), number[order], **{name: column[order] for name, column in columns.items()})
