"""Finds the least of many values that only grow, in amortised O(1) and without a heap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import Number, kernel


class Floor(NamedTuple):
    """State of the search: no value is below `level`, and none before `cursor` equals it."""

    level: NDArray[np.float64]
    cursor: NDArray[np.int64]


def floor() -> Floor:
    """Returns the state for values that are all 0 or more."""
    return Floor(level=np.zeros(1), cursor=np.zeros(1, np.int64))


@kernel
def lowest(values: NDArray[Number], f: Floor) -> int:
    """Returns argmin(values), the first one on ties.

    Every pass over the values raises the level, and the level of n counters that are raised one at a time cannot rise
    more than once in n raises: O(1) a call on average.
    """
    while values[f.cursor[0]] != f.level[0]:
        f.cursor[0] += 1
        if f.cursor[0] == values.size:
            f.cursor[0] = 0
            f.level[0] = values[0]
            for value in values:
                f.level[0] = min(f.level[0], value)
    return int(f.cursor[0])


@kernel
def lowered(f: Floor) -> None:
    """Resets the search: call it after values went down."""
    f.level[0] = -1.0
    f.cursor[0] = 0
