"""Kills jobs again and again, at random moments, and starts them again until they are done.

A job is a module that runs a stream in its own process, such as
`python -m tests.faults.stream_kills stream <directory> <master>`. When it is started again it continues from its
checkpoint; it ends with exit code 0 once it has read all of its input.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from tests.environment import SETTINGS, environment

CLUSTER = "local-cluster[2,1,512]"  # executors are processes of their own
EARLY = 0.1  # the share of runs that are killed before they commit another batch
STARTING = 8.0  # seconds that a job takes to start
DELAY = 2.5  # a kill comes at most this many seconds after a batch: in the next one, or the one after it


class Processes(NamedTuple):
    """The processes in which the tasks of a job run."""

    executors: list[int]
    workers: list[int]  # Python workers


@dataclass
class Kills:
    """What was killed, and how often that was during a batch."""

    victims: Counter[str] = field(default_factory=Counter)
    during_batch: int = 0
    failures: list[str] = field(default_factory=list)  # logs of runs that failed by themselves after a kill

    @property
    def total(self) -> int:
        return self.victims.total()

    def __str__(self) -> str:
        victims = [f"{number} x {victim}" for victim, number in sorted(self.victims.items())]
        gave_up = f"Spark then gave up {len(self.failures)} times"
        return f"{', '.join(victims)}; {self.during_batch} of them during a batch; {gave_up}"


def session(master: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Returns a session for a job that is killed, in which Spark never gives up after failed tasks.

    settings: of Spark, besides those here or instead of them.
    """
    os.environ |= SETTINGS
    defaults = {
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
    for name, value in (defaults | dict(settings or {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def disturbed(module: str, job: Sequence[str], directory: Path, kills: int, seed: int = 0) -> Kills:
    """Runs a job to its end, and on the way kills its driver, all of it, an executor or a Python worker.

    directory: has the job's checkpoint, and gets its log.
    kills: how many.
    """
    rng, done = random.Random(seed), Kills()
    # Processes that are killed do not clean up: their files go to the directory, too.
    variables = environment() | {"SPARK_LOCAL_DIRS": f"{directory}/local"}
    log, runs = directory / "log", list[subprocess.Popen[bytes]]()
    try:
        while True:
            before, run = done.total, _started([sys.executable, "-m", module, *job], variables, log)
            for former in runs:
                _await_end(former.pid)  # only now: users also start a query again before all of the last one has ended
            runs = [run]
            _disturb(run, rng, done, kills, directory)
            code = run.wait()
            if code == 0:
                return done
            if code != -signal.SIGKILL:
                if done.total == before:
                    raise SystemExit(f"the job failed: {log.read_text()[-3000:]}")
                done.failures.append(log.read_text()[-3000:])
    finally:
        for run in runs:
            _await_end(run.pid, patience=0 if run.poll() is None else 20)


def _started(command: list[str], variables: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a process that leads a group of its own."""
    with log.open("w") as file:
        return subprocess.Popen(command, env=variables, start_new_session=True, stdout=file, stderr=file)


def _disturb(run: subprocess.Popen[bytes], rng: random.Random, done: Kills, kills: int, directory: Path) -> None:
    """Kills again and again until the driver has ended, or until there were enough kills."""
    at_first, dies_early = _committed(directory), rng.random() < EARLY
    while run.poll() is None and done.total < kills:
        # Mostly after another batch, so that the job makes progress; sometimes while it starts.
        if dies_early or _committed(directory) > at_first:
            sleep(rng.random() * (STARTING if dies_early else min(DELAY, 1.5 * _pace(directory))))
            if run.poll() is None:
                _kill(run, rng, done, directory)
            at_first, dies_early = _committed(directory), False
        sleep(0.1)


def _kill(run: subprocess.Popen[bytes], rng: random.Random, done: Kills, directory: Path) -> None:
    """Kills everything, or one process of a kind that is running."""
    tasks = processes(run.pid)
    running = {"driver": [run.pid], "executor": tasks.executors, "Python worker": tasks.workers}
    victim = rng.choice(["everything", *(name for name, pids in running.items() if pids)])
    is_running = _is_running_a_batch(directory)
    with suppress(ProcessLookupError):  # it may have ended by now
        if victim == "everything":
            os.killpg(run.pid, signal.SIGKILL)
        else:
            os.kill(rng.choice(running[victim]), signal.SIGKILL)
        done.victims[victim] += 1
        done.during_batch += is_running


def processes(root: int) -> Processes:
    """Returns the processes of the job whose driver is this one."""
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
    """Waits until a group of processes has ended (a JVM whose Python is gone takes a moment); kills what is left."""
    until = monotonic() + patience
    with suppress(ProcessLookupError):
        while monotonic() < until:
            os.killpg(group, 0)
            sleep(0.1)
        os.killpg(group, signal.SIGKILL)


def _committed(directory: Path) -> int:
    """Returns the last batch that is committed; -1 if there is none."""
    return _last(directory / "checkpoint/skewless/commits", ".json")


def _pace(directory: Path) -> float:
    """Returns the seconds between the last two commits."""
    last = _committed(directory)
    if last < 1:
        return DELAY
    before, after = (directory / f"checkpoint/skewless/commits/{number}.json" for number in (last - 1, last))
    return after.stat().st_mtime - before.stat().st_mtime


def _is_running_a_batch(directory: Path) -> bool:
    """Returns whether Spark has planned a batch that it has not committed."""
    spark = directory / "checkpoint/spark"
    return _last(spark / "offsets") > _last(spark / "commits")


def _last(directory: Path, ending: str = "") -> int:
    return max((int(path.stem) for path in directory.glob(f"*{ending}") if path.stem.isdigit()), default=-1)


def compared(rows: Counter[Any], wanted: Counter[Any]) -> tuple[int, int]:
    """Returns how many of the wanted rows are lost, and how many rows are doubled or wrong."""
    return (wanted - rows).total(), (rows - wanted).total()
