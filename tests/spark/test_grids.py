"""Grids spread and copy the rows of a join where that pays. No Spark is started."""

from __future__ import annotations

import numpy as np
import pytest

from skewless.histogram import Histogram
from skewless.spark.grids import Counted, Grids, JoinCosts, gridded

pytestmark = pytest.mark.compiled


def counted(counts: dict[int, float], rest: float = 0.0, nulls: float = 0.0) -> Counted:
    keys = np.array(sorted(counts, key=lambda key: -counts[key]), np.uint64)
    return Counted(Histogram(keys, np.array([counts[int(key)] for key in keys], np.float64), rest), nulls)


def planned(left: Counted, right: Counted, how: str) -> Grids | None:
    return gridded(JoinCosts.of((left, right), how), how, 16)


def test_what_is_spread_and_copied_depends_on_what_pays() -> None:
    few = dict.fromkeys(range(1, 50), 10.0)

    def shapes(left: dict[int, float], right: dict[int, float], how: str) -> Grids:
        found = planned(counted(few | left), counted(few | right), how)
        assert found is not None
        return found

    for how in ("inner", "left", "semi", "anti"):
        assert shapes({0: 1e5}, {0: 1}, how).copies == (False, True)  # each row of the left is on one worker
    assert shapes({0: 1e5}, {0: 1}, "full").copies == (False, True)
    assert shapes({0: 1}, {0: 1e5}, "left").copies == (True, False)
    both = shapes({0: 1e4}, {0: 1e4}, "inner")
    assert (both.rows[0], both.columns[0]) == (4, 4)
    assert shapes({0: 1e4}, {0: 1e4}, "left").copies == (False, True)  # as good, and the right is read once less
    assert shapes({}, {0: 1e5}, "semi").distinct
    assert not shapes({0: 1e5}, {}, "semi").distinct


def test_joins_of_even_keys_are_left_to_spark() -> None:
    many = counted(dict.fromkeys(range(4000), 5.0), rest=1e5)
    assert planned(many, many, "inner") is None
    assert planned(counted({}), counted({}), "full") is None
    nulls = counted(dict.fromkeys(range(4000), 5.0), rest=1e5, nulls=1e6)
    assert planned(nulls, many, "left") is not None
    assert planned(nulls, many, "right") is None
