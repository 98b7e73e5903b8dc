"""Windows for compiled loops: a tumbling clock, and the sliding load and fragments of Dalton section 3.3."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import Number, bits, kernel

NEVER = 2**62  # a slide or window of this length does not end
_BEFORE = -(2**63)  # no tuple seen yet


class WindowClock(NamedTuple):
    """Time in windows or slides of one length, which begin at multiples of it."""

    now: NDArray[np.int64]  # the time after the last tuple
    length: NDArray[np.int64]
    number: NDArray[np.int64]  # of the present window


def clock(length: int) -> WindowClock:
    """Returns a clock before its first tuple."""
    return WindowClock(
        now=np.zeros(1, np.int64), length=np.array([length], np.int64), number=np.array([_BEFORE], np.int64)
    )


@kernel
def passed(c: WindowClock, time: int | np.int64) -> int:
    """Advances the clock to a tuple's time; returns how many windows ended. A late tuple is in the present window."""
    number = time // c.length[0]
    if c.number[0] == _BEFORE:
        c.number[0] = number
    if number <= c.number[0]:
        return 0
    ended = number - c.number[0]
    c.number[0] = number
    return int(ended)


class SlidingWindow(NamedTuple):
    """Load of each worker and the workers of each tracked key over the last slides: O(1) a tuple.

    A ring has one block per slide. Next to it are the running sums (Subtract-on-Evict), the union of the bit rows of
    all slides, and for each (key, worker) the number of slides that hold it. When a slide expires, its loads are
    subtracted and its references dropped; a bit of the union is cleared with its last reference.
    """

    clock: WindowClock
    ring_load: NDArray[np.int64]  # [slides, workers]
    ring_held: NDArray[np.uint64]  # [slides, keys, words]
    load: NDArray[np.int64]  # [workers]: L(c_i, w)
    held: NDArray[np.uint64]  # [keys, words]: X_w, the union of ring_held
    references: NDArray[np.int32]  # [keys, workers]: slides whose ring_held has the bit
    fragments: NDArray[np.int64]  # [keys]: ||X_w(k)||, the ones of held


def sliding_window(n_workers: int, n_keys: int, size: int, slide: int) -> SlidingWindow:
    """Returns an empty window with room for n_keys tracked keys."""
    slides, width = -(-size // slide), bits.words(n_workers)
    return SlidingWindow(
        clock=clock(slide),
        ring_load=np.zeros((slides, n_workers), np.int64),
        ring_held=np.zeros((slides, n_keys, width), np.uint64),
        load=np.zeros(n_workers, np.int64),
        held=np.zeros((n_keys, width), np.uint64),
        references=np.zeros((n_keys, n_workers), np.int32),
        fragments=np.zeros(n_keys, np.int64),
    )


def widened(old: SlidingWindow, n_keys: int) -> SlidingWindow:
    """Returns the same window with room for n_keys tracked keys."""
    more = n_keys - old.fragments.size
    return old._replace(
        ring_held=np.pad(old.ring_held, ((0, 0), (0, more), (0, 0))),
        held=np.pad(old.held, ((0, more), (0, 0))),
        references=np.pad(old.references, ((0, more), (0, 0))),
        fragments=np.pad(old.fragments, (0, more)),
    )


@kernel
def advance(w: SlidingWindow, time: int | np.int64) -> int:
    """Begins all slides up to `time`; returns how many."""
    began = passed(w.clock, time)
    slides = w.ring_load.shape[0]
    for ago in range(min(began, slides) - 1, -1, -1):
        _expire(w, int((w.clock.number[0] - ago) % slides))
    return began


@kernel
def _expire(w: SlidingWindow, block: int) -> None:
    """Empties the oldest block, which becomes the head of the ring."""
    for worker in range(w.load.size):
        w.load[worker] -= w.ring_load[block, worker]
        w.ring_load[block, worker] = 0
    for key in range(w.fragments.size):
        if w.fragments[key] > 0:
            worker = bits.following(w.ring_held[block, key], 0)
            while worker >= 0:
                w.references[key, worker] -= 1
                if w.references[key, worker] == 0:
                    bits.drop(w.held[key], worker)
                    w.fragments[key] -= 1
                worker = bits.following(w.ring_held[block, key], worker + 1)
            w.ring_held[block, key, :] = np.uint64(0)


@kernel
def add(w: SlidingWindow, worker: int) -> None:
    """Counts a tuple on a worker, in the present slide."""
    w.ring_load[w.clock.number[0] % w.ring_load.shape[0], worker] += 1
    w.load[worker] += 1


@kernel
def hold(w: SlidingWindow, key: int, worker: int) -> bool:
    """Notes that a worker holds tracked key number `key` in this slide; returns whether that is a new fragment."""
    block = int(w.clock.number[0] % w.ring_load.shape[0])
    if bits.has(w.ring_held[block, key], worker):
        return False
    bits.put(w.ring_held[block, key], worker)
    w.references[key, worker] += 1
    if w.references[key, worker] > 1:
        return False
    bits.put(w.held[key], worker)
    w.fragments[key] += 1
    return True


@kernel
def forget(w: SlidingWindow, key: int) -> None:
    """Stops tracking a key: its number may be given to another."""
    w.ring_held[:, key, :] = np.uint64(0)
    w.held[key, :] = np.uint64(0)
    w.references[key, :] = 0
    w.fragments[key] = 0


class Holders(NamedTuple):
    """For each tracked key, its emptiest holder at the last search.

    Within a slide loads only grow, so that holders before it are fuller now, and none is emptier.
    """

    level: NDArray[np.float64]  # its load then; -1: search again from the start
    holder: NDArray[np.int64]


def holders(n_keys: int) -> Holders:
    """Returns the state before any search."""
    return Holders(level=np.full(n_keys, -1.0), holder=np.zeros(n_keys, np.int64))


@kernel
def emptiest_holder(w: SlidingWindow, load: NDArray[Number], h: Holders, key: int) -> int:
    """Returns the holder of a tracked key with the least load, the lowest on ties; -1 if no worker holds it."""
    held = w.held[key]
    if h.level[key] >= 0:
        holder = int(h.holder[key])
        while holder >= 0 and load[holder] != h.level[key]:
            holder = bits.following(held, holder + 1)
        if holder >= 0:
            h.holder[key] = holder
            return holder
    best = bits.following(held, 0)
    holder = best
    while holder >= 0:
        if load[holder] < load[best]:
            best = holder
        holder = bits.following(held, holder + 1)
    if best >= 0:
        h.level[key], h.holder[key] = load[best], best
    return best
