"""Kills a task of the keyed store, by SIGKILL, at one line after the other; what is left must do for the next attempt.

A program of its own: it forks, and a process with threads should not.
How many states that come at once are left in a file is its last argument.
It prints how many tasks it killed, and how many came to their end first.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa

import skewless.store
from skewless import RoutingTable
from skewless.kernels.place import key_places
from skewless.store import Manifest, Receipt, Share, Store, hotcopy, merge, opened, sweep

KEY, STATE = pa.schema({"k": pa.int64()}), pa.schema({"n": pa.int64()})
KEYS = 60
OURS = str(Path(skewless.store.__file__).parent)


def killed_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """A tracer that kills its process before so many lines of the store have run."""
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
    """Do it in a child, to be killed at a line; its exit code, or minus the signal that ended it."""
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


def task(root: Path, store: Store, manifest: Manifest, share: Share, version: int) -> None:
    """Add one to the state of every third key, and check those of all; the receipt goes to a file."""
    keys = np.arange(version % 3, KEYS, 3)
    keys = keys[share.has(key_places(keys.astype(np.uint64)))]
    with opened(root / "hot", 0, store, manifest, share) as copy:
        states = {entry.key[0]: entry.state[0] for entry in copy.entries() if entry.state}
        places = key_places(keys.astype(np.uint64))
        for key, state in states.items():
            assert state == len(range(key % 3, version, 3)), f"key {key} has {state} before batch {version}"
        found = copy.get(places, [f"[{key}]" for key in keys.tolist()])
        counts = [(entry.state[0] if entry and entry.state else 0) + 1 for entry in found]
        columns = [
            pa.array(places),
            store.key_codec.array([(key,) for key in keys.tolist()]),
            store.state_codec.array([(count,) for count in counts]),
            pa.nulls(keys.size, pa.int64()),
        ]
        receipt = store.write(pa.table(columns, schema=store.schema), share, version, 0)
    (root / "receipt.tmp").write_bytes(receipt.to_bytes())
    (root / "receipt.tmp").rename(root / "receipt")


def main() -> None:
    root, stride = Path(sys.argv[1]), int(sys.argv[2])
    hotcopy.MANY = int(sys.argv[3])
    store = Store(str(root / "durable"), KEY, STATE)
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
            away = root / "elsewhere"
            away.mkdir(exist_ok=True)
            if forked(partial(task, away, store, manifest, Share.of(tables[1], 1), version)) != 0:
                sys.exit(f"the other worker failed in batch {version}")
            receipts.append(Receipt.from_bytes((away / "receipt").read_bytes()))
        manifest = manifest.committed(store, version, receipts)
        if len(manifest.segments) > 4:
            some = manifest.segments[1:] if version % 3 else manifest.segments
            shares = [Share.of(tables[1], worker) for worker in range(2)]
            parts = [merge(store, some, share, worker) for worker, share in enumerate(shares)]
            manifest = manifest.merged(store, some, parts)
        sweep(store, [manifest])
    print(kills, ends)


if __name__ == "__main__":
    main()
