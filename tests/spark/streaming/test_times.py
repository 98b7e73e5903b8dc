"""Lengths of time in words."""

from __future__ import annotations

import pytest

from skewless.spark.streaming.times import duration

pytestmark = pytest.mark.compiled


def test_lengths_of_time() -> None:
    assert duration("x", "10 seconds") == 10_000_000
    assert duration("x", "1 minute 30 seconds") == 90_000_000
    assert duration("x", "5 milliseconds") == 5_000
    for wrong in ("", "ten seconds", "10", "10 years", "10 seconds ago", 10):
        with pytest.raises(ValueError, match="x is a length of time"):
            duration("x", wrong)  # type: ignore[arg-type]
