"""How sources come to know what the others know: snapshots -> merge -> adopt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skewless.arrays import require
from skewless.partitioner import Partitioner


def exchange(sources: Sequence[Partitioner[Any, Any]]) -> int:
    """All tell what they know and adopt what follows from it; 0 if their kind has nothing to tell, else 1."""
    require(len(sources) >= 1, "an exchange needs at least 1 source")
    policy = sources[0].merge([source.snapshot() for source in sources])
    if policy is None:
        return 0
    for source in sources:
        source.adopt(policy)
    return 1
