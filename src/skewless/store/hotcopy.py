"""The hot copy: the committed states of one worker's keys in a database on its local disk, to be read by key."""

from __future__ import annotations

import fcntl
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from skewless.kernels.place import hosts_at
from skewless.store.bulk import Bulk
from skewless.store.codec import Values
from skewless.store.files import Store, Tally, places_of
from skewless.store.manifest import Manifest, entries
from skewless.store.share import Places, Share

T = TypeVar("T")
Line: TypeAlias = tuple[int, str, str | None, int | None]  # of the database: place, key, state, timeout
COPIES = 64  # attempts of one worker's task that may run on a machine at once
AT_ONCE = 500  # keys in one query
MANY = 1000  # states that come at once and are left in a file
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

    The database holds committed versions only, so that nothing is ever undone. States that came many at once lie in a
    file beside it, until they change: then the database has them, or says that they are gone. It is a copy: whatever is
    wrong with it, it is built anew from the durable files.
    """

    store: Store
    manifest: Manifest
    share: Share
    path: Path
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self._bulk: Bulk | None = None
        self._connect()
        self._sound(self._catch_up)

    def get(self, places: Places, keys: Sequence[str]) -> list[Entry | None]:
        """What is known of these keys, given by place and text; None of those that have neither state nor timeout."""
        found = self._sound(lambda: self._decoded(self._at(places)))
        return [found.get(pair) for pair in zip(_signed(places).tolist(), keys, strict=True)]

    def _at(self, places: Places) -> Iterator[Line]:
        """What is known at these places, the newest last."""
        if self._bulk is not None:
            yield from self._lines(self._bulk.at(places))
        yield from self._changed(places)

    def _changed(self, places: Places) -> Iterator[Line]:
        """What the database has at these places."""
        signed = _signed(places).tolist()
        for start in range(0, len(signed), AT_ONCE):
            some = signed[start : start + AT_ONCE]
            marks = ",".join("?" * len(some))
            yield from self._db.execute(f"select * from state where place in ({marks})", some)

    def expired(self, now: int) -> list[Entry]:
        """All keys whose timeout is now or was before."""
        return list(self._sound(lambda: self._decoded(self._expired(now))).values())

    def _expired(self, now: int) -> Iterator[Line]:
        if self._bulk is not None:
            late = self._bulk.expired(now)
            changed = {line[:2] for line in self._changed(places_of(late))}
            yield from (line for line in self._lines(late) if line[:2] not in changed)
        yield from self._db.execute("select * from state where timeout <= ?", (now,))

    def entries(self) -> list[Entry]:
        """All there is."""
        return list(self._sound(lambda: self._decoded(self._all())).values())

    def _all(self) -> Iterator[Line]:
        if self._bulk is not None:
            yield from self._lines(self._bulk.rows())
        yield from self._db.execute("select * from state")

    def _decoded(self, lines: Iterable[Line]) -> dict[tuple[int, str], Entry]:
        """Entries by place and text, from lines of which the last of a key counts."""
        newest = {line[:2]: line for line in lines}
        found = [line for line in newest.values() if not _is_gone(line)]
        places = _unsigned(np.array([line[0] for line in found], np.int64)).tolist()
        keys = self.store.key_codec.values([line[1] for line in found])
        states = iter(self.store.state_codec.values([line[2] for line in found if line[2] is not None]))
        return {
            line[:2]: Entry(place, key, None if line[2] is None else next(states), line[3])
            for line, place, key in zip(found, places, keys, strict=True)
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
                segments, had, self._bulk = (), Share.whole(False), None
            else:
                had, bulk = Share.from_json(str(known["share"])), known.get("bulk")
                self._bulk = Bulk.from_json(bulk, self.path).within(self.share) if bulk else None
            self._drop(had.without(self.share))
            stays, comes = had.within(self.share), self.share.without(had)
            for segment in segments:
                self._apply(self.store.read(segment, stays, self.tally))
            if not comes.is_empty:
                self._take_in(entries(self.store, self.manifest, comes, self.tally))
            new = {
                "bulk": "" if self._bulk is None else self._bulk.to_json(),
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
        if new["bulk"] != known.get("bulk", ""):
            _remove_bulks(self.path, self._bulk)

    def _meta(self) -> dict[str, str]:
        if self._db.execute("select count(*) from sqlite_master").fetchone() == (0,):
            for statement in filter(str.strip, _TABLES.split(";")):
                self._db.execute(statement)
        return dict(self._db.execute("select name, value from meta"))

    def _drop(self, gone: Share) -> None:
        """Forget the keys of a share. Those of a host lie together in the database, whatever the number of hosts."""
        size, stays = gone.hosts.size, gone.hot[~gone.owned]
        for host in np.flatnonzero(gone.hosts).tolist():
            ends = [host * 2**64 // size, (host + 1) * 2**64 // size - 1]
            first, last = _signed(np.array(ends, np.uint64)).tolist()
            spared = _signed(stays[hosts_at(stays, size) == host]).tolist()
            marks = ",".join("?" * len(spared))
            query = f"delete from state where place between ? and ? and place not in ({marks})"
            self._db.execute(query, (first, last, *spared))
        hot = _signed(gone.hot[gone.owned]).tolist()
        self._db.executemany("delete from state where place = ?", [(place,) for place in hot])

    def _take_in(self, rows: pa.Table) -> None:
        """States of keys that the copy did not have."""
        if rows.num_rows < MANY:
            self._apply(rows)
            return
        if self._bulk is not None:
            rows = pa.concat_tables([self._bulk.rows(), rows])
        self._bulk = Bulk.written(self.path, rows, self.share)

    def _apply(self, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        # In the order of the database: neighbours are written together.
        lines = self._lines(rows.take(pa.array(np.argsort(_signed(places_of(rows))))))
        gone = [line for line in lines if _is_gone(line)]
        if gone:
            # Of what the file beside it has, the database says that it is gone; the rest it forgets.
            beside = self._beside([line[0] for line in gone])
            forgotten = [line[:2] for line in gone if line[0] not in beside]
            self._db.executemany("delete from state where place = ? and key = ?", forgotten)
            lines = [line for line in lines if not _is_gone(line) or line[0] in beside]
        self._db.executemany(_PUT, lines)

    def _beside(self, places: list[int]) -> set[int]:
        """Those of these places at which the file beside the database has something."""
        if self._bulk is None:
            return set()
        return set(_signed(places_of(self._bulk.at(_unsigned(np.array(places, np.int64))))).tolist())

    def _lines(self, rows: pa.Table) -> list[Line]:
        keys = cast(list[str], self.store.key_codec.texts(rows["key"].combine_chunks()))
        states = self.store.state_codec.texts(rows["state"].combine_chunks())
        places, timeouts = _signed(places_of(rows)).tolist(), rows["timeout"].to_pylist()
        return list(zip(places, keys, states, timeouts, strict=True))


def _is_gone(line: Line) -> bool:
    return line[2] is None and line[3] is None


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
    _remove_bulks(path, None)


def _remove_bulks(path: Path, kept: Bulk | None) -> None:
    """Delete the files beside a database that it does not need; also what died attempts left."""
    for file in path.parent.glob(f"{path.stem}-*.arrow"):
        if kept is None or file != kept.path:
            file.unlink(missing_ok=True)


def _boot() -> str:
    """What changes when the machine starts anew: then the last writes to the copy may be missing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return json.dumps(round((time.time() - time.monotonic()) / 60))


_FIRST = np.uint64(1 << 63)


def _signed(places: Places) -> NDArray[np.int64]:
    """Places as SQLite has integers, in the same order."""
    return (places ^ _FIRST).view(np.int64)


def _unsigned(numbers: NDArray[np.int64]) -> Places:
    return numbers.view(np.uint64) ^ _FIRST
