"""What importing costs, and what it needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import skewless


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light(tmp_path: Path) -> None:
    """Neither Spark nor plotting nor pyarrow is loaded, and nothing is compiled."""
    code = """
import sys, json, numba
from numba.core import event
compiled = []
class Heard(event.Listener):
    def on_start(self, event): compiled.append(str(event.data))
    def on_end(self, event): pass
event.register("numba:compile", Heard())
import skewless
heavy = ("pyspark", "pandas", "plotly", "typer", "rich", "pyarrow", "fastapi", "skewless.testing")
print(json.dumps([[name for name in heavy if name in sys.modules], compiled]))
"""
    assert json.loads(python(code, NUMBA_CACHE_DIR=str(tmp_path))) == [[], []]


@pytest.mark.compiled
def test_a_second_process_finds_the_kernels_on_disk(tmp_path: Path) -> None:
    code = """
import numpy as np, skewless
from skewless.partitioners import choices
skewless.partitioner("d_choices", 4).route(np.zeros(10, np.uint64))
stats = choices._choose.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""
    assert [python(code, NUMBA_CACHE_DIR=str(tmp_path)).split() for _ in range(2)] == [["0", "1"], ["1", "0"]]


@pytest.mark.compiled
def test_a_changed_kernel_is_compiled_anew_wherever_it_is_inlined(tmp_path: Path) -> None:
    """numba alone would look at pkg.py, see no change, and run the old `below` from hash.py in it."""
    shutil.copytree(Path(skewless.__file__).parent, tmp_path / "skewless", ignore=shutil.ignore_patterns("__pycache__"))
    code = """
import numpy as np, skewless
p, keys = skewless.partitioner("pkg", 64, choices=1), np.arange(50, dtype=np.uint64)
assert (p.route(keys) == p.candidates(keys)[:, 0]).all()
print(p.route(keys).tolist())
"""
    cached = {"PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    before = python(code, **cached)
    source = tmp_path / "skewless" / "kernels" / "hash.py"
    source.write_text(source.read_text().replace("((x >> _32) * n) >> _32", "n - _ONE - (((x >> _32) * n) >> _32)"))
    after = python(code, **cached)
    assert [63 - worker for worker in json.loads(before)] == json.loads(after)


@pytest.mark.compiled
def test_a_read_only_installation_without_a_cache_works() -> None:
    code = """
import numpy as np, numba.core.caching as caching
caching.CacheImpl._locator_classes = []
import skewless
print(skewless.partitioner("pkg", 4).route(np.zeros(4, np.uint64)).size)
"""
    assert python(code).split() == ["4"]


@pytest.mark.parametrize(
    ("stub", "kind", "sentence"),
    [
        (None, "ModuleNotFoundError", "skewless.spark needs pyspark 4.1 or newer: pip install 'skewless[spark]'"),
        ("4.0.1", "ImportError", "skewless.spark needs pyspark 4.1 or newer, not 4.0.1, which has no repartitionById"),
        ("3.5.0.dev0", "ImportError", "skewless.spark needs pyspark 4.1 or newer, not 3.5.0.dev0"),
    ],
)
def test_a_missing_or_old_pyspark_is_an_error_that_says_what_is_needed(
    tmp_path: Path, stub: str | None, kind: str, sentence: str
) -> None:
    """The rest of the library works without it. A stub, or a finder that refuses to import it, simulates this."""
    if stub:
        (tmp_path / "pyspark").mkdir()
        (tmp_path / "pyspark" / "__init__.py").write_text(f"__version__ = {stub!r}\n")
    code = f"""
import sys
if {stub is None}:
    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "pyspark":
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
    sys.meta_path.insert(0, Missing())
import skewless
assert skewless.partitioner("pkg", 2).n_workers == 2
try:
    import skewless.spark
except ImportError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
    said = python(code, PYTHONPATH=str(tmp_path))
    assert said.startswith(f"{kind}: {sentence}")
    assert len(said.splitlines()) == 1
