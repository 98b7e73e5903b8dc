"""Prompt's CountTree: nodes in order of their counts, in a treap over arrays, which grows between calls."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import kernel
from skewless.kernels.hash import mix64


class CountTree(NamedTuple):
    """A search tree of (count, node), the heaviest first and of equals the one with the lowest number.

    Nodes are numbered from 1. A node lies above all of lower rank in its part of the tree, and ranks are hashes of the
    numbers, so that the tree is as deep as one of keys in random order, O(log n), whatever the counts do
    (Seidel and Aragon: Randomized search trees. Algorithmica 16, 1996). Nothing but the links needs to be mended.
    """

    links: NDArray[np.int64]  # of node i: 2 i to those before it, 2 i + 1 to those after it; 0 to the root
    counts: NDArray[np.int64]


def count_tree(room: int) -> CountTree:
    """An empty tree with room for so many nodes."""
    return CountTree(np.zeros(2 * (room + 1), np.int64), np.zeros(room + 1, np.int64))


def grown(old: CountTree, room: int) -> CountTree:
    """The same tree with room for so many nodes."""
    more = room + 1 - old.counts.size
    return CountTree(np.pad(old.links, (0, 2 * more)), np.pad(old.counts, (0, more)))


@kernel
def insert(t: CountTree, node: int, count: int | np.int64) -> None:
    """Add a node that is not in the tree."""
    t.counts[node] = count
    rank = mix64(np.uint64(node))
    link, at = 0, t.links[0]
    while at != 0 and mix64(np.uint64(at)) > rank:
        link = 2 * at + (1 if _before(t, at, node) else 0)
        at = t.links[link]
    t.links[link] = node
    # What was below this link is parted in those before the node and those after it.
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
    """Take a node out of the tree."""
    link, at = 0, t.links[0]
    while at != node:
        link = 2 * at + (1 if _before(t, at, node) else 0)
        at = t.links[link]
    # Those before the node and those after it are joined below the link to it.
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
    """All nodes in order; the stack has room for as many as there are."""
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
