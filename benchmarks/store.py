"""The cost of a batch for the keyed store, by the number of keys with a state, and the cost of a move.

One worker has all keys. A batch touches some of them: it brings the hot copy up to date, gets their states, writes new
ones to a segment, and commits. Rounds on the small and the large store are interleaved.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.spark import Claim, judged
from skewless import RoutingTable
from skewless.kernels.position import key_positions
from skewless.store import HotCopy, Manifest, Share, StateStore, Tally, open_hot_copy

FEW, MANY, TOUCHED, ROUNDS = 50_000, 5_000_000, 10_000, 12
MOVED = 0.05  # share of hosts that move
BOUND, ABOUT = 2.0, 1.1
KEY, STATE = pa.schema({"k": pa.string()}), pa.schema({"n": pa.int64()})
STEPS = ("catch up", "get", "write", "commit")


class Stream:
    """A store with a state for each of `n_keys` keys, and batches for it."""

    def __init__(self, folder: Path, n_keys: int) -> None:
        self.store = StateStore(str(folder / "durable"), KEY, STATE)
        self.hot, self.n_keys, self.rng = folder / "hot", n_keys, np.random.default_rng(0)
        self.table = RoutingTable.hashed(1)
        self.manifest = Manifest.empty(self.store)
        self.commit(np.arange(n_keys), np.zeros(n_keys, np.int64))
        began = perf_counter()
        with self.open_hot_copy():
            self.loading = perf_counter() - began

    def open_hot_copy(self, tally: Tally | None = None) -> AbstractContextManager[HotCopy]:
        return open_hot_copy(self.hot, 0, self.store, self.manifest, Share.of(self.table, 0), tally)

    def commit(self, keys: NDArray[np.int64], counts: NDArray[np.int64]) -> list[float]:
        """Writes and commits these counts as the states of keys; returns the seconds of both steps."""
        began = perf_counter()
        names = pa.array(keys).cast(pa.string())
        columns = [
            pa.array(key_positions(keys.astype(np.uint64))),
            pa.StructArray.from_arrays([names], fields=list(KEY)),
            pa.StructArray.from_arrays([pa.array(counts)], fields=list(STATE)),
            pa.nulls(keys.size, pa.int64()),
        ]
        version = self.manifest.version + 1
        changes = pa.table(columns, schema=self.store.schema)
        receipt = self.store.write(changes, Share.of(self.table, 0), version, 0)
        written = perf_counter()
        self.manifest = self.manifest.committed(self.store, version, [receipt])
        return [written - began, perf_counter() - written]

    def batch(self) -> list[float]:
        """Runs a batch and returns the seconds of each step."""
        keys = self.rng.choice(self.n_keys, TOUCHED, replace=False)
        began = perf_counter()
        with self.open_hot_copy() as copy:
            caught_up = perf_counter()
            texts = [f'["{key}"]' for key in keys.tolist()]
            entries = copy.get(key_positions(keys.astype(np.uint64)), texts)
            counts = np.array([entry.state[0] + 1 for entry in entries if entry and entry.state])
            got = perf_counter()
            return [caught_up - began, got - caught_up, *self.commit(keys, counts)]


def main() -> None:
    console = Console()
    with TemporaryDirectory() as folder:
        streams = {n_keys: Stream(Path(folder, str(n_keys)), n_keys) for n_keys in (FEW, MANY)}
        times: dict[int, list[list[float]]] = {n_keys: [] for n_keys in streams}
        for number in range(ROUNDS + 2):
            for n_keys, stream in streams.items():
                spent = stream.batch()
                if number >= 2:
                    times[n_keys].append(spent)
        shown = Table(title=f"{TOUCHED:,} keys touched, milliseconds, median of {ROUNDS} batches")
        for title in ("keys with a state", *STEPS, "batch", "loading all, s"):
            shown.add_column(title, justify="right")
        for n_keys, stream in streams.items():
            steps = [median(1000 * spent[step] for spent in times[n_keys]) for step in range(len(STEPS))]
            total = median(1000 * sum(spent) for spent in times[n_keys])
            shown.add_row(f"{n_keys:,}", *(f"{step:.0f}" for step in (*steps, total)), f"{stream.loading:.1f}")
        console.print(shown)
        pairs = zip(times[MANY], times[FEW], strict=True)
        ratio = median(sum(many) / sum(few) for many, few in pairs)
        stream = streams[MANY]
        gone = stream.table.hosts.size - round(MOVED * stream.table.hosts.size)
        share = Share.of(stream.table, 0)
        without = Share(np.arange(share.hosts.size) < gone, share.hot, share.owned)
        everything = sum(segment.bytes for segment in stream.manifest.segments)
        with open_hot_copy(stream.hot, 0, stream.store, stream.manifest, without):
            pass
        tally, began = Tally(), perf_counter()
        with stream.open_hot_copy(tally):
            seconds = perf_counter() - began
        moved, read = 1 - gone / share.hosts.size, tally.bytes / everything
    claims = [
        Claim(f"a batch with {MANY:,} keys / with {FEW:,}", ratio, at_most=BOUND),
        Claim(
            f"{moved:.1%} of the hosts move: % of the state that is read / % of the hosts",
            read / moved,
            at_most=ABOUT,
            besides=f"{read:.1%} in {seconds:.2f} s",
        ),
    ]
    sys.exit(not judged(f"the store alone, {TOUCHED:,} keys touched", claims))


if __name__ == "__main__":
    main()
