"""The hot copy: a database on the local disk with the committed states of a worker's keys, for lookups by key."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from skewless.filesystem import lock_file
from skewless.kernels.position import hosts_at
from skewless.store.bulk import Bulk
from skewless.store.codec import Values
from skewless.store.files import StateStore, Tally, positions_of
from skewless.store.manifest import Manifest, entries
from skewless.store.share import Positions, Share

T = TypeVar("T")
# A row of the database: position, key, state, timeout. A plain tuple, as SQLite returns and takes: hot copies handle
# millions of them.
Line: TypeAlias = tuple[int, str, str | None, int | None]
COPIES = 64  # the most hot copies of a worker on a machine: one for each attempt of its task that runs at the same time
AT_ONCE = 500  # keys in one query
MANY = 1000  # when at least so many states arrive together, they stay in a file
log = logging.getLogger(__name__)

_REMOVED = (None, None)  # state and timeout of a key that was removed
# The column `place` has the positions of keys, as in the durable files.
_TABLES = """
create table state (place integer, key text, state text, timeout integer, primary key (place, key)) without rowid;
create index timeouts on state (timeout) where timeout is not null;
create table meta (name text primary key, value text) without rowid;
"""
_PUT = """insert into state values (?, ?, ?, ?)
on conflict (place, key) do update set state = excluded.state, timeout = excluded.timeout"""


class Entry(NamedTuple):
    """The state and timeout of a key. A key may have a timeout but no state."""

    position: int
    key: Values
    state: Values | None
    timeout: int | None  # in milliseconds since 1970


@dataclass
class HotCopy:
    """The states of a share at the version of a manifest; made by `open_hot_copy`.

    The database holds committed versions only, so nothing ever has to be undone. States that arrived in bulk are in a
    file next to it until they change: then the database has the new state, or marks the key as removed. If either is
    damaged, both are rebuilt from the durable files.
    """

    store: StateStore
    manifest: Manifest
    share: Share
    path: Path
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self._bulk: Bulk | None = None
        self._connect()
        self._with_repair(self._catch_up)

    def get(self, positions: Positions, keys: Sequence[str]) -> list[Entry | None]:
        """Returns the entries of keys, given by position and text; None for a key with neither state nor timeout."""
        entries = self._with_repair(lambda: self._decoded(self._at(positions)))
        return [entries.get(pair) for pair in zip(_signed(positions).tolist(), keys, strict=True)]

    def _at(self, positions: Positions) -> Iterator[Line]:
        """Yields the lines at these positions, the newest of a key last."""
        if self._bulk is not None:
            yield from self._lines(self._bulk.at(positions))
        yield from self._in_database(positions)

    def _in_database(self, positions: Positions) -> Iterator[Line]:
        signed = _signed(positions).tolist()
        for start in range(0, len(signed), AT_ONCE):
            part = signed[start : start + AT_ONCE]
            marks = ",".join("?" * len(part))
            yield from self._db.execute(f"select * from state where place in ({marks})", part)

    def expired(self, now: int) -> list[Entry]:
        """Returns all keys whose timeout is at most `now`."""
        return list(self._with_repair(lambda: self._decoded(self._expired(now))).values())

    def _expired(self, now: int) -> Iterator[Line]:
        if self._bulk is not None:
            expired = self._bulk.expired(now)
            changed = {(position, key) for position, key, _, _ in self._in_database(positions_of(expired))}
            for position, key, state, timeout in self._lines(expired):
                if (position, key) not in changed:
                    yield position, key, state, timeout
        yield from self._db.execute("select * from state where timeout <= ?", (now,))

    def entries(self) -> list[Entry]:
        """Returns all keys."""
        return list(self._with_repair(lambda: self._decoded(self._all())).values())

    def _all(self) -> Iterator[Line]:
        if self._bulk is not None:
            yield from self._lines(self._bulk.rows())
        yield from self._db.execute("select * from state")

    def _decoded(self, lines: Iterable[Line]) -> dict[tuple[int, str], Entry]:
        """Returns entries by position and key, from lines of which the last of a key counts."""
        newest = {(position, key): (state, timeout) for position, key, state, timeout in lines}
        for pair in [pair for pair, content in newest.items() if content == _REMOVED]:
            del newest[pair]
        positions = _unsigned(np.array([position for position, _ in newest], np.int64)).tolist()
        keys = self.store.key_codec.values([key for _, key in newest])
        states = iter(self.store.state_codec.values([state for state, _ in newest.values() if state is not None]))
        return {
            pair: Entry(position, key, None if state is None else next(states), timeout)
            for (pair, (state, timeout)), position, key in zip(newest.items(), positions, keys, strict=True)
        }

    def _with_repair(self, action: Callable[[], T]) -> T:
        """Runs an action; if the copy turns out to be damaged, rebuilds it and runs the action again."""
        try:
            return action()
        except (sqlite3.DatabaseError, ValueError, KeyError, TypeError) as error:
            log.warning("rebuilding the hot copy %s, which is damaged: %s", self.path, type(error).__name__)
        self.close()
        _remove(self.path)
        self._connect()
        self._catch_up()
        return action()

    def _connect(self) -> None:
        self._db = sqlite3.connect(self.path, isolation_level=None)
        with suppress(sqlite3.DatabaseError):  # the first query finds a damaged file
            # Writes survive a crash of the process, but not of the machine: see `_boot_id`.
            self._db.execute("pragma synchronous = off")
            self._db.execute("pragma journal_mode = wal")
            self._db.execute("pragma cache_size = -65536")
            self._db.execute(f"pragma mmap_size = {1 << 40}")

    def close(self) -> None:
        """Closes the database."""
        with suppress(sqlite3.DatabaseError):
            self._db.close()

    def _catch_up(self) -> None:
        """Brings the copy from its version and share to those of this batch, in one transaction."""
        self._db.execute("begin immediate")
        try:
            meta = self._meta()
            version, token, boot = (meta.get(name) for name in ("version", "token", "boot"))
            segments = self.manifest.since(int(version), str(token)) if version is not None else None
            if segments is None or boot != _boot_id() or meta.get("types") != self.store.types:
                self._db.execute("delete from state")
                segments, old_share, self._bulk = (), Share.empty(), None
            else:
                old_share, bulk = Share.from_json(str(meta["share"])), meta.get("bulk")
                self._bulk = Bulk.from_json(bulk, self.path).within(self.share) if bulk else None
            self._drop(old_share.without(self.share))
            staying, arriving = old_share.within(self.share), self.share.without(old_share)
            for segment in segments:
                self._apply(self.store.read(segment, staying, self.tally))
            if not arriving.is_empty:
                self._take_in(entries(self.store, self.manifest, arriving, self.tally))
            new_meta = {
                "bulk": "" if self._bulk is None else self._bulk.to_json(),
                "version": self.manifest.version,
                "token": self.manifest.tokens[self.manifest.version],
                "boot": _boot_id(),
                "types": self.store.types,
                "share": self.share.to_json(),
            }
            self._db.executemany("insert or replace into meta values (?, ?)", list(new_meta.items()))
            self._db.execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("rollback")
            raise
        if new_meta["bulk"] != meta.get("bulk", ""):
            _remove_bulks(self.path, keep=self._bulk)

    def _meta(self) -> dict[str, str]:
        """Returns the names and values in the table `meta`; creates the tables if the database is new."""
        if self._db.execute("select count(*) from sqlite_master").fetchone() == (0,):
            for statement in filter(str.strip, _TABLES.split(";")):
                self._db.execute(statement)
        return dict(self._db.execute("select name, value from meta"))

    def _drop(self, leaving: Share) -> None:
        """Deletes the keys of a share. The keys of a host are contiguous, whatever the number of hosts."""
        size, staying = leaving.hosts.size, leaving.hot[~leaving.owned]
        for host in np.flatnonzero(leaving.hosts).tolist():
            ends = [host * 2**64 // size, (host + 1) * 2**64 // size - 1]
            first, last = _signed(np.array(ends, np.uint64)).tolist()
            exceptions = _signed(staying[hosts_at(staying, size) == host]).tolist()
            marks = ",".join("?" * len(exceptions))
            query = f"delete from state where place between ? and ? and place not in ({marks})"
            self._db.execute(query, (first, last, *exceptions))
        hot = _signed(leaving.hot[leaving.owned]).tolist()
        self._db.executemany("delete from state where place = ?", [(position,) for position in hot])

    def _take_in(self, rows: pa.Table) -> None:
        """Adds states of keys that the copy did not have."""
        if rows.num_rows < MANY:
            self._apply(rows)
            return
        if self._bulk is not None:
            rows = pa.concat_tables([self._bulk.rows(), rows])
        self._bulk = Bulk.written(self.path, rows, self.share)

    def _apply(self, rows: pa.Table) -> None:
        """Writes changes to the database."""
        if rows.num_rows == 0:
            return
        # Sorted as the database is, so that neighbours are written together.
        lines = self._lines(rows.take(pa.array(np.argsort(_signed(positions_of(rows))))))
        removed = [(position, key) for position, key, state, timeout in lines if (state, timeout) == _REMOVED]
        if removed:
            # The database marks removed keys that are in the bulk file, and forgets the others.
            in_bulk = self._in_bulk([position for position, _ in removed])
            forgotten = [(position, key) for position, key in removed if position not in in_bulk]
            self._db.executemany("delete from state where place = ? and key = ?", forgotten)
            lines = [
                (position, key, state, timeout)
                for position, key, state, timeout in lines
                if (state, timeout) != _REMOVED or position in in_bulk
            ]
        self._db.executemany(_PUT, lines)

    def _in_bulk(self, positions: list[int]) -> set[int]:
        """Returns those of these positions at which the bulk file has keys."""
        if self._bulk is None:
            return set()
        return set(_signed(positions_of(self._bulk.at(_unsigned(np.array(positions, np.int64))))).tolist())

    def _lines(self, rows: pa.Table) -> list[Line]:
        keys = cast(list[str], self.store.key_codec.texts(rows["key"].combine_chunks()))
        states = self.store.state_codec.texts(rows["state"].combine_chunks())
        positions, timeouts = _signed(positions_of(rows)).tolist(), rows["timeout"].to_pylist()
        return list(zip(positions, keys, states, timeouts, strict=True))


@contextmanager
def open_hot_copy(
    directory: str | Path, worker: int, store: StateStore, manifest: Manifest, share: Share, tally: Tally | None = None
) -> Iterator[HotCopy]:
    """Opens the hot copy of a worker and brings it to the version of the manifest.

    Attempts of a task that run at the same time have a database each.

    directory: on the local disk.
    share: the keys of the worker.
    tally: counts what is read from durable files.
    """
    manifest.check(store)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, worker) as path:
        copy = HotCopy(store=store, manifest=manifest, share=share, path=path, tally=tally or Tally())
        try:
            yield copy
        finally:
            copy.close()


@contextmanager
def _locked(folder: Path, worker: int) -> Iterator[Path]:
    """Returns the path of a database that no other process uses. The lock ends with the process, however that ends."""
    for number in range(COPIES):
        path = folder / f"worker-{worker:05d}-{number}.sqlite"
        lock = lock_file(path.with_suffix(".lock"))
        if lock is not None:
            with lock:
                yield path
            return
    raise RuntimeError(
        f"all {COPIES} hot copies of worker {worker} in {folder} are in use: wait until an attempt of its task ends"
    )


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    _remove_bulks(path, keep=None)


def _remove_bulks(path: Path, keep: Bulk | None) -> None:
    """Deletes the bulk files of a database except one; attempts that were killed may have left some."""
    for file in path.parent.glob(f"{path.stem}-*.arrow"):
        if keep is None or file != keep.path:
            file.unlink(missing_ok=True)


def _boot_id() -> str:
    """Returns an id that changes when the machine restarts: the last writes to the copy may then be lost."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return json.dumps(round((time.time() - time.monotonic()) / 60))


_SIGN = np.uint64(1 << 63)


def _signed(positions: Positions) -> NDArray[np.int64]:
    """Returns positions as signed integers, which SQLite has, in the same order."""
    return (positions ^ _SIGN).view(np.int64)


def _unsigned(numbers: NDArray[np.int64]) -> Positions:
    return numbers.view(np.uint64) ^ _SIGN
