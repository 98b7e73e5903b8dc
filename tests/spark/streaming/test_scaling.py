"""The number of workers of a stream follows its load, within limits. No Spark is started."""

from __future__ import annotations

import pytest

from skewless.spark.streaming.scaling import Scaling

pytestmark = pytest.mark.compiled


def after(busy: float, batches: int, n_workers: int, limits: tuple[int, int]) -> int:
    """Returns the number of workers after batches that each take this share of the interval."""
    scaling, scale = Scaling(interval=1.0, limits=limits), None
    assert scaling.follows_load
    for _ in range(batches):
        scale = scaling.after(scale, n_workers, seconds=busy, rows=1000, keys=100)
        assert scale is not None
        assert scale.mappers == scale.reducers
        n_workers = scaling.within(scale.mappers)
    return n_workers


def test_workers_are_added_while_batches_are_slow_and_removed_while_they_are_quick() -> None:
    assert after(0.99, 4, 4, (2, 8)) == 5
    assert after(0.99, 50, 4, (2, 8)) == 8
    assert after(0.01, 50, 4, (2, 8)) == 2
    assert after(0.85, 50, 4, (2, 8)) == 4


def test_a_number_of_workers_beyond_the_limits_is_brought_within_them() -> None:
    scaling = Scaling(limits=(2, 8))
    assert [scaling.within(n) for n in (1, 2, 5, 9)] == [2, 2, 5, 8]
    assert Scaling().within(99) == 99
    for fixed in (Scaling(), Scaling(interval=1.0), scaling):
        assert not fixed.follows_load
        assert fixed.after(None, 4, seconds=0.99, rows=1, keys=1) is None
