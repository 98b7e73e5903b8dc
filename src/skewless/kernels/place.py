"""From a key to its place, whose leading bits are its host, in tables and in state.

The halves of a key are multiplied by numbers whose multiples lie evenly between 0 and 2**32 at any length, and added up
(multiplicative hashing): the leading bits of that spread hashes and plain numbers alike. With the upper half of the key
behind it, no two keys have the same place. Spark computes it, too, where what overflows is an error: these products do
not, nor does their sum. xxhash64 would be five multiplications in a row.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import kernel

LOWER, UPPER = 1640531527, 444758427  # 2**32 over the square of the golden ratio, and times (sqrt(2) - 1) / 4
X = TypeVar("X", np.uint64, NDArray[np.uint64])
_LOWER, _UPPER, _INVERSE = np.uint64(LOWER), np.uint64(UPPER), np.uint64(pow(LOWER, -1, 2**32))
_32, _HALF = np.uint64(32), np.uint64(2**32 - 1)


def key_places(keys: X) -> X:
    """The places of keys."""
    upper = keys >> _32
    return ((keys * _LOWER + upper * _UPPER) << _32) | upper


key_place = kernel(key_places)  # of one, inside kernels


def keys_at(places: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The keys whose places these are."""
    upper = places & _HALF
    lower = ((places >> _32) - upper * _UPPER) * _INVERSE
    return (upper << _32) | (lower & _HALF)


def hosts_at(places: NDArray[np.uint64], size: int) -> NDArray[np.int64]:
    """The hosts of places, out of so many: a power of two, at most 2**32.

    With twice as many, host i becomes the hosts 2 i and 2 i + 1.
    """
    return ((places >> _32) * np.uint64(size) >> _32).astype(np.int64)
