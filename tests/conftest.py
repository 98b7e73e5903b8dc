"""Settings of the whole suite: how hard hypothesis tries."""

from __future__ import annotations

import numba
import pytest
from hypothesis import HealthCheck, settings

COMPILED = not numba.config.DISABLE_JIT
settings.register_profile(
    "skewless",
    max_examples=20 if COMPILED else 6,
    deadline=None,  # the first example of a test compiles
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("skewless")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "compiled: too slow, or without meaning, when kernels run as plain Python")
