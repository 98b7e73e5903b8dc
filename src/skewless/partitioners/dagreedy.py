"""DAGreedy: hot keys by affinity against load, the rest by hashing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Never

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import NO_TIMES, Keys, Times, Workers, n_bytes, ticking
from skewless.kernels import bits, kernel
from skewless.kernels import window as windows
from skewless.kernels.hash import Hasher, first, hasher, mixed
from skewless.kernels.lowest import Floor, floor, lowered, lowest
from skewless.kernels.sketch import SpaceSaving, halve, space_saving, sure, tally
from skewless.kernels.window import NEVER, Holders, SlidingWindow, WindowClock, clock, holders, sliding_window, widened
from skewless.partitioner import Partitioner, Window, check_window
from skewless.partitioners.choices import COUNTERS_PER_WORKER, in_head

ROOM = 4  # hot keys that a new state has room for; it grows


class Affine(NamedTuple):
    """State of DAGreedy: frequencies, and the window of load and of hot keys' holders."""

    hasher: Hasher
    heavy: SpaceSaving
    decay: WindowClock  # frequencies are halved by this clock
    window: SlidingWindow
    least: Floor
    total: NDArray[np.int64]  # tuples in the window
    rows: NDArray[np.int64]  # counter -> number in the window of the key it tracks, -1 if none
    tracked: NDArray[np.uint64]  # counter -> that key, which may have lost the counter since
    spare: NDArray[np.int64]  # free numbers: the first `spares` of these
    spares: NDArray[np.int64]
    holders: Holders


@dataclass(eq=False)
class DaGreedy(Partitioner[Affine, Never]):
    """DAGreedy: keys of the tail are hashed; a key of the head goes to the worker with the best score.

    score(worker) = 1/2 [it holds the key in this window] - 1/2 (load - mean) / mean: a hot key is split further only
    when even the emptiest of its workers exceeds the emptiest of all workers by the mean load.

    window: what counts as held and as load; None: everything since the beginning.

    >>> import skewless
    >>> keys = skewless.streams.zipf(100_000, keys=10_000, exponent=1.5)
    >>> for name in ("hash", "dagreedy"):
    ...     m = skewless.measure(keys, skewless.partitioner(name, 16).route(keys), 16)
    ...     print(name, round(m.imbalance_ratio, 2), m.keys, m.fragments)
    hash 6.54 2285 2285
    dagreedy 1.16 2285 2312

    Pacaci, Ozsu: Distribution-aware stream partitioning for distributed stream processing systems. BeyondMR 2018.

    Departures from the paper: the head is that of `d_choices` (a share above 1 / (5 n), SpaceSaving), with frequencies
    halved after each window. Until a key turns hot, its hash worker is assumed to hold it. Scores are
    compared exactly, in whole numbers; ties go to the lowest worker. The best worker is either the emptiest holder or
    the emptiest of all: no need to score each of them.
    """

    name: ClassVar[str] = "dagreedy"
    splits_keys: ClassVar[bool] = True

    window: Window | None = None

    def __post_init__(self) -> None:
        check_window(self.window)
        super().__post_init__()

    def fresh(self) -> Affine:
        size, slide = (self.window.size, self.window.slide) if self.window else (NEVER, NEVER)
        counters = COUNTERS_PER_WORKER * self.n_workers
        return Affine(
            hasher=hasher(self.n_workers, self.seed),
            heavy=space_saving(counters),
            decay=clock(size),
            window=sliding_window(self.n_workers, ROOM, size, slide),
            least=floor(),
            total=np.zeros(1, np.int64),
            rows=np.full(counters, -1, np.int64),
            tracked=np.zeros(counters, np.uint64),
            spare=np.arange(ROOM, dtype=np.int64),
            spares=np.array([ROOM], np.int64),
            holders=holders(ROOM),
        )

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        ticks = ticking(self._state.window.clock.now, times, keys.size) if self.window else NO_TIMES
        self.run(_dagreedy, keys, ticks, workers)

    def grown(self, state: Affine) -> Affine:
        tracked = state.spare.size
        spare = np.concatenate((np.arange(tracked, 2 * tracked), np.zeros(tracked, np.int64)))
        return state._replace(
            window=widened(state.window, 2 * tracked),
            spare=spare,
            spares=np.array([tracked], np.int64),
            holders=holders(2 * tracked),
        )

    def memory_bound(self, n_keys: int) -> int:
        slides = self.window.slides if self.window else 1
        tracked = 2 * min(max(n_keys, ROOM), COUNTERS_PER_WORKER * self.n_workers)
        bytes_per_key = 8 * (slides + 1) * bits.words(self.n_workers) + 4 * self.n_workers + 4 * 8
        return n_bytes(self.fresh()) + tracked * bytes_per_key


@kernel
def _best(s: Affine, row: int) -> int:
    """Returns the worker with the best score, total [held] - n load in whole numbers; the lowest on ties."""
    n, load = s.window.load.size, s.window.load
    emptiest, holder = lowest(load, s.least), windows.emptiest_holder(s.window, load, s.holders, row)
    if holder < 0:
        return emptiest
    gain = s.total[0] - n * (load[holder] - load[emptiest])
    return holder if gain > 0 or (gain == 0 and holder < emptiest) else emptiest


@kernel
def _dagreedy(s: Affine, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    n = s.window.load.size
    for i in range(start, keys.size):
        if s.spares[0] == 0 and s.spare.size < s.rows.size:
            return i
        time = times[i] if times.size > 0 else np.int64(0)
        for _ in range(min(windows.passed(s.decay, time), 63)):
            halve(s.heavy)
        if windows.advance(s.window, time) > 0:
            s.total[0] = 0
            for load in s.window.load:
                s.total[0] += load
            s.holders.level[:] = -1.0
            lowered(s.least)
        x = mixed(s.hasher, keys[i])
        counter = tally(s.heavy, x)
        if s.rows[counter] >= 0 and s.tracked[counter] != x:
            windows.forget(s.window, s.rows[counter])
            s.holders.level[s.rows[counter]] = -1.0
            s.spare[s.spares[0]] = s.rows[counter]
            s.spares[0] += 1
            s.rows[counter] = -1
        worker = int(np.int64(first(s.hasher, x)))
        if in_head(s.heavy, counter, n):
            if s.rows[counter] < 0:
                s.spares[0] -= 1
                s.rows[counter], s.tracked[counter] = s.spare[s.spares[0]], x
                if sure(s.heavy, counter) > 1:
                    windows.hold(s.window, s.rows[counter], worker)
            worker = _best(s, s.rows[counter])
        windows.add(s.window, worker)
        if s.rows[counter] >= 0 and windows.hold(s.window, s.rows[counter], worker):
            s.holders.level[s.rows[counter]] = -1.0
        s.total[0] += 1
        workers[i] = worker
    return keys.size
