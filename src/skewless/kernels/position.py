"""The position of a key, whose leading bits are its host in tables and in state.

The halves of a key are multiplied by numbers whose multiples fill 0 to 2**32 evenly at any length, and added up
(multiplicative hashing): the leading bits of the sum spread hashes and plain numbers alike. With the upper half of the
key behind them, no two keys have the same position. Spark computes positions too, where overflow is an error: neither
these products nor their sum overflow. xxhash64 would take five multiplications in a row.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import kernel

LOWER, UPPER = 1640531527, 444758427  # 2**32 over the square of the golden ratio; 2**32 times (sqrt(2) - 1) / 4
X = TypeVar("X", np.uint64, NDArray[np.uint64])
_LOWER, _UPPER, _INVERSE = np.uint64(LOWER), np.uint64(UPPER), np.uint64(pow(LOWER, -1, 2**32))
_32, _HALF = np.uint64(32), np.uint64(2**32 - 1)


def key_positions(keys: X) -> X:
    """Returns the positions of keys."""
    upper = keys >> _32
    return ((keys * _LOWER + upper * _UPPER) << _32) | upper


key_position = kernel(key_positions)  # of a single key, inside kernels


def keys_at(positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns the keys at these positions."""
    upper = positions & _HALF
    lower = ((positions >> _32) - upper * _UPPER) * _INVERSE
    return (upper << _32) | (lower & _HALF)


def hosts_at(positions: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """Returns the hosts of positions.

    size: the number of hosts, a power of two, at most 2**32. With twice as many, host i becomes 2 i and 2 i + 1.
    """
    return ((positions >> _32) * np.uint64(size) >> _32).astype(np.int64)
