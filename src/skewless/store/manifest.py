"""The manifest: which files make up the state at a version, as a list of segments that are merged from time to time."""

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

from skewless.arguments import require, require_format
from skewless.filesystem import resolve
from skewless.store.codec import differs_from_last
from skewless.store.files import FORMAT, Receipt, Segment, StateStore, Tally, load_index, positions_of
from skewless.store.share import Share

SEGMENTS = 16  # the most segments before some are merged
TOKENS = 256  # versions; a hot copy that is farther behind is rebuilt
NO_VERSION = -2  # the version before any state; an initial state is version -1, and batches count from 0


@dataclass(frozen=True)
class Manifest:
    """The state at a version, which the driver commits with a batch: at most a few kilobytes of JSON.

    Each segment starts at the version at which the one before ends. The first is a snapshot. Every commit draws a
    random token: a hot copy whose token differs has the same version number, but of another history, and is rebuilt.
    """

    version: int
    name: str  # a random name of the store, drawn when it is new
    types: str  # of keys and states
    segments: tuple[Segment, ...]
    tokens: dict[int, str]  # by version, of the last versions

    @classmethod
    def empty(cls, store: StateStore) -> Self:
        """Returns the manifest of a new store."""
        tokens = {NO_VERSION: uuid4().hex[:8]}
        return cls(version=NO_VERSION, name=uuid4().hex, types=store.types, segments=(), tokens=tokens)

    def committed(self, store: StateStore, version: int, receipts: Sequence[Receipt]) -> Manifest:
        """Returns the manifest after a batch with the receipts of its workers."""
        require(version > self.version, f"version {version} cannot be committed after version {self.version}")
        self.check(store)
        segment = store.segment(receipts, self.version if self.segments else None, version)
        tokens = {**self.tokens, version: uuid4().hex[:8]}
        new = replace(self, version=version, segments=(*self.segments, segment), tokens=tokens)
        return new._without_old_tokens()

    def due(self) -> Sequence[Segment]:
        """Returns the segments to merge now: all from the first that is no larger than the later ones together.

        Empty as long as there are at most `SEGMENTS`. This keeps segments few, and rewrites each row only a few times,
        however long the stream runs.
        """
        if len(self.segments) <= SEGMENTS:
            return ()
        sizes = np.array([segment.bytes for segment in self.segments])
        sizes_after = sizes[::-1].cumsum()[::-1] - sizes
        mergeable = np.flatnonzero(sizes_after[:-1] >= sizes[:-1])
        return self.segments[int(mergeable[0]) :] if mergeable.size else ()

    def merged(self, store: StateStore, segments: Sequence[Segment], receipts: Sequence[Receipt]) -> Manifest:
        """Returns the same state with one segment instead of several consecutive ones.

        segments: what was merged; segments that were added since stay.
        receipts: of the files that they were merged into.
        """
        start = self.segments.index(segments[0])
        end = start + len(segments)
        require(self.segments[start:end] == tuple(segments), "only consecutive segments of a manifest can be merged")
        merged = store.segment(receipts, segments[0].since, segments[-1].until)
        new = replace(self, segments=(*self.segments[:start], merged, *self.segments[end:]))
        return new._without_old_tokens()

    def _without_old_tokens(self) -> Manifest:
        """Drops the tokens of versions from which the segments cannot bring a hot copy up to date."""
        useful = sorted(version for version in self.tokens if version >= self.segments[0].until)
        return replace(self, tokens={version: self.tokens[version] for version in useful[-TOKENS:]})

    def since(self, version: int, token: str) -> Sequence[Segment] | None:
        """Returns the segments that bring a hot copy at that version up to date; None if it has to be rebuilt."""
        if self.tokens.get(version) != token or version > self.version:
            return None
        return [segment for segment in self.segments if segment.until > version]

    def check(self, store: StateStore) -> None:
        """Refuses a store whose keys or states have other types."""
        same = self.types == store.types
        require(same, f"the state was written with {self.types}, and cannot be read as {store.types}")

    def to_json(self) -> str:
        """Returns the manifest as JSON text."""
        content = {"format": FORMAT, **asdict(self), "tokens": list(self.tokens.items())}
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Returns the manifest that `to_json` wrote; refuses other formats."""
        try:
            content = json.loads(text)
            written_format = content["format"]
        except (ValueError, TypeError, KeyError):
            raise ValueError("this is not a manifest of states: it must be a JSON object with a format") from None
        require_format("this state", written_format, FORMAT)
        segments = tuple(Segment(**segment) for segment in content["segments"])
        return cls(
            version=content["version"],
            name=content["name"],
            types=content["types"],
            segments=segments,
            tokens=dict(content["tokens"]),
        )


def merge(
    store: StateStore, segments: Sequence[Segment], share: Share, worker: int, tally: Tally | None = None
) -> Receipt:
    """Merges the rows of a share in several segments; to merge the segments, do this for each worker of a table."""
    rows = pa.concat_tables([store.read(segment, share, tally) for segment in segments])
    newest = rows.take(latest(store, rows))
    if segments[0].since is None:  # nothing is before a snapshot, so it needs no marks of removed keys
        newest = newest.filter(pc.or_(pc.is_valid(newest["state"]), pc.is_valid(newest["timeout"])))
    return store.write(newest, share, segments[-1].until, worker, "merged")


def latest(store: StateStore, rows: pa.Table) -> pa.Array:
    """Returns the numbers of the rows that are the last of their key, ascending."""
    positions = positions_of(rows)
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    keys = rows["key"].combine_chunks().take(pa.array(order))
    repeats = np.append(False, positions[1:] == positions[:-1])[: positions.size]
    if differs_from_last(keys.flatten(), repeats).any():
        # Two keys may have the same hash: where a position is repeated, compare the keys themselves.
        shared = np.flatnonzero(repeats | np.append(repeats[1:], False))
        texts = store.key_codec.texts(keys.take(pa.array(shared)))
        numbers = np.zeros(positions.size, np.int64)
        numbers[shared] = np.unique(np.array(texts), return_inverse=True)[1]
        by_key = np.lexsort((numbers, positions))
        order, positions, numbers = order[by_key], positions[by_key], numbers[by_key]
        repeats = np.append(False, (positions[1:] == positions[:-1]) & (numbers[1:] == numbers[:-1]))
    is_last = ~np.append(repeats[1:], False)[: positions.size]
    return pa.array(np.sort(order[is_last]))


def entries(store: StateStore, manifest: Manifest, share: Share, tally: Tally | None = None) -> pa.Table:
    """Returns the state of a share at a version, read from durable files alone."""
    manifest.check(store)
    tables = [store.read(segment, share, tally) for segment in manifest.segments]
    rows = pa.concat_tables([store.schema.empty_table(), *tables])
    rows = rows.take(latest(store, rows))
    return rows.filter(pc.or_(pc.is_valid(rows["state"]), pc.is_valid(rows["timeout"])))


def sweep(store: StateStore, manifests: Sequence[Manifest]) -> list[str]:
    """Deletes the files that none of these manifests needs, and returns their names.

    Must not be called during a merge, as no manifest names its files yet. Files of later versions are kept: they may
    belong to a batch that is running.
    """
    newest = max(manifest.version for manifest in manifests)
    needed = {name for manifest in manifests for segment in manifest.segments for name in _files(store, segment)}
    return _delete(store, lambda name: _version(name) <= newest and name not in needed)


def discard(store: StateStore, version: int) -> list[str]:
    """Deletes the files of a version that was not committed and will be written again; returns their names."""
    return _delete(store, lambda name: _version(name) == version)


def _delete(store: StateStore, is_garbage: Callable[[str], bool]) -> list[str]:
    filesystem, directory = resolve(store.root)
    selector = fs.FileSelector(directory, allow_not_found=True)
    names = [info.base_name for info in filesystem.get_file_info(selector) if info.base_name.endswith(".arrow")]
    garbage = [name for name in names if is_garbage(name)]
    for name in garbage:
        filesystem.delete_file(f"{directory}/{name}")
    return garbage


def _files(store: StateStore, segment: Segment) -> Iterator[str]:
    yield segment.index
    yield from load_index(store.root, segment.index).names


def _version(name: str) -> int:
    """Returns the version in a file's name, which has the form kind-version-..."""
    return int(name.split("-", 1)[1][:12])
