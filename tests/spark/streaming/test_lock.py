"""One process at a time holds a checkpoint, with locks and without; an owner that lost it gets an error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from skewless.spark.streaming import lock
from tests.faults.harm import kill, suspended

pytestmark = pytest.mark.compiled

LOCKED: dict[str, Callable[[], pafs.FileSystem]] = {
    "with locks": pafs.LocalFileSystem,
    "without": lambda: pafs.SubTreeFileSystem("/", pafs.LocalFileSystem()),
}
OWNER = """
import sys
import pyarrow.fs as pafs
from skewless.spark.streaming import lock
files = pafs.LocalFileSystem() if sys.argv[1] == "with locks" else pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())
held = lock.hold(files, sys.argv[2], "there")
print("holds it", flush=True)
sys.stdin.readline()
held.check()
"""


@contextmanager
def owner(kind: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Yields another process, which holds the checkpoint and checks its hold when it reads a line."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", OWNER, kind, str(directory)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds it\n"
        try:
            yield process
        finally:
            kill(process)


@pytest.mark.parametrize("kind", LOCKED)
def test_a_second_process_is_refused_while_the_first_lives_and_not_when_it_is_dead(kind: str, tmp_path: Path) -> None:
    files = LOCKED[kind]()
    with owner(kind, tmp_path) as first:
        with pytest.raises(ValueError, match="another query is running on the checkpoint there: stop it first"):
            lock.hold(files, str(tmp_path), "there")
        kill(first)
        first.wait()
        with closing(lock.hold(files, str(tmp_path), "there")) as held:
            held.check()
            with pytest.raises(ValueError, match="another query is running"):
                lock.hold(files, str(tmp_path), "there")
            held.check()
    lock.hold(files, str(tmp_path), "there").close()


def test_an_owner_that_was_suspended_notices_that_another_took_over(tmp_path: Path) -> None:
    with owner("without", tmp_path) as first:
        with suspended(first.pid):
            held = lock.hold(LOCKED["without"](), str(tmp_path), "there")
        with closing(held):
            _, error = first.communicate("check\n", timeout=60)
            assert first.returncode == 1
            assert "another query is running on the checkpoint there" in error
            held.check()
