"""The durable files of a state store: blocks of rows, one for each host or hot key, and indexes of blocks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from skewless.arguments import require
from skewless.filesystem import resolve, write_file
from skewless.kernels.position import hosts_at
from skewless.store.codec import Codec
from skewless.store.share import Positions, Share

FORMAT = 2
POSITION_COLUMN = "place"  # the name of the column with key positions on disk
GAP = 1 << 16  # bytes; blocks that are at most this far apart are read in one request
NO_HOST = -1
INDEX = pa.schema(
    {
        "file": pa.string(),
        "size": pa.int32(),  # the number of hosts when the block was written
        "host": pa.int32(),  # NO_HOST for the block of a hot key
        "hot": pa.uint64(),  # the position of the hot key, or NULL
        "offset": pa.int64(),
        "length": pa.int64(),
        "rows": pa.int64(),
        "checksum": pa.uint32(),
    }
)


class IndexRow(NamedTuple):
    """A row of an index: where the changes of one host or hot key are. The fields are those of INDEX."""

    file: str
    size: int
    host: int
    hot: int | None
    offset: int = 0
    length: int = 0
    rows: int = 0
    checksum: int = 0


class Damaged(RuntimeError):
    """Raised when a durable file is missing or its checksum is wrong; the message names the file."""


@dataclass
class Tally:
    """Counts what is read from durable files."""

    files: int = 0
    blocks: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Receipt:
    """The index of the blocks that a task wrote, for the driver to commit."""

    index: pa.Table

    def to_bytes(self) -> bytes:
        """Returns the receipt as an Arrow stream."""
        return _stream(self.index)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Returns the receipt that `to_bytes` wrote."""
        return cls(pa.ipc.open_stream(data).read_all())


@dataclass(frozen=True)
class Segment:
    """The changes after version `since`, up to version `until`; with `since` None, all of the state: a snapshot."""

    since: int | None
    until: int
    index: str  # name of the index file
    rows: int
    bytes: int


