"""Kills a receiver again and again while lines are sent to it: none may be lost or doubled.

`python -m tests.faults.receiver_kills [kills]` sends lines to a receiver in a process of its own, which gets SIGKILL at
even intervals and is started again on the same port. Meanwhile that process asks for batches, as Spark does, which
close early by half an interval. Exit code 1 if a line was lost or doubled.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from skewless.ingest.sender import send
from tests.faults import harm
from tests.faults.claims import Claim, judged
from tests.faults.killing import compared
from tests.ingest.receiving import listening, values

LINES = 20_000  # between two kills

# Batches are planned before their ends are written, as Spark does it; a batch without a written end is asked for again.
RECEIVER = """
import json, os, sys, time, pyarrow as pa
from skewless.ingest import heartbeat
from skewless.ingest.receiver import LineFormat, Receiver
heartbeat.SHARE, heartbeat.MARGIN = 0.5, 1e9
lines = LineFormat(pa.schema([("value", pa.string())]), "value", text=True)
r = Receiver(sys.argv[1], lines, ("127.0.0.1", int(sys.argv[2])), pending=1 << 30, most_rows=None)
print(r.address, flush=True)
ends = sys.argv[1] + "/ends.json"
written = json.load(open(ends)) if os.path.exists(ends) else [r.begin]
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.1)
    start, end = written[-1], r.latest(written[-1], None)
    if end > start:
        r.blocks(start, end, 4)
        written.append(end)
        with open(ends + ".tmp", "w") as file:
            json.dump(written, file)
        os.replace(ends + ".tmp", ends)
"""


class Started(NamedTuple):
    process: subprocess.Popen[str]
    address: str


def start(log: Path, port: str = "0") -> Started:
    """Starts a receiver in a process of its own; by default on a free port."""
    command = [sys.executable, "-c", RECEIVER, str(log), port]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return Started(process, process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        harm.kill(process)


def sent(log: Path, kills: int) -> list[str]:
    """Sends lines to a receiver that is killed this many times; returns the lines once all are acknowledged."""
    lines = [f"line {number}" for number in range(LINES * (kills + 1))]
    receiver = start(log)

    def records() -> Iterator[str]:
        """Kills the receiver now and then while lines are being sent."""
        nonlocal receiver
        for number, line in enumerate(lines):
            if number and number % LINES == 0:
                kill(receiver.process)
                former, receiver = receiver, start(log, receiver.address.split(":")[1])
                assert receiver.address == former.address
            yield line

    try:
        assert send(records(), receiver.address, name="s") == len(lines)
    finally:
        kill(receiver.process)
    return lines


def received(log: Path) -> list[str]:
    """Returns all lines of a log, sorted, batch by batch as they were handed over, and what is left."""
    ends = json.loads((log / "ends.json").read_text())
    assert len(ends) > 2, "the killed processes handed over no batches"
    with closing(listening(log)) as receiver:
        ends.append(receiver.latest(ends[-1], None))
        return sorted(line for start, end in pairwise(ends) for line in values(receiver, start, end))


def main() -> None:
    kills = int(sys.argv[1]) if sys.argv[1:] else 20
    with tempfile.TemporaryDirectory(prefix="skewless-kills-") as directory:
        lines = sent(Path(directory), kills)
        lost, wrong = compared(Counter(received(Path(directory))), Counter(lines))
    claims = [
        Claim("lines lost", lost, at_most=0, besides=f"of {len(lines):,}"),
        Claim("lines doubled or wrong", wrong, at_most=0),
    ]
    sys.exit(not judged(f"a receiver, killed {kills} times", claims))


if __name__ == "__main__":
    main()
