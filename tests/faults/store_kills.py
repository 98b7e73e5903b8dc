"""Kills a task of the keyed store with SIGKILL, line by line; the next attempt must succeed with what it left.

`python -m tests.faults.store_kills [strides...]` kills a task at every 37th, 41st and 47th line, or as given; once
with states that go to a database when they arrive, and once with states that stay in a file. It is a program of its
own because it forks, which a process with threads should not. Exit code 1 if an attempt fails, or finds wrong states.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa

import skewless.store
from skewless import RoutingTable
from skewless.kernels.position import key_positions
from skewless.store import Manifest, Receipt, Share, StateStore, hotcopy, merge, open_hot_copy, sweep
from tests.faults.claims import Claim, judged

KEY, STATE = pa.schema({"k": pa.int64()}), pa.schema({"n": pa.int64()})
KEYS = 60
OURS = str(Path(skewless.store.__file__).parent)


def killed_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """Returns a tracer that kills its process once this many lines of the store have run."""
    left = line

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def forked(action: Callable[[], object], line: int | None = None) -> int:
    """Runs the action in a child, to be killed at a line; returns its exit code, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            if line is not None:
                sys.settrace(killed_at(line))
            action()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def task(root: Path, store: StateStore, manifest: Manifest, share: Share, version: int) -> None:
    """Adds 1 to the state of every third key, and checks the states of all; writes the receipt to a file."""
    keys = np.arange(version % 3, KEYS, 3)
    keys = keys[share.has(key_positions(keys.astype(np.uint64)))]
    with open_hot_copy(root / "hot", 0, store, manifest, share) as copy:
        states = {entry.key[0]: entry.state[0] for entry in copy.entries() if entry.state}
        positions = key_positions(keys.astype(np.uint64))
        for key, state in states.items():
            assert state == len(range(key % 3, version, 3)), f"key {key} has {state} before batch {version}"
        entries = copy.get(positions, [f"[{key}]" for key in keys.tolist()])
        counts = [(entry.state[0] if entry and entry.state else 0) + 1 for entry in entries]
        columns = [
            pa.array(positions),
            store.key_codec.array([(key,) for key in keys.tolist()]),
            store.state_codec.array([(count,) for count in counts]),
            pa.nulls(keys.size, pa.int64()),
        ]
        receipt = store.write(pa.table(columns, schema=store.schema), share, version, 0)
    (root / "receipt.tmp").write_bytes(receipt.to_bytes())
    (root / "receipt.tmp").rename(root / "receipt")


def killed(root: Path, stride: int) -> tuple[int, int]:
    """Runs 60 batches; returns how many tasks were killed, and how many ended before that."""
    store = StateStore(str(root / "durable"), KEY, STATE)
    manifest, kills, ends, line = Manifest.empty(store), 0, 0, 0
    tables = [RoutingTable.hashed(1), RoutingTable.hashed(2)]  # half of the keys come and go
    for version in range(60):
        share = Share.of(tables[version % 2], 0)
        (root / "receipt").unlink(missing_ok=True)
        attempt = partial(task, root, store, manifest, share, version)
        ended = forked(attempt, line)
        line += stride
        if ended == -signal.SIGKILL:
            kills += 1
            (root / "receipt").unlink(missing_ok=True)
            ended = forked(attempt)
        else:
            line, ends = 7, ends + 1
        if ended != 0:
            sys.exit(f"batch {version} ended with {ended}")
        receipts = [Receipt.from_bytes((root / "receipt").read_bytes())]
        if version % 2:  # the other worker, on another machine
            other_machine = root / "elsewhere"
            other_machine.mkdir(exist_ok=True)
            if forked(partial(task, other_machine, store, manifest, Share.of(tables[1], 1), version)) != 0:
                sys.exit(f"the other worker failed in batch {version}")
            receipts.append(Receipt.from_bytes((other_machine / "receipt").read_bytes()))
        manifest = manifest.committed(store, version, receipts)
        if len(manifest.segments) > 4:
            some = manifest.segments[1:] if version % 3 else manifest.segments
            shares = [Share.of(tables[1], worker) for worker in range(2)]
            parts = [merge(store, some, share, worker) for worker, share in enumerate(shares)]
            manifest = manifest.merged(store, some, parts)
        sweep(store, [manifest])
    return kills, ends


def main() -> None:
    strides, holds = [int(argument) for argument in sys.argv[1:]] or [37, 41, 47], True
    for stride, many in product(strides, (1, hotcopy.MANY)):
        hotcopy.MANY = many
        with tempfile.TemporaryDirectory(prefix="skewless-kills-") as directory:
            kills, ends = killed(Path(directory), stride)
        title = f"a task of the store, killed every {stride} lines; {many} or more states stay in a file"
        claims = [
            Claim("kills", kills, at_least=41),
            Claim("tasks that ended before they could be killed", ends, at_least=1),
        ]
        holds &= judged(title, claims)
    sys.exit(not holds)


if __name__ == "__main__":
    main()
