"""Prompt's elasticity rule: zones, patience, grace, both stages, both directions."""

from __future__ import annotations

from typing import Any

import pytest

from skewless.elastic import BatchStatistics, Rule, Scale, scaled


def after(busy: list[float], tuples: list[int] | None = None, keys: list[int] | None = None) -> list[Scale]:
    scale, seen = Scale(mappers=4, reducers=4), list[Scale]()
    for i, ratio in enumerate(busy):
        batch = BatchStatistics(ratio, 1.0, tuples[i] if tuples else 1000, keys[i] if keys else 100)
        scale = scaled(scale, batch)
        seen.append(scale)
    return seen


def tasks(scales: list[Scale]) -> list[tuple[int, int]]:
    return [(scale.mappers, scale.reducers) for scale in scales]


GROWING, SHRINKING, SAME = [100, 200, 300, 400], [400, 300, 200, 100], [100] * 4


@pytest.mark.parametrize(
    ("tuples", "keys", "expected"),
    [
        (GROWING, SAME, (5, 4)),  # only the data rate grows: mappers
        (SAME, GROWING, (4, 5)),  # only the number of keys grows: reducers
        (GROWING, GROWING, (5, 5)),
        (SAME, SAME, (5, 4)),
    ],
)
def test_scale_out(tuples: list[int], keys: list[int], expected: tuple[int, int]) -> None:
    scales = after([0.95] * 4, tuples, keys)
    assert tasks(scales) == [(4, 4), (4, 4), (4, 4), expected]
    assert scales[-1].reason.startswith("out: 95 % of the interval for 3 batches")


@pytest.mark.parametrize(
    ("tuples", "keys", "expected"),
    [(SHRINKING, SAME, (3, 4)), (SAME, SHRINKING, (4, 3)), (SHRINKING, SHRINKING, (3, 3)), (SAME, SAME, (3, 4))],
)
def test_scale_in(tuples: list[int], keys: list[int], expected: tuple[int, int]) -> None:
    assert tasks(after([0.3] * 4, tuples, keys))[-1] == expected


def test_the_middle_zone_changes_nothing() -> None:
    assert set(tasks(after([0.85] * 20))) == {(4, 4)}


def test_a_zone_must_last() -> None:
    """Two batches too slow, one in between, two too slow: patience never runs out."""
    assert set(tasks(after([0.95, 0.95, 0.85] * 5))) == {(4, 4)}
    assert set(tasks(after([0.95, 0.95, 0.3] * 5))) == {(4, 4)}


def test_scaling_continues_until_stable() -> None:
    assert tasks(after([0.95] * 10))[-1] == (7, 4)


def test_no_reverse_decision_within_the_grace_period() -> None:
    out = after([0.95] * 4)[-1]
    assert (out.last, out.grace) == ("out", 3)
    scale, seen = out, list[tuple[int, int]]()
    for _ in range(6):
        scale = scaled(scale, BatchStatistics(0.3, 1.0, 1000, 100), Rule(patience=3))
        seen.append((scale.mappers, scale.reducers))
    assert seen[:3] == [(5, 4)] * 3
    assert seen[-1] == (4, 4)
    impatient = out
    for _ in range(2):  # even with a rule that would act at once, the grace lasts
        impatient = scaled(impatient, BatchStatistics(0.3, 1.0, 1000, 100), Rule(patience=1))
    assert impatient.mappers == 5


def test_limits_are_kept() -> None:
    scale = Scale(2, 2)
    for _ in range(30):
        scale = scaled(scale, BatchStatistics(0.99, 1.0, 1000, 100), Rule(most=3))
    assert tasks([scale]) == [(3, 2)]
    for _ in range(30):
        scale = scaled(scale, BatchStatistics(0.01, 1.0, 1000, 100), Rule(least=2))
    assert tasks([scale]) == [(2, 2)]


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"threshold": 0.0}, "threshold is more than 0"),
        ({"step": 0.9}, "step is between 0 and the threshold 0.9, not 0.9"),
        ({"patience": 0}, "patience is at least 1, not 0"),
        ({"least": 5, "most": 4}, "most is at least 5, not 4"),
    ],
)
def test_bad_rules(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Rule(**params)
