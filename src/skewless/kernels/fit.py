"""Finds a worker for an item: the emptiest, the roomiest, or the tightest that can still hold it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import kernel


@kernel
def emptiest(load: NDArray[np.float64]) -> int:
    """Returns the worker with the least load, the first of them on ties."""
    best = 0
    for worker in range(1, load.size):
        if load[worker] < load[best]:
            best = worker
    return best


@kernel
def roomiest(room: NDArray[np.float64]) -> int:
    """Returns the worker with the most room, the first of them on ties."""
    best = 0
    for worker in range(1, room.size):
        if room[worker] > room[best]:
            best = worker
    return best


@kernel
def tightest(room: NDArray[np.float64], size: float) -> int:
    """Returns the worker with the least room that is enough; the roomiest if none has enough. The first on ties."""
    best, fits = roomiest(room), False
    for worker in range(room.size):
        if room[worker] >= size and (not fits or room[worker] < room[best]):
            best, fits = worker, True
    return best
