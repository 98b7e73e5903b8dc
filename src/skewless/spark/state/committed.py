"""The state of a keyed-state query after a batch, as its commit stores it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import StructType

from skewless.spark.schema import arrow_schema
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.commit import read_commit
from skewless.store import Manifest, StateStore


@dataclass(frozen=True, kw_only=True)
class KeyedState:
    """The states of all keys after a batch, by the manifest of their files. Times are microseconds."""

    batch: int
    watermark: int
    late: int  # the watermark one batch earlier; in the next batch, rows at or before it are late, as in Spark
    manifest: Manifest
    key: StructType
    state: StructType
    n_workers: int
    names: tuple[str, ...]  # of the key's columns, as `read_state` shows them

    def to_json(self) -> dict[str, Any]:
        return {
            "watermark": self.watermark,
            "late": self.late,
            "manifest": self.manifest.to_json(),
            "batch": self.batch,
            "key": self.key.jsonValue(),
            "state": self.state.jsonValue(),
            "n_workers": self.n_workers,
            "names": list(self.names),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> KeyedState:
        watermark, key = content["watermark"], StructType.fromJson(content["key"])
        return cls(
            batch=content["batch"],
            watermark=watermark,
            late=content.get("late", watermark),
            manifest=Manifest.from_json(content["manifest"]),
            key=key,
            state=StructType.fromJson(content["state"]),
            n_workers=content["n_workers"],
            names=tuple(content.get("names", key.names)),
        )

    def store(self, files: Checkpoint) -> StateStore:
        return store_of(files, self.key, self.state)


def store_of(files: Checkpoint, key: StructType, state: StructType) -> StateStore:
    return StateStore(files.path("state"), arrow_schema(key), arrow_schema(state))


def manifests(files: Checkpoint) -> list[Manifest]:
    """Returns the manifests of all commits that are kept."""
    batches = files.numbered("commits")
    return [read_commit(files, batch, KeyedState.from_json).state.manifest for batch in batches]
