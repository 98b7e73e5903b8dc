"""When a batch should close: from the intervals between heartbeats and the times of plans."""

from __future__ import annotations

import pytest

from skewless.ingest.heartbeat import ENOUGH, MARGIN, SHARE, Heartbeat


def beaten(seconds: list[float], plan: float = 0.0) -> Heartbeat:
    heart = Heartbeat()
    for second in seconds:
        heart.beat(second, had_rows=True)
    heart.planned(plan)
    return heart


def test_a_batch_closes_by_the_longest_plan_before_the_heartbeat() -> None:
    assert beaten([0, 10, 20, 30], plan=0.1).closing == pytest.approx(40 - MARGIN * 0.1)
    heart = beaten([0, 10, 20, 30], plan=0.2)
    heart.planned(0.01)
    assert heart.closing == pytest.approx(40 - MARGIN * 0.2)


def test_a_batch_closes_early_by_a_twentieth_of_the_interval_at_most() -> None:
    assert beaten([0, 10, 20, 30], plan=60.0).closing == pytest.approx(40 - 10 * SHARE)
    assert SHARE == 0.05


def test_one_long_interval_does_not_matter() -> None:
    assert beaten([0, 10, 20, 55, 65]).closing == pytest.approx(75)


def test_nothing_closes_before_the_interval_is_known() -> None:
    assert Heartbeat().closing is None
    for beats in range(ENOUGH + 1):
        assert beaten([10.0 * beat for beat in range(beats)]).closing is None


def test_spark_asks_again_at_once_after_an_empty_batch() -> None:
    heart = beaten([0, 10, 20, 30])
    heart.beat(40, had_rows=False)
    assert heart.closing is None
    for moment in range(100):
        heart.beat(40 + moment / 100, had_rows=False)
    heart.beat(50, had_rows=True)
    assert heart.closing == pytest.approx(60)
