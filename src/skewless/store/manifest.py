"""Which files make up the state at a version: segments, oldest first, merged from time to time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from skewless.arrays import require
from skewless.store.codec import changing
from skewless.store.files import (
    FORMAT,
    Receipt,
    Segment,
    Store,
    Tally,
    load_index,
    opened,
    path_of,
    places_of,
)
from skewless.store.share import Share

SEGMENTS = 16  # that may pile up before some are merged
TOKENS = 256  # a hot copy that is farther behind is built anew
NOTHING = -2  # the version before any state; an initial state is version -1, and batches count from 0


@dataclass(frozen=True)
class Manifest:
    """The state at a version: what the driver commits with a batch, as a few hundred bytes of JSON.

    Segments follow one another without a gap. The first is a snapshot: it starts from nothing.
    A commit draws a token, so that a hot copy of another history that has the same version numbers is found out.
    """

    version: int
    name: str  # of this store, drawn when it was new
    types: str
    segments: tuple[Segment, ...]
    tokens: dict[int, str]  # of the last versions

    @classmethod
    def empty(cls, store: Store) -> Self:
        return cls(NOTHING, uuid4().hex, store.types, (), {NOTHING: uuid4().hex[:8]})

    def committed(self, store: Store, version: int, receipts: Sequence[Receipt]) -> Manifest:
        """The manifest after a batch, of which each worker wrote what the receipts say."""
        require(version > self.version, f"version {version} does not come after version {self.version}")
        self.check(store)
        segment = store.segment(receipts, self.version if self.segments else None, version)
        tokens = {**self.tokens, version: uuid4().hex[:8]}
        return self._kept(replace(self, version=version, segments=(*self.segments, segment), tokens=tokens))

    def due(self) -> Sequence[Segment]:
        """The segments to merge next, if any: the newest, from the first that is smaller than those after it together.

        So there are few segments, and each row is written again a few times, however long the stream.
        """
        if len(self.segments) <= SEGMENTS:
            return ()
        sizes = np.array([segment.bytes for segment in self.segments])
        later = sizes[::-1].cumsum()[::-1] - sizes
        small = np.flatnonzero(later[:-1] >= sizes[:-1])
        return self.segments[int(small[0]) :] if small.size else ()

    def merged(self, store: Store, segments: Sequence[Segment], receipts: Sequence[Receipt]) -> Manifest:
        """The same state, with one segment in the place of several; later ones may have come meanwhile."""
        at = self.segments.index(segments[0])
        require(self.segments[at : at + len(segments)] == tuple(segments), "these segments follow one another")
        one = store.segment(receipts, segments[0].since, segments[-1].until)
        return self._kept(replace(self, segments=(*self.segments[:at], one, *self.segments[at + len(segments) :])))

    @staticmethod
    def _kept(manifest: Manifest) -> Manifest:
        """Without the tokens of versions from which one cannot go on."""
        known = sorted(version for version in manifest.tokens if version >= manifest.segments[0].until)
        return replace(manifest, tokens={version: manifest.tokens[version] for version in known[-TOKENS:]})

    def since(self, version: int, token: str) -> Sequence[Segment] | None:
        """What to apply to a hot copy at this version; None if it cannot be brought to this one."""
        if self.tokens.get(version) != token or version > self.version:
            return None
        return [segment for segment in self.segments if segment.until > version]

    def check(self, store: Store) -> None:
        require(self.types == store.types, f"the state was written with {self.types}; now there is {store.types}")

    def to_json(self) -> str:
        content = {"format": FORMAT, **asdict(self), "tokens": list(self.tokens.items())}
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            content = json.loads(text)
            known = content["format"]
        except (ValueError, TypeError, KeyError):
            raise ValueError("this is not a manifest of states: no JSON object with a format") from None
        require(known == FORMAT, f"this state has format {known}; this version of skewless reads {FORMAT}")
        segments = tuple(Segment(**segment) for segment in content["segments"])
        return cls(content["version"], content["name"], content["types"], segments, dict(content["tokens"]))


def merge(store: Store, segments: Sequence[Segment], share: Share, worker: int, tally: Tally | None = None) -> Receipt:
    """Merge what several segments say of a share; a task for each worker of a table does all of it."""
    rows = pa.concat_tables([store.read(segment, share, tally) for segment in segments])
    newest = rows.take(latest(store, rows))
    if segments[0].since is None:
        newest = newest.filter(pc.or_(pc.is_valid(newest["state"]), pc.is_valid(newest["timeout"])))
    return store.write(newest, share, segments[-1].until, worker, "merged")


def latest(store: Store, rows: pa.Table) -> pa.Array:
    """The numbers of the rows that are the last of their key, ascending."""
    places = places_of(rows)
    order = np.argsort(places, kind="stable")
    places = places[order]
    keys = rows["key"].combine_chunks().take(pa.array(order))
    again = np.append(False, places[1:] == places[:-1])[: places.size]
    if changing(keys.flatten(), again).any():
        # Two keys of one hash are two keys: where a place occurs again, the keys themselves decide.
        shared = np.flatnonzero(again | np.append(again[1:], False))
        texts = store.key_codec.texts(keys.take(pa.array(shared)))
        numbers = np.zeros(places.size, np.int64)
        numbers[shared] = np.unique(np.array(texts), return_inverse=True)[1]
        by_key = np.lexsort((numbers, places))
        order, places, numbers = order[by_key], places[by_key], numbers[by_key]
        again = np.append(False, (places[1:] == places[:-1]) & (numbers[1:] == numbers[:-1]))
    is_last = ~np.append(again[1:], False)[: places.size]
    return pa.array(np.sort(order[is_last]))


def entries(store: Store, manifest: Manifest, share: Share, tally: Tally | None = None) -> pa.Table:
    """The state of a share at a version, from durable files alone."""
    manifest.check(store)
    tables = [store.read(segment, share, tally) for segment in manifest.segments]
    rows = pa.concat_tables([store.schema.empty_table(), *tables])
    rows = rows.take(latest(store, rows))
    return rows.filter(pc.or_(pc.is_valid(rows["state"]), pc.is_valid(rows["timeout"])))


def sweep(store: Store, kept: Sequence[Manifest]) -> list[str]:
    """Delete the files that none of these manifests needs, and name them; not while segments are being merged.

    Files of versions after all of these may be needed by a batch that runs, and stay.
    """
    newest = max(manifest.version for manifest in kept)
    needed = {name for manifest in kept for segment in manifest.segments for name in _files(store, segment)}
    return _delete(store, lambda name: _version(name) <= newest and name not in needed)


def discard(store: Store, version: int) -> list[str]:
    """Delete the files of a version that is not committed, and will be written again; names them."""
    return _delete(store, lambda name: _version(name) == version)


def _delete(store: Store, unwanted: Callable[[str], bool]) -> list[str]:
    filesystem = opened(store.root)
    selector = fs.FileSelector(path_of(store.root, ""), allow_not_found=True)
    names = [info.base_name for info in filesystem.get_file_info(selector) if info.base_name.endswith(".arrow")]
    garbage = [name for name in names if unwanted(name)]
    for name in garbage:
        filesystem.delete_file(path_of(store.root, name))
    return garbage


def _files(store: Store, segment: Segment) -> Iterator[str]:
    yield segment.index
    yield from load_index(store.root, segment.index).names


def _version(name: str) -> int:
    """A file's name is of the form kind-version-..."""
    return int(name.split("-", 1)[1][:12])
