"""The commit of a batch: what the next batch starts from, in one file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from skewless import elastic
from skewless.arguments import require, require_format
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.operator import OperatorState

FORMAT = 1  # of commits; files without a format have this one
S = TypeVar("S", bound=OperatorState)


@dataclass(frozen=True, kw_only=True)
class Commit(Generic[S]):
    """What the next batch starts from; written as commits/<batch>.json after the sink has its output."""

    state: S  # of the operator
    scale: elastic.Scale | None  # for the elastic rule; None: the number of workers is fixed
    record: dict[str, Any]  # see `Query.recent`
    format: int = FORMAT

    @property
    def rows(self) -> int:
        """The rows of the batch, as an estimate of those of the next one."""
        return int(self.record["rows"])

    def to_json(self) -> dict[str, Any]:
        scale = None if self.scale is None else asdict(self.scale)
        return {"format": self.format, "state": self.state.to_json(), "scale": scale, "record": self.record}

    @classmethod
    def from_json(cls, content: dict[str, Any], restored: Callable[[dict[str, Any]], S]) -> Commit[S]:
        version, scale = content.get("format", 1), content["scale"]
        require_format("this commit", version, FORMAT)
        if scale is not None:
            scale = elastic.Scale(
                **{**scale, "recent": tuple(elastic.BatchStatistics(**batch) for batch in scale["recent"])}
            )
        return cls(state=restored(content["state"]), scale=scale, record=content["record"], format=version)

    def write(self, files: Checkpoint, batch: int) -> None:
        files.write(name_of(batch), self.to_json())


def read_commit(files: Checkpoint, batch: int, restored: Callable[[dict[str, Any]], S]) -> Commit[S]:
    """Returns the commit of a batch.

    restored: reads the operator's state from JSON.
    """
    content = files.read(name_of(batch))
    require(content is not None, f"{files.path(name_of(batch))} is missing: the query cannot continue without it")
    return Commit.from_json(content, restored)


def name_of(batch: int) -> str:
    """Returns the name of the file with the commit of a batch."""
    return f"commits/{batch}.json"
