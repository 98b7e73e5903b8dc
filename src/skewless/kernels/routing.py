"""Looks up the workers of rows in a routing table that is given as plain arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import hashtable, kernel
from skewless.kernels.alias import settle
from skewless.kernels.hash import below, spark_hash
from skewless.kernels.hashtable import Table
from skewless.kernels.position import key_position

WHOLE = 2**32  # the parts of a key sum to this: a 32-bit coin decides
_0, _1 = np.uint64(0), np.uint64(1)


class Lookup(NamedTuple):
    """Arrays that `route` reads: two reads for a tail key, a few more for a hot one."""

    hosts: NDArray[np.int32]
    keys: Table  # the position of a key -> its number + 1
    starts: NDArray[np.int64]
    workers: NDArray[np.int32]
    aliases: NDArray[np.int32]  # the second worker of each fragment
    accept: NDArray[np.int64]  # coins below this go to the fragment's own worker


@kernel
def route(t: Lookup, keys: NDArray[np.uint64], ordinals: NDArray[np.uint64], out: NDArray[np.int32]) -> None:
    """Writes the worker of each row to `out`."""
    size = np.uint64(t.hosts.size)
    for i in range(keys.size):
        position = key_position(keys[i])
        number = t.keys.slots[hashtable.find(t.keys, position) + _1]
        if number == _0:
            out[i] = t.hosts[below(position, size)]
        else:
            start, end = t.starts[number - _1], t.starts[number]
            coin = spark_hash(ordinals[i])
            column = start + np.int64(below(coin, np.uint64(end - start)))
            mine = np.int64(coin & np.uint64(WHOLE - 1)) < t.accept[column]
            out[i] = t.workers[column] if mine else t.aliases[column]


@kernel
def settle_keys(
    starts: NDArray[np.int64], accept: NDArray[np.int64], alias: NDArray[np.int64], stacks: NDArray[np.int64]
) -> None:
    """Settles the columns of each key separately; see `alias.settle`."""
    for key in range(starts.size - 1):
        columns = slice(starts[key], starts[key + 1])
        settle(accept[columns], alias[columns], WHOLE, stacks)


def aliases(
    starts: NDArray[np.int64], workers: NDArray[np.int32], parts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Returns a bound and a second worker for each fragment: Walker's alias method, for each key separately.

    starts, workers, parts: the fragments of key i are number starts[i] to starts[i + 1]; their parts sum to WHOLE.
    """
    lengths = np.diff(starts)
    first = np.repeat(starts[:-1], lengths)
    accept, alias = parts * np.repeat(lengths, lengths), np.arange(workers.size) - first
    settle_keys(starts, accept, alias, np.empty((2, workers.size), np.int64))
    return accept, workers[alias + first]
