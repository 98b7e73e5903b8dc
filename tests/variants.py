"""Every partitioner with its defaults, and those whose parameters change the code that runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from skewless import Keys, Window
from skewless.migration import Moving
from skewless.partitioners import ALL
from skewless.testing import Tuples

_MORE: list[tuple[str, dict[str, Any]]] = [
    ("pkg", {"choices": 1}),
    ("pkg", {"choices": 5}),
    *((name, {"choices": 3, "window": Window(100)}) for name in ("cm", "am", "cam", "lm")),
    *((name, {"cardinality": "hll"}) for name in ("cm", "am", "cam", "lm")),
    ("am", {"cardinality": "hll", "window": Window(50, 10)}),
    *(("lm", {"p": p}) for p in (0.0, 0.2, 1.0)),
    ("dagreedy", {"window": Window(100, 10)}),
    ("dagreedy", {"window": Window(70)}),
    ("dalton", {"window": Window(100, 20)}),
    ("dalton", {"window": Window(100, 20), "hot": 5, "greedy": True}),
    ("dalton", {"window": Window(60), "hot": 3, "frequencies": "sketch", "micro_batch": True}),
    ("dalton", {"window": Window(80, 40), "frequencies": "hybrid"}),
    ("kip", {"heavy": 1, "slack": 0.0}),
    *((name, {"compute": "quadratic", "heavy": 1, "theta": 0.05}) for name in ("scan", "redist", "readj")),
    ("readj", {"heavy": 1, "theta": 0.01}),
    ("mixed", {"heavy": 1, "theta": 0.5}),
    ("level", {"split": False}),
    ("level", {"split": False, "even": True}),
    ("level", {"speeds": None, "moving": Moving(batches=1.0)}),
    ("kip", {"memory": 5000}),
    ("auto", {"split": False, "costs": (1.0, 1.0, 0.0)}),
    ("level", {"key_cost": 2.5}),
    ("auto", {"split": False}),
    ("auto", {"costs": (1.0, 5.0, 0.0)}),
]

VARIANTS = [
    pytest.param(name, params, id=" ".join([name, *(f"{k}={v}" for k, v in params.items())]))
    for name, params in [*((cls.name, {}) for cls in ALL), *_MORE]
]


def _keys(spec: tuple[int, list[int], list[int]]) -> Keys:
    """Makes keys, few or many different ones, among them some that use all 64 bits."""
    few, numbers, large = spec
    return np.array([large[n % few] if n % few < len(large) else n % few for n in numbers], np.uint64)


KEYS: st.SearchStrategy[Keys] = st.tuples(
    st.sampled_from([1, 3, 40, 1000]),
    st.lists(st.integers(0, 2**20), max_size=400),
    st.lists(st.integers(0, 2**64 - 1), max_size=3),
).map(_keys)


def _timed(spec: tuple[Keys, list[int] | None]) -> Tuples:
    """Adds times that go on by these steps, some of them back (a late tuple) or far ahead; or no times."""
    keys, steps = spec
    if not steps:
        return Tuples(keys)
    return Tuples(keys, np.cumsum([steps[i % len(steps)] for i in range(keys.size)], dtype=np.int64) - 50)


STEPS = st.lists(st.sampled_from([0, 1, 1, 2, 7, -3, 60, 1000]), max_size=40)
TUPLES: st.SearchStrategy[Tuples] = st.tuples(KEYS, st.none() | STEPS).map(_timed)
N_WORKERS = st.sampled_from([1, 2, 3, 5, 16, 64, 65])
