"""Dalton's inner loop: frequencies, rows of estimates, rewards, and a worker for each tuple."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, Times, Workers
from skewless.kernels import hashtable, kernel, sketch
from skewless.kernels import window as windows
from skewless.kernels.hash import Hasher, below, first, mix64, mixed
from skewless.kernels.hashtable import Table
from skewless.kernels.lowest import Floor, lowered, lowest
from skewless.kernels.sketch import CountMin
from skewless.kernels.window import Holders, SlidingWindow, WindowClock

EPSILON, GAMMA = 0.1, 0.1  # how often to explore; how much a reward weighs
WORST = -2.0  # the least possible reward, where every estimate begins: a key is split by exploration only
MARGIN = 0.05  # greedy: how much fuller than the mean a worker may be before a key goes elsewhere
FREE = -(2**63)  # no window has this number
ZERO_SLIDE = 2**62  # makes the number of any slide positive, for a table
_1 = np.uint64(1)

THIS_WINDOW, LAST_WINDOW = range(2)  # of Statistics.seen: tuples in this statistics window, and in the one before
BY_SKETCH, ADAPTIVE = range(2)  # of Statistics.use: sketch (1) or hash map (0); whether that may change
N_ROWS, MICRO_BATCH, GREEDY, FINGERPRINT = range(4)  # of Learned.rule; micro-batch: fragments count within a slide
EVER, SINCE = range(2)  # of Learned.tuples: since the beginning; since the last agreement
ALL_SINCE, SOURCES, SOURCES_EVER = range(3)  # of Agreed.tuples: of all sources since the agreement before; how many


class Statistics(NamedTuple):
    """Frequencies of keys in a tumbling window, by a hash map or a sketch."""

    clock: WindowClock
    seen: NDArray[np.int64]  # [THIS_WINDOW, LAST_WINDOW]
    exact: Table  # mixed key -> occurrences
    rough: CountMin
    use: NDArray[np.int64]  # [BY_SKETCH, ADAPTIVE]


class Rows(NamedTuple):
    """Q: a row of estimates for each hot key, one a worker."""

    numbers: Table  # mixed key -> its row + 1
    keys: NDArray[np.uint64]
    spare: NDArray[np.int64]  # the free rows come first
    until: NDArray[np.int64]  # the last statistics window in which the row is used, or FREE
    born: NDArray[np.int64]  # the number of the tuple that made its key hot: a key may be hot, cold and hot again
    values: NDArray[np.float64]  # [rows, workers]: Q(k, a)
    before: NDArray[np.float64]  # [rows, workers]: as last agreed, or as they began
    tries: NDArray[np.int64]  # [rows, workers]: rewards of each since the last agreement
    best: NDArray[np.int64]  # argmax Q(k, .)
    second: NDArray[np.float64]  # no estimate of the row but the best exceeds this
    counts: NDArray[np.int64]  # tuples of the row since the last agreement


class Peers(NamedTuple):
    """What a source knows of the others."""

    load: NDArray[np.float64]  # of each worker in the window, from others: as agreed, and estimated since
    ratio: NDArray[np.float64]  # how many tuples others send for each of its own
    near: Table  # mixed key -> tuples since the last agreement, of keys that are nearly hot here and have no row
    agreed_in: NDArray[np.int64]  # the statistics window of the last agreement


class Learned(NamedTuple):
    """State of Dalton."""

    hasher: Hasher
    rule: NDArray[np.int64]  # [N_ROWS, MICRO_BATCH, GREEDY, FINGERPRINT]
    frequency: Statistics
    window: SlidingWindow
    load: NDArray[np.float64]  # of each worker in the window, from all sources
    total: NDArray[np.float64]  # the sum of these loads
    tuples: NDArray[np.int64]  # [EVER, SINCE]
    rows: Rows
    least: Floor  # of the loads
    holders: Holders
    once: Table  # mixed key -> ZERO_SLIDE + the slide in which it was last hot, so that it may have been split
    peers: Peers
    agreed: Agreed


class Agreed(NamedTuple):
    """A policy: what all sources together learned."""

    version: NDArray[np.int64]
    keys: NDArray[np.uint64]  # hot for all sources together, mixed, ascending
    values: NDArray[np.float64]  # [keys, workers]: Q
    held: NDArray[np.bool_]  # [keys, workers]: where a source sent the key since the agreement before
    load: NDArray[np.int64]  # tuples of each worker in the window, from all sources
    tuples: NDArray[np.int64]  # [ALL_SINCE, SOURCES, SOURCES_EVER]
    split: NDArray[np.uint64]  # keys that some source may have split within the window, mixed, ascending
    split_in: NDArray[np.uint64]  # ZERO_SLIDE + the slide in which each was last hot
    covers: NDArray[np.int64]  # every source has reported the slides before this one completely


@kernel
def _frequency(s: Statistics, x: np.uint64) -> int:
    """Counts one occurrence; returns how often the key has come in this statistics window."""
    if s.use[BY_SKETCH] == 1:
        return sketch.count(s.rough, x)
    slot = hashtable.find(s.exact, x)
    often = s.exact.slots[slot + _1] + _1
    hashtable.put(s.exact, slot, x, often)
    return int(np.int64(often))


@kernel
def _new_statistics(s: Statistics, passed: int) -> None:
    s.seen[LAST_WINDOW] = s.seen[THIS_WINDOW] if passed == 1 else 0
    s.seen[THIS_WINDOW] = 0
    if s.use[ADAPTIVE] == 1:
        # Beyond half a key a column, the sketch is quicker than a hash map that misses the cache. With the sketch, the
        # columns still at 0 tell the number of keys: at half a key a column, exp(-1/2) of them are.
        width = s.rough.cells.shape[1]
        zeros = 0
        for column in range(width):
            zeros += 1 if s.rough.cells[0, column] == 0 else 0
        many = 2 * s.exact.used[0] > width if s.use[BY_SKETCH] == 0 else zeros < 0.6065 * width
        s.use[BY_SKETCH] = 1 if many else 0
    hashtable.clear(s.exact)
    s.rough.cells[:] = 0


@kernel
def new_row(s: Learned, x: np.uint64) -> int:
    """Takes a free row for a key; returns -1 if there is none."""
    r = s.rows
    spares = s.rule[N_ROWS] - r.numbers.used[0]
    if spares == 0:
        return -1
    row = int(r.spare[spares - 1])
    hashtable.put(r.numbers, hashtable.find(r.numbers, x), x, np.uint64(row + 1))
    r.keys[row], r.until[row], r.born[row], r.counts[row] = x, 0, s.tuples[EVER], 0
    r.values[row, :] = WORST
    r.before[row, :] = WORST
    r.tries[row, :] = 0
    r.best[row], r.second[row] = np.int64(first(s.hasher, x)), WORST
    note_split(s, x)
    if s.tuples[EVER] > 0:
        windows.hold(s.window, row, int(np.int64(first(s.hasher, x))))
    return row


@kernel
def release(s: Learned, row: int) -> None:
    """Frees the row of a key that is no longer hot."""
    hashtable.remove(s.rows.numbers, hashtable.find(s.rows.numbers, s.rows.keys[row]))
    windows.forget(s.window, row)
    s.holders.level[row] = -1.0
    s.rows.until[row] = FREE
    s.rows.spare[s.rule[N_ROWS] - s.rows.numbers.used[0] - 1] = row
    note_split(s, s.rows.keys[row])


@kernel
def note_split(s: Learned, x: np.uint64) -> None:
    """Notes that a key may have been split in the present slide; before the first tuple there is no slide."""
    slide = max(s.window.clock.number[0], 1 - ZERO_SLIDE)
    hashtable.put(s.once, hashtable.find(s.once, x), x, np.uint64(slide + ZERO_SLIDE))


@kernel
def seek_best(s: Learned, row: int) -> None:
    """Finds argmax Q(k, .), the first from the hash worker of the key on, and the best of the rest."""
    n = s.load.size
    values = s.rows.values
    start = np.int64(first(s.hasher, s.rows.keys[row]))
    best, second = start, -np.inf
    for step in range(1, n):
        a = start + step if start + step < n else start + step - n
        if values[row, a] > values[row, best]:
            second = values[row, best]
            best = a
        elif values[row, a] > second:
            second = values[row, a]
    s.rows.best[row], s.rows.second[row] = best, second


@kernel
def _reward(s: Learned, row: int, a: int) -> float:
    """Returns -(CI + CA) / 2, after the tuple is added: equations 3 and 4 with p1 = p2 = 1/2."""
    n = s.load.size
    mean = s.total[0] / n
    imbalance = (s.load[a] - mean) / max(s.load[a], mean)
    return float(-0.5 * (imbalance + float(s.window.fragments[row]) / n))


@kernel
def _learn(s: Learned, row: int, a: int) -> None:
    """Applies equation 5; the best action is sought again only when another may have become better."""
    r = s.rows
    r.values[row, a] += GAMMA * (_reward(s, row, a) - r.values[row, a])
    r.tries[row, a] += 1
    if a == r.best[row]:
        if r.values[row, a] <= r.second[row]:
            seek_best(s, row)
    elif r.values[row, a] >= r.values[row, r.best[row]]:
        seek_best(s, row)
    elif r.values[row, a] > r.second[row]:
        r.second[row] = r.values[row, a]


@kernel
def _greedy(s: Learned, row: int) -> int:
    """Returns the emptiest worker that holds the key; the emptiest of all if that one is too full."""
    holder = windows.emptiest_holder(s.window, s.load, s.holders, row)
    if holder >= 0 and s.load[holder] * s.load.size <= (1.0 + MARGIN) * (s.total[0] + 1.0 + s.peers.ratio[0]):
        return holder
    return lowest(s.load, s.least)


@kernel
def _send(s: Learned, a: int) -> None:
    """Counts a tuple on a worker, and assumes that the other sources do the same, in proportion to their tuples.

    They follow the same policy. Otherwise all would find the same worker the emptiest, and all send there.
    """
    windows.add(s.window, a)
    s.peers.load[a] += s.peers.ratio[0]
    s.load[a] += 1.0 + s.peers.ratio[0]
    s.total[0] += 1.0 + s.peers.ratio[0]


@kernel
def new_loads(s: Learned, faded: float) -> None:
    """Recomputes loads: those of this source from its window, those of others after a part of them has faded."""
    s.total[0] = 0.0
    for worker in range(s.load.size):
        s.peers.load[worker] *= 1.0 - faded
        s.load[worker] = s.window.load[worker] + s.peers.load[worker]
        s.total[0] += s.load[worker]
    lowered(s.least)
    s.holders.level[:] = -1.0


@kernel
def _tracked(s: Learned, x: np.uint64, often: int) -> int:
    """Returns the row of a key that came `often` times in its statistics window; -1 if it is not hot."""
    f = s.frequency
    row = int(np.int64(s.rows.numbers.slots[hashtable.find(s.rows.numbers, x) + _1])) - 1
    # l. 3: f_k >= L / n, the load of all. A key that came once is not hot, however short the statistics window is.
    if f.seen[LAST_WINDOW] > 0 and often > 1:
        if often * s.rule[N_ROWS] >= f.seen[LAST_WINDOW] * (1.0 + s.peers.ratio[0]):
            row = new_row(s, x) if row < 0 else row
            if row >= 0:
                s.rows.until[row] = max(s.rows.until[row], f.clock.number[0] + 1)
        elif row < 0 and s.peers.ratio[0] > 0.0 and 2 * often * s.rule[N_ROWS] >= f.seen[LAST_WINDOW]:
            slot = hashtable.find(s.peers.near, x)
            count = s.peers.near.slots[slot + _1]
            hashtable.put(s.peers.near, slot, x, count + _1 if count > 0 else np.uint64(often))
    return row


@kernel
def assign(s: Learned, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    """Runs algorithm 1; returns early when a table must grow."""
    n = s.load.size
    f = s.frequency
    for i in range(start, keys.size):
        if hashtable.full(f.exact) or hashtable.full(s.once) or hashtable.full(s.peers.near):
            return i
        passed = windows.passed(f.clock, times[i])
        if passed > 0:
            _new_statistics(f, passed)
            if s.peers.near.used[0] > 16 * s.rule[N_ROWS]:
                hashtable.clear(s.peers.near)  # no agreement has used them for long
            for row in range(s.rule[N_ROWS]):
                if FREE < s.rows.until[row] < f.clock.number[0]:
                    release(s, row)
        began, slides = windows.advance(s.window, times[i]), s.window.ring_load.shape[0]
        if began > 0:
            new_loads(s, min(began, slides) / slides)
            if s.rule[MICRO_BATCH] == 1:
                for row in range(s.rule[N_ROWS]):
                    windows.forget(s.window, row)
        x = mixed(s.hasher, keys[i])
        often = _frequency(f, x)  # l. 1, 2
        f.seen[THIS_WINDOW] += 1
        row = _tracked(s, x, often)
        s.tuples[EVER] += 1
        s.tuples[SINCE] += 1
        if row < 0:
            a = int(np.int64(first(s.hasher, x)))  # l. 8, 9
            _send(s, a)
            workers[i] = a
            continue
        coin = mix64(s.hasher.salt[0] + np.uint64(s.tuples[EVER]))
        a = int(s.rows.best[row])  # l. 4
        if s.rule[GREEDY] == 1:
            a = _greedy(s, row)
        elif (coin >> np.uint64(11)) * 2.0**-53 < EPSILON:
            a = int(np.int64(below(mix64(coin), np.uint64(n))))
        _send(s, a)
        if windows.hold(s.window, row, a):
            s.holders.level[row] = -1.0
        s.rows.counts[row] += 1
        _learn(s, row, a)  # l. 5, 6
        workers[i] = a
    return keys.size
