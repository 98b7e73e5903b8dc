"""Settings of the whole suite: how hard hypothesis tries, and no stale machine code."""

from __future__ import annotations

from pathlib import Path

import numba
import pytest
from hypothesis import HealthCheck, settings

import skewless

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
    if hasattr(config, "workerinput"):
        return
    # numba looks at the file of a kernel only, not at the kernels that it calls: after a change, forget them all.
    sources = Path(skewless.__file__).parent
    newest = max(path.stat().st_mtime for path in sources.rglob("*.py"))
    for index in sources.rglob("*.nbi"):
        if index.stat().st_mtime < newest:
            index.unlink()
