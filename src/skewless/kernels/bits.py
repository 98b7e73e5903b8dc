"""Rows of bits, one bit per worker: which workers hold a key."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import kernel

_0, _1 = np.uint64(0), np.uint64(1)
_6, _63 = np.uint64(6), np.uint64(63)


def words(n_bits: int) -> int:
    """Returns how many 64-bit words a row of n_bits takes."""
    return (n_bits + 63) // 64


@kernel
def has(row: NDArray[np.uint64], bit: int) -> bool:
    """Returns whether a bit is 1."""
    b = np.uint64(bit)
    return bool((row[b >> _6] >> (b & _63)) & _1)


@kernel
def put(row: NDArray[np.uint64], bit: int) -> None:
    """Sets a bit to 1."""
    b = np.uint64(bit)
    row[b >> _6] |= _1 << (b & _63)


@kernel
def drop(row: NDArray[np.uint64], bit: int) -> None:
    """Sets a bit to 0."""
    b = np.uint64(bit)
    row[b >> _6] &= ~(_1 << (b & _63))


# A de Bruijn sequence: its windows of six bits are all different, so the product with 2**p identifies p.
_SEQUENCE, _58 = np.uint64(0x03F79D71B4CB0A89), np.uint64(58)
_BIT_NUMBERS: NDArray[np.int64] = np.argsort([((int(_SEQUENCE) << p) % 2**64) >> 58 for p in range(64)])


@kernel
def lowest_bit(word: np.uint64) -> int:
    """Returns the number of the lowest 1 bit of a word other than 0, without a branch."""
    return int(_BIT_NUMBERS[((word & (~word + _1)) * _SEQUENCE) >> _58])


@kernel
def following(row: NDArray[np.uint64], bit: int) -> int:
    """Returns the number of the first 1 at or after a bit, -1 if there is none: to iterate over a row of bits."""
    at = bit >> 6
    if at >= row.size:
        return -1
    word = row[at] >> np.uint64(bit & 63)
    if word != _0:
        return bit + lowest_bit(word)
    at += 1
    while at < row.size:
        if row[at] != _0:
            return at * 64 + lowest_bit(row[at])
        at += 1
    return -1
