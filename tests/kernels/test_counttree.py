"""The count tree is a sorted list of logarithmic depth."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless.kernels import counttree


@given(moves=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), max_size=120))
def test_the_tree_is_a_sorted_list(moves: list[tuple[int, int]]) -> None:
    tree, model = counttree.count_tree(10), dict[int, int]()
    for node, count in moves:
        if node >= tree.counts.size:
            tree = counttree.grown(tree, 30)
        if node in model:
            counttree.remove(tree, node)
        counttree.insert(tree, node, count)
        model[node] = count
        out = np.empty(len(model), np.int64)
        counttree.walk(tree, np.empty(len(model), np.int64), out)
        assert out.tolist() == sorted(model, key=lambda node: (-model[node], node))


@pytest.mark.compiled
def test_the_tree_is_as_deep_as_a_logarithm() -> None:
    """Counts that rise and fall in order would make a list of a tree that is not balanced."""
    n = 20_000
    tree = counttree.count_tree(n)
    for node in range(1, n + 1):
        counttree.insert(tree, node, node)
    for node in range(1, n + 1):
        counttree.remove(tree, node)
        counttree.insert(tree, node, -node)
    level, depth = [int(tree.links[0])], 0
    while level:
        level = [child for node in level for child in tree.links[2 * node : 2 * node + 2].tolist() if child]
        depth += 1
    assert depth < 5 * log(n)  # of a random search tree about 4.3 ln n at the most
