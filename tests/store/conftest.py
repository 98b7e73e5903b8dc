"""Fixtures of the tests of the store."""

from __future__ import annotations

import pytest

from skewless.store import hotcopy
from skewless.store.hotcopy import MANY


@pytest.fixture(params=[1, 4, MANY])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many states come at once that are left in a file: all of them, some, and none in small tests."""
    monkeypatch.setattr(hotcopy, "MANY", request.param)
