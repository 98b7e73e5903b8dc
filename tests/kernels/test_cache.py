"""Machine code on disk is compiled again after any change of the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compiled
MODULE = """
from typing import NamedTuple
import numpy as np
import skewless.kernels
skewless.kernels._SOURCES = "{name}"  # as after a change of any file
class {name}(NamedTuple):
    numbers: np.ndarray
@skewless.kernels.kernel
def first(state):
    return state.numbers[0]
print(first({name}(np.array([7]))), sum(first.stats.cache_hits.values()))
"""


def run(directory: Path, name: str) -> list[str]:
    module = directory / "module.py"
    if not module.exists() or name not in module.read_text():
        module.write_text(MODULE.format(name=name))
    script = [sys.executable, "-c", "import module"]
    done = subprocess.run(script, cwd=directory, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_state_with_another_name_is_compiled_again(tmp_path: Path) -> None:
    assert run(tmp_path, "Before") == ["7", "0"]
    assert run(tmp_path, "Before") == ["7", "1"]
    assert run(tmp_path, "After") == ["7", "0"]
