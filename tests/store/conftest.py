"""Fixtures of the tests of the store."""

from __future__ import annotations

import pytest

from skewless.store import hotcopy
from skewless.store.hotcopy import MANY


@pytest.fixture(params=[1, 4, MANY])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets how many states must arrive at once to stay in a file: in small tests all do, or some, or none."""
    monkeypatch.setattr(hotcopy, "MANY", request.param)
