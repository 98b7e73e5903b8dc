"""Keys, times and serialized states are checked where they enter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skewless import from_bytes, partitioner, to_bytes
from skewless.partitioners.baselines import OnGreedy
from skewless.partitioners.pkg import Loads


@pytest.mark.parametrize(
    ("keys", "times", "sentence"),
    [
        ([1, 2], None, "keys are a one-dimensional numpy array of uint64, not list"),
        (np.array([1, 2]), None, "not 1-dimensional int64: skewless.streams.as_keys"),
        (np.zeros((2, 2), np.uint64), None, "not 2-dimensional uint64"),
        (
            np.zeros(2, np.uint64),
            np.zeros(2),
            "times are a one-dimensional numpy array of int64, not 1-dimensional float64",
        ),
        (np.zeros(2, np.uint64), np.zeros(3, np.int64), "2 keys came with 3 times"),
        (np.zeros(1, np.uint64), np.array([2**62]), "times lie between"),
    ],
)
def test_bad_arrays(keys: Any, times: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        partitioner("pkg", 4).route(keys, times)


def test_bytes_of_another_class_are_refused() -> None:
    with pytest.raises(ValueError, match="these bytes hold no Loads: load is missing"):
        from_bytes(Loads, to_bytes(partitioner("shuffle", 4).snapshot()))
    with pytest.raises(ValueError, match="these bytes hold no Loads, but the arrays keys, load, places"):
        from_bytes(Loads, to_bytes(OnGreedy(4).merge([OnGreedy(4).snapshot()])))
    with pytest.raises(ValueError, match="they were not written by to_bytes"):
        from_bytes(Loads, b"garbage")