@dataclass(frozen=True)
class StateStore:
    """Durable states by key.

    root: a directory, as a path or as a URI of any filesystem that pyarrow reaches.
    key, state: the fields of keys and of states.

    Every file gets a new, unique name, so that attempts of the same task do not overwrite each other. A file belongs to
    the state only if a committed manifest names it; all others, also partly written ones, are garbage.
    """

    root: str
    key: pa.Schema
    state: pa.Schema

    def __reduce__(self) -> tuple[Any, ...]:
        return StateStore, (self.root, self.key, self.state)  # without cached properties

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of changes. A key whose state and timeout are both NULL was removed."""
        fields = {POSITION_COLUMN: pa.uint64(), "key": pa.struct(list(self.key)), "state": pa.struct(list(self.state))}
        return pa.schema({**fields, "timeout": pa.int64()})

    @property
    def types(self) -> str:
        """The types of keys and states as text, for comparison and error messages."""
        return f"key {self.schema.field('key').type}, state {self.schema.field('state').type}"

    @cached_property
    def key_codec(self) -> Codec:
        """Converts keys to texts: equal ones for keys that Spark groups together."""
        return Codec(self.key, canonical=True)

    @cached_property
    def state_codec(self) -> Codec:
        """Converts states to texts and back."""
        return Codec(self.state)

    def write(self, changes: pa.Table, share: Share, version: int, worker: int, kind: str = "changes") -> Receipt:
        """Writes changes in blocks, one for each host or hot key; returns their index.

        share: the keys of the worker; other keys are refused.
        version: the version that the changes lead to.
        kind: the first word of the file's name, "changes" or "merged".
        """
        require(changes.schema.equals(self.schema), f"changes have the columns {self.schema}, not {changes.schema}")
        positions = positions_of(changes)
        is_own = bool(share.has(positions).all())
        require(is_own, f"worker {worker} has changes of keys that belong to other workers")
        # Hot keys are listed even if unchanged: then readers need not look for them in the block of their host.
        hot = share.hot[share.owned].tolist()
        blocks = [IndexRow(file="", size=share.hosts.size, host=NO_HOST, hot=position) for position in hot]
        if changes.num_rows:
            name = f"{kind}-{version:012d}-{worker:05d}-{uuid4().hex}.arrow"
            data, written = self._blocks(name, changes, share)
            write_file(self.root, name, data)
            blocks += written
        columns = zip(*blocks, strict=True) if blocks else [()] * len(INDEX)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, INDEX, strict=True)]
        return Receipt(pa.table(arrays, schema=INDEX))

    def _blocks(self, name: str, changes: pa.Table, share: Share) -> tuple[pa.Buffer, list[IndexRow]]:
        """Returns the content of a file with these changes, and the rows of its blocks in the index."""
        units = share.units(positions_of(changes))
        order = np.argsort(units, kind="stable")
        rows = changes.take(order).combine_chunks().to_batches()[0]
        bounds = np.append(np.flatnonzero(np.diff(units[order], prepend=-1)), order.size).tolist()
        n_hosts = share.hosts.size
        row = partial(IndexRow, file=name, size=n_hosts)
        sink, blocks = pa.BufferOutputStream(), []
        with pa.ipc.new_file(sink, self.schema) as file:
            for start, stop in pairwise(bounds):
                batch = rows.slice(start, stop - start)
                file.write_batch(batch)
                length = pa.ipc.get_record_batch_size(batch)  # the first write also writes the file's header
                unit = int(units[order[start]])
                host, hot = (unit, None) if unit < n_hosts else (NO_HOST, int(share.hot[unit - n_hosts]))
                offset, n_rows = sink.tell() - length, stop - start
                blocks.append(row(host=host, hot=hot, offset=offset, length=length, rows=n_rows))
        data = sink.getvalue()
        return data, [entry._replace(checksum=zlib.crc32(data.slice(entry.offset, entry.length))) for entry in blocks]

    def read(self, segment: Segment, share: Share, tally: Tally | None = None) -> pa.Table:
        """Returns the rows of a share in a segment; reads only blocks that may hold some.

        tally: counts what is read.
        """
        tally = Tally() if tally is None else tally
        index = load_index(self.root, segment.index)
        blocks = np.flatnonzero(_may_hold(index, share))
        by_file = np.split(blocks, np.flatnonzero(np.diff(index.file[blocks])) + 1)
        batches = [batch for of_file in by_file if of_file.size for batch in self._read(index, of_file, tally)]
        rows = pa.Table.from_batches(batches, self.schema)
        is_own = share.has(positions_of(rows))
        # Combined first, as filtering many small chunks one by one is slow.
        return rows if is_own.all() else rows.combine_chunks().filter(pa.array(is_own))

    def _read(self, index: Index, blocks: NDArray[np.int64], tally: Tally) -> Iterator[pa.RecordBatch]:
        """Yields the rows of blocks, given by their numbers, of one file."""
        filesystem, directory = resolve(self.root)
        path = f"{directory}/{index.names[index.file[blocks[0]]]}"
        offsets, lengths, checksums = index.offset[blocks], index.length[blocks], index.checksum[blocks].tolist()
        ends = offsets + lengths
        first = np.flatnonzero(np.append(True, offsets[1:] > ends[:-1] + GAP)).tolist()
        tally.files += 1
        tally.blocks += blocks.size
        tally.bytes += int(lengths.sum())
        try:
            with filesystem.open_input_file(path) as file:
                for start, stop in zip(first, [*first[1:], offsets.size], strict=True):
                    base = int(offsets[start])
                    data = pa.py_buffer(file.read_at(int(ends[stop - 1]) - base, base))
                    for number in range(start, stop):
                        block = data[int(offsets[number]) - base : int(ends[number]) - base]
                        is_intact = block.size == lengths[number] and zlib.crc32(block) == checksums[number]
                        if not is_intact:
                            raise Damaged(f"the state file {path} is damaged at byte {offsets[number]}")
                        rows = pa.ipc.read_record_batch(block, self.schema)
                        tally.rows += rows.num_rows
                        yield rows
        except (OSError, pa.ArrowInvalid) as error:
            raise Damaged(f"the state file {path} cannot be read: {error}") from error

    def segment(self, receipts: Sequence[Receipt], since: int | None, until: int) -> Segment:
        """Writes one index of all blocks that tasks wrote, and returns the segment that they make up."""
        index = pa.concat_tables([receipt.index for receipt in receipts]) if receipts else INDEX.empty_table()
        name = f"index-{until:012d}-{uuid4().hex}.arrow"
        data = _stream(index)
        write_file(self.root, name, pa.py_buffer(data + zlib.crc32(data).to_bytes(4, "little")))
        return Segment(since=since, until=until, index=name, rows=_total(index, "rows"), bytes=_total(index, "length"))


def positions_of(rows: pa.Table) -> Positions:
    """Returns the key positions of changes."""
    positions: Positions = rows[POSITION_COLUMN].to_numpy()
    return positions


def _total(index: pa.Table, name: str) -> int:
    return int(index[name].to_numpy().sum())


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


class Index(NamedTuple):
    """The columns of an index as arrays, sorted by file and offset."""

    names: list[str]  # of all files
    file: NDArray[np.int64]  # number in `names`
    size: NDArray[np.int32]
    host: NDArray[np.int32]
    hot: Positions  # 0 for the block of a host
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    rows: NDArray[np.int64]
    checksum: NDArray[np.uint32]


def _may_hold(index: Index, share: Share) -> NDArray[np.bool_]:
    """Returns which blocks may hold keys of the share."""
    is_hot = index.host == NO_HOST
    may_hold: NDArray[np.bool_] = np.zeros(is_hot.size, np.bool_)
    may_hold[is_hot] = share.has(index.hot[is_hot])
    # A hot key of this share may be in its host's block, unless it was hot when the segment was written, too.
    hot = share.hot[share.owned]
    hot_in_host = hot[~np.isin(hot, index.hot[is_hot])]
    for size in np.unique(index.size[~is_hot]).tolist():
        hosts = share.folded(size)
        hosts[hosts_at(hot_in_host, size)] = True
        has_size = ~is_hot & (index.size == size)
        may_hold[has_size] = hosts[index.host[has_size]]
    return np.asarray(may_hold & (index.rows > 0))


@lru_cache(maxsize=256)
def load_index(root: str, name: str) -> Index:
    """Returns the index of a segment. Index files never change, so a process reads each only once."""
    filesystem, directory = resolve(root)
    path = f"{directory}/{name}"
    try:
        with filesystem.open_input_file(path) as file:
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
