"""The hot copy: the committed states of one worker's keys in a database on its local disk, to be read by key."""

from __future__ import annotations

import fcntl
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from skewless.store.codec import Values
from skewless.store.files import Store, Tally, places_of
from skewless.store.manifest import Manifest, entries
from skewless.store.share import Places, Share

T = TypeVar("T")
COPIES = 64  # attempts of one worker's task that may run on a machine at once
AT_ONCE = 500  # keys in one query
log = logging.getLogger(__name__)

_TABLES = """
create table state (place integer, key text, state text, timeout integer, primary key (place, key)) without rowid;
create index timeouts on state (timeout) where timeout is not null;
create table meta (name text primary key, value text) without rowid;
"""
_PUT = """insert into state values (?, ?, ?, ?)
on conflict (place, key) do update set state = excluded.state, timeout = excluded.timeout"""


class Entry(NamedTuple):
    """What is known of a key. A key without a state may wait for its timeout all the same."""

    place: int
    key: Values
    state: Values | None
    timeout: int | None  # in milliseconds


@dataclass
class HotCopy:
    """The states of a share at the version of a manifest, from `opened`.

    The database holds committed versions only, so that nothing is ever undone. It is a copy: whatever is wrong with it,
    it is built anew from the durable files.
    """

    store: Store
    manifest: Manifest
    share: Share
    path: Path
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self._connect()
        self._sound(self._catch_up)

    def get(self, places: Places, keys: Sequence[str]) -> list[Entry | None]:
        """What is known of these keys, given by place and text; None of those that have neither state nor timeout."""
        signed = _signed(places).tolist()
        found = self._sound(lambda: self._decoded(self._select(signed)))
        return [found.get(pair) for pair in zip(signed, keys, strict=True)]

    def _select(self, places: list[int]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            marks = ",".join("?" * len(some))
            yield from self._db.execute(f"select * from state where place in ({marks})", some)

    def expired(self, now: int) -> list[Entry]:
        """All keys whose timeout is now or was before."""
        query = "select * from state where timeout <= ?"
        return list(self._sound(lambda: self._decoded(self._db.execute(query, (now,)))).values())

    def entries(self) -> list[Entry]:
        """All there is."""
        return list(self._sound(lambda: self._decoded(self._db.execute("select * from state"))).values())

    def _decoded(self, rows: Iterator[tuple[Any, ...]] | sqlite3.Cursor) -> dict[tuple[int, str], Entry]:
        found = list(rows)
        places = _unsigned(np.array([row[0] for row in found], np.int64)).tolist()
        keys = self.store.key_codec.values([row[1] for row in found])
        states = iter(self.store.state_codec.values([row[2] for row in found if row[2] is not None]))
        return {
            (row[0], row[1]): Entry(place, key, None if row[2] is None else next(states), row[3])
            for row, place, key in zip(found, places, keys, strict=True)
        }

    def _sound(self, action: Callable[[], T]) -> T:
        """Do it; if the database turns out to be damaged, do it with a new one."""
        try:
            return action()
        except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
            log.warning("the hot copy %s is built anew: %s", self.path, type(error).__name__)
        self.close()
        _remove(self.path)
        self._connect()
        self._catch_up()
        return action()

    def _connect(self) -> None:
        self._db = sqlite3.connect(self.path, isolation_level=None)
        with suppress(sqlite3.DatabaseError):  # a damaged file is found out by the first query
            # The copy survives the death of a process, not that of the machine: see `_boot`.
            self._db.execute("pragma synchronous = off")
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma cache_size = -65536")
            self._db.execute(f"pragma mmap_size = {1 << 40}")

    def close(self) -> None:
        with suppress(sqlite3.DatabaseError):
            self._db.close()

    def _catch_up(self) -> None:
        """From whatever version and share it has to those that are wanted, all at once or not at all."""
        self._db.execute("begin immediate")
        try:
            known = self._meta()
            version, token, boot = (known.get(name) for name in ("version", "token", "boot"))
            segments = self.manifest.since(int(version), str(token)) if version is not None else None
            if segments is None or boot != _boot() or known.get("types") != self.store.types:
                self._db.execute("delete from state")
                segments, had = (), Share.whole(False)
            else:
                had = Share.from_json(str(known["share"]))
            self._drop(had.without(self.share))
            stays, comes = had.within(self.share), self.share.without(had)
            for segment in segments:
                self._apply(self.store.read(segment, stays, self.tally))
            if not comes.is_empty:
                self._apply(entries(self.store, self.manifest, comes, self.tally))
            new = {
                "version": self.manifest.version,
                "token": self.manifest.tokens[self.manifest.version],
                "boot": _boot(),
                "types": self.store.types,
                "share": self.share.to_json(),
            }
            self._db.executemany("insert or replace into meta values (?, ?)", list(new.items()))
            self._db.execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("rollback")
            raise

    def _meta(self) -> dict[str, str]:
        if self._db.execute("select count(*) from sqlite_master").fetchone() == (0,):
            for statement in filter(str.strip, _TABLES.split(";")):
                self._db.execute(statement)
        return dict(self._db.execute("select name, value from meta"))

    def _drop(self, gone: Share) -> None:
        """Forget the keys of a share. Those of a host lie together in the database, whatever the number of hosts."""
        bits = gone.hosts.size.bit_length() - 1
        for host in np.flatnonzero(gone.hosts).tolist():
            ends = [host, host | (2**64 - 1 << bits) % 2**64]
            first, last = _signed(np.array(ends, np.uint64)).tolist()
            spared = _signed(gone.hot[~gone.owned & (gone.hot & np.uint64(gone.hosts.size - 1) == host)]).tolist()
            marks = ",".join("?" * len(spared))
            query = f"delete from state where place between ? and ? and place not in ({marks})"
            self._db.execute(query, (first, last, *spared))
        hot = _signed(gone.hot[gone.owned]).tolist()
        self._db.executemany("delete from state where place = ?", [(place,) for place in hot])

    def _apply(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        # In the order of the database: neighbours are written together.
        places = _signed(places_of(rows))
        order = np.argsort(places)
        rows = rows.take(pa.array(order))
        keys = self.store.key_codec.texts(rows["key"].combine_chunks())
        states = self.store.state_codec.texts(rows["state"].combine_chunks())
        timeouts = rows["timeout"].to_pylist()
        lines = list(zip(places[order].tolist(), keys, states, timeouts, strict=True))
        gone = [line[:2] for line in lines if line[2] is None and line[3] is None]
        if gone:
            self._db.executemany("delete from state where place = ? and key = ?", gone)
            lines = [line for line in lines if line[2] is not None or line[3] is not None]
        self._db.executemany(_PUT, lines)


@contextmanager
def opened(
    directory: str | Path, worker: int, store: Store, manifest: Manifest, share: Share, tally: Tally | None = None
) -> Iterator[HotCopy]:
    """The hot copy of a worker, brought to the version of the manifest; it is this attempt's alone until it is closed.

    A second attempt that runs at the same time gets a database of its own.
    """
    manifest.check(store)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, worker) as path:
        copy = HotCopy(store, manifest, share, path, tally or Tally())
        try:
            yield copy
        finally:
            copy.close()


@contextmanager
def _locked(folder: Path, worker: int) -> Iterator[Path]:
    """A database that nobody else uses. The lock goes with the process, however that ends."""
    for number in range(COPIES):
        path = folder / f"worker-{worker:05d}-{number}.sqlite"
        with path.with_suffix(".lock").open("a") as lock:
            if _lock(lock):
                yield path
                return
    raise RuntimeError(f"all {COPIES} hot copies of worker {worker} in {folder} are in use")


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _boot() -> str:
    """What changes when the machine starts anew: then the last writes to the copy may be missing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return json.dumps(round((time.time() - time.monotonic()) / 60))


_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


def _signed(places: Places) -> NDArray[np.int64]:
    """Places as SQLite orders them: with their bits in reverse, the keys of a host follow one another."""
    reversed_bits = _REVERSED[places.astype("<u8").view(np.uint8)].view(">u8").astype(np.uint64)
    return (reversed_bits ^ np.uint64(1 << 63)).view(np.int64)


def _unsigned(numbers: NDArray[np.int64]) -> Places:
    reversed_bits = numbers.view(np.uint64) ^ np.uint64(1 << 63)
    return np.asarray(_REVERSED[reversed_bits.astype("<u8").view(np.uint8)].view(">u8").astype(np.uint64))
