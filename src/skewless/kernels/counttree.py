"""Prompt's CountTree: nodes ordered by their counts, in a treap over arrays that grows between calls."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import kernel
from skewless.kernels.hash import mix64


class CountTree(NamedTuple):
    """A search tree of (count, node): the heaviest node first, and of equal ones the lowest number first.

    Nodes are numbered from 1. A node lies above all of lower rank in its subtree, and ranks are hashes of the numbers,
    so that the tree is as deep as one of keys in random order, O(log n), whatever the counts
    (Seidel and Aragon: Randomized search trees. Algorithmica 16, 1996). Only links need to be updated.
    """

    links: NDArray[np.int64]  # [2 i]: to the nodes before node i; [2 i + 1]: to those after it; [0]: to the root
    counts: NDArray[np.int64]


def count_tree(room: int) -> CountTree:
    """Returns an empty tree with room for `room` nodes."""
    return CountTree(links=np.zeros(2 * (room + 1), np.int64), counts=np.zeros(room + 1, np.int64))


def grown(old: CountTree, room: int) -> CountTree:
    """Returns the same tree with room for `room` nodes."""
    more = room + 1 - old.counts.size
    return CountTree(links=np.pad(old.links, (0, 2 * more)), counts=np.pad(old.counts, (0, more)))


@kernel
def insert(t: CountTree, node: int, count: int | np.int64) -> None:
    """Adds a node that is not in the tree."""
    t.counts[node] = count
    rank = mix64(np.uint64(node))
    link, at = 0, t.links[0]
    while at != 0 and mix64(np.uint64(at)) > rank:
        link = 2 * at + (1 if _before(t, at, node) else 0)
        at = t.links[link]
    t.links[link] = node
    # Split the subtree below this link into nodes before and nodes after the new one.
    before, after = 2 * node, 2 * node + 1
    while at != 0:
        if _before(t, at, node):
            t.links[before] = at
            before = 2 * at + 1
            at = t.links[before]
        else:
            t.links[after] = at
            after = 2 * at
            at = t.links[after]
    t.links[before] = 0
    t.links[after] = 0


@kernel
def remove(t: CountTree, node: int) -> None:
    """Removes a node from the tree."""
    link, at = 0, t.links[0]
    while at != node:
        link = 2 * at + (1 if _before(t, at, node) else 0)
        at = t.links[link]
    # Join the nodes before and after it below the link to it.
    before, after = t.links[2 * node], t.links[2 * node + 1]
    while before != 0 and after != 0:
        if mix64(np.uint64(before)) > mix64(np.uint64(after)):
            t.links[link] = before
            link = 2 * before + 1
            before = t.links[link]
        else:
            t.links[link] = after
            link = 2 * after
            after = t.links[link]
    t.links[link] = before + after  # one of them is 0


@kernel
def _before(t: CountTree, node: int | np.int64, other: int | np.int64) -> bool:
    if t.counts[node] != t.counts[other]:
        return bool(t.counts[node] > t.counts[other])
    return bool(node < other)


@kernel
def walk(t: CountTree, stack: NDArray[np.int64], out: NDArray[np.int64]) -> None:
    """Writes all nodes to `out`, in order; the stack has room for as many as there are."""
    depth, n, at = 0, 0, t.links[0]
    while at != 0 or depth > 0:
        while at != 0:
            stack[depth] = at
            depth += 1
            at = t.links[2 * at]
        depth -= 1
        at = stack[depth]
        out[n] = at
        n += 1
        at = t.links[2 * at + 1]
