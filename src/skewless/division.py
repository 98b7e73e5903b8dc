"""Divides hosts, and the tuples of hot keys, among workers."""

from __future__ import annotations

import heapq
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from skewless.kernels.routing import WHOLE

T = TypeVar("T", bound=np.generic)


def dealt(mass: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.int32]:
    """Returns a worker for each host, so that each worker gets about its target load.

    Hosts are dealt out heaviest first, each to the worker that is farthest below its target.

    mass: load of each host. target: load that each worker should get, in any unit.

    >>> dealt(np.array([4.0, 3.0, 2.0, 1.0]), np.array([1.0, 1.0])).tolist()
    [0, 1, 1, 0]
    """
    scaled = target * (mass.sum() / target.sum())
    lacking = [(-float(load), worker) for worker, load in enumerate(scaled)]
    heapq.heapify(lacking)
    hosts = np.empty(mass.size, np.int32)
    for host in np.argsort(-mass, kind="stable"):
        lack, worker = lacking[0]
        hosts[host] = worker
        heapq.heapreplace(lacking, (lack + float(mass[host]), worker))
    return hosts


def redealt(hosts: NDArray[np.int32], old: int, new: int) -> NDArray[np.int32]:
    """Returns the workers of hosts after a change of the number of workers from `old` to `new`.

    Every old worker gives the same part of its hosts to added workers; the hosts of removed workers are spread over all
    that remain. A worker gets hosts from as few others as possible, because it has to read their files if the hosts
    have state. Neighbouring hosts, which may be halves of one in a smaller table, stay together where possible.

    hosts: the worker of each host.

    >>> redealt(np.array([0, 0, 0, 0, 1, 1, 1, 1], np.int32), 2, 4).tolist()
    [0, 0, 2, 2, 1, 1, 3, 3]
    """
    hosts = hosts.copy()
    if new < old:
        free = np.flatnonzero(hosts >= new)
        free = free[np.argsort(hosts[free], kind="stable")]
        hosts[free] = np.arange(free.size) * new // max(free.size, 1)
    else:
        of_worker = [np.flatnonzero(hosts == worker) for worker in range(old)]
        free = np.concatenate([own[round(own.size * old / new) :] for own in of_worker])
        hosts[free] = old + np.arange(free.size) * (new - old) // max(free.size, 1)
    return hosts


def aligned(a: NDArray[T], b: NDArray[T]) -> tuple[NDArray[T], NDArray[T]]:
    """Returns a value per host of two tables, such as its worker, repeated to the number of hosts of the larger table.

    Host i of H has the same keys as hosts 2 i and 2 i + 1 of 2 H.

    >>> [hosts.tolist() for hosts in aligned(np.array([0, 1]), np.array([0, 1, 1, 1]))]
    [[0, 0, 1, 1], [0, 1, 1, 1]]
    """
    size = max(a.size, b.size)
    return a.repeat(size // a.size), b.repeat(size // b.size)


def in_parts(weights: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns weights of fragments as whole parts that sum to WHOLE for each key.

    What rounding leaves goes to the first of the heaviest fragments of the key.

    weights: of each fragment, in any unit.
    starts: the fragments of key i are number starts[i] to starts[i + 1].

    >>> in_parts(np.array([1.0, 1.0, 5.0]), np.array([0, 2, 3])).tolist()
    [2147483648, 2147483648, 4294967296]
    """
    if starts.size == 1:
        return np.empty(0, np.int64)
    totals = np.repeat(np.add.reduceat(weights, starts[:-1]), np.diff(starts))
    parts: NDArray[np.int64] = np.floor(weights / totals * WHOLE).astype(np.int64)
    missing = WHOLE - np.add.reduceat(parts, starts[:-1])
    alone = np.diff(starts) == 1
    parts[starts[:-1][alone]] = WHOLE
    for start, end, rest in zip(starts[:-1][~alone], starts[1:][~alone], missing[~alone], strict=True):
        parts[start + int(np.argmax(weights[start:end]))] += rest
    return parts


def in_order(
    order: NDArray[np.int64], starts: NDArray[np.int64], workers: NDArray[np.int32], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Returns the fragments of keys in another order of the keys: starts, workers, and the parts that weights come to.

    Fragments whose weight comes to no part are left out.

    order: the keys, by number. starts: the fragments of key i are number starts[i] to starts[i + 1].
    workers, weights: of each fragment.

    >>> of_second, of_first = in_order(np.array([1, 0]), np.array([0, 1, 2]), np.array([5, 6], np.int32), np.ones(2))[1]
    >>> int(of_second), int(of_first)
    (6, 5)
    """
    lengths = np.diff(starts)[order]
    new_starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    at = np.repeat(starts[:-1][order] - new_starts[:-1], lengths) + np.arange(workers.size)
    parts = in_parts(weights[at].astype(np.float64), new_starts)
    positive = parts > 0
    counts = np.add.reduceat(positive, new_starts[:-1]) if order.size else np.empty(0, np.int64)
    left = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)))
    return left, workers[at][positive], parts[positive]
