"""Jobs that are killed again and again, at random moments, and started again until they are done.

A job is a module with a stream in a process of its own: `python -m benchmarks.stream_kills stream directory master`. It
goes on where it was when it is started again, and ends with code 0 when all there is to read has been read.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

ENVIRONMENT = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
CLUSTER = "local-cluster[2,1,512]"  # executors are processes of their own
EARLY = 0.1  # the share of lives that end before there is another batch
STARTING = 8.0  # seconds in which a job starts
DELAY = 2.5  # seconds after a batch within which a kill comes, at the most: in the next one, or the one after it


class Processes(NamedTuple):
    """Those in which a job's tasks run."""

    executors: list[int]
    workers: list[int]  # of Python


@dataclass
class Kills:
    """What was killed, and what of it came while a batch was run."""

    victims: Counter[str] = field(default_factory=Counter)
    midst: int = 0
    failures: list[str] = field(default_factory=list)  # why a job failed by itself after a kill, and was started again

    @property
    def total(self) -> int:
        return self.victims.total()

    def __str__(self) -> str:
        parts = [f"{number} x {victim}" for victim, number in sorted(self.victims.items())]
        return f"{', '.join(parts)}; {self.midst} in the midst of a batch; {len(self.failures)} x Spark gave up after"


def session(master: str) -> SparkSession:
    """For a job that is killed: what counts are kills, not failures of tasks."""
    os.environ |= ENVIRONMENT
    settings = {
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.task.maxFailures": "100",
        "spark.stage.maxConsecutiveAttempts": "100",
        "spark.deploy.maxExecutorRetries": "-1",
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def disturbed(module: str, job: Sequence[str], directory: Path, kills: int, seed: int = 0) -> Kills:
    """Run a job to its end, and kill so many times its driver, all of it, an executor or a Python worker on the way.

    directory: has the job's checkpoint, and gets its log.
    """
    rng, done = random.Random(seed), Kills()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment |= ENVIRONMENT | {"SPARK_LOCAL_DIRS": f"{directory}/local"}  # what is killed does not clean up
    log, lives = directory / "log", list[subprocess.Popen[bytes]]()
    try:
        while True:
            before, life = done.total, _begun([sys.executable, "-m", module, *job], environment, log)
            for former in lives:
                _await_end(former.pid)  # not before the next one begins: who starts it again does not look either
            lives = [life]
            _disturb(life, rng, done, kills, directory)
            code = life.wait()
            if code == 0:
                return done
            if code != -signal.SIGKILL:
                if done.total == before:
                    raise SystemExit(f"the job failed: {log.read_text()[-3000:]}")
                done.failures.append(log.read_text()[-3000:])
    finally:
        for life in lives:
            _await_end(life.pid, patience=0 if life.poll() is None else 20)


def _begun(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """A process that leads a group of its own."""
    with log.open("w") as file:
        return subprocess.Popen(command, env=environment, start_new_session=True, stdout=file, stderr=file)


def _disturb(life: subprocess.Popen[bytes], rng: random.Random, done: Kills, kills: int, directory: Path) -> None:
    """Kill again and again until the driver has ended, or until there were enough."""
    at_first, dies_early = _committed(directory), rng.random() < EARLY
    while life.poll() is None and done.total < kills:
        # Mostly after another batch, so that it gets somewhere; sometimes while it starts.
        if dies_early or _committed(directory) > at_first:
            sleep(rng.random() * (STARTING if dies_early else min(DELAY, 1.5 * _pace(directory))))
            if life.poll() is None:
                _kill(life, rng, done, directory)
            at_first, dies_early = _committed(directory), False
        sleep(0.1)


def _kill(life: subprocess.Popen[bytes], rng: random.Random, done: Kills, directory: Path) -> None:
    """One of these, as far as it is there."""
    found = processes(life.pid)
    some = {"driver": [life.pid], "executor": found.executors, "Python worker": found.workers}
    victim = rng.choice(["everything", *(name for name in some if some[name])])
    is_running = _is_running_a_batch(directory)
    with suppress(ProcessLookupError):  # it has ended meanwhile
        if victim == "everything":
            os.killpg(life.pid, signal.SIGKILL)
        else:
            os.kill(rng.choice(some[victim]), signal.SIGKILL)
        done.victims[victim] += 1
        done.midst += is_running


def processes(root: int) -> Processes:
    """Of the job that a process began."""
    commands: dict[int, bytes] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status, commands[int(path.name)] = (path / "status").read_text(), (path / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        parents[int(path.name)] = int(status.split("PPid:")[1].split()[0])
    ours = [pid for pid in parents if root in _ancestors(pid, parents)]
    backend, daemon = b"CoarseGrainedExecutorBackend", b"pyspark.daemon"
    executors = [pid for pid in ours if backend in commands[pid] and b"java" in commands[pid].split(b"\0")[0]]
    # Workers are forks of a daemon, and look like it.
    workers = [pid for pid in ours if daemon in commands[pid] and daemon in commands.get(parents[pid], b"")]
    return Processes(executors, workers)


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


def _await_end(group: int, patience: float = 20) -> None:
    """Until all that a life began has ended: a JVM whose Python is gone takes a moment. It is ended after a while."""
    until = monotonic() + patience
    with suppress(ProcessLookupError):
        while monotonic() < until:
            os.killpg(group, 0)
            sleep(0.1)
        os.killpg(group, signal.SIGKILL)


def _committed(directory: Path) -> int:
    """The last batch that is done."""
    return _last(directory / "checkpoint/skewless/commits", ".json")


def _pace(directory: Path) -> float:
    """Seconds between the last two commits."""
    last = _committed(directory)
    if last < 1:
        return DELAY
    one, two = (directory / f"checkpoint/skewless/commits/{number}.json" for number in (last - 1, last))
    return two.stat().st_mtime - one.stat().st_mtime


def _is_running_a_batch(directory: Path) -> bool:
    """By Spark's own account: it has planned one that it has not committed."""
    spark = directory / "checkpoint/spark"
    return _last(spark / "offsets") > _last(spark / "commits")


def _last(directory: Path, ending: str = "") -> int:
    return max((int(place.stem) for place in directory.glob(f"*{ending}") if place.stem.isdigit()), default=-1)


def compared(found: Counter[Any], wanted: Counter[Any]) -> tuple[int, int]:
    """How many rows are lost, and how many there twice or not as they should be."""
    return (wanted - found).total(), (found - wanted).total()
