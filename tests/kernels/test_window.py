"""Sliding windows and window clocks equal plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from skewless.kernels import bits, window

STEPS = st.lists(st.tuples(st.integers(-6, 12), st.integers(-1, 4), st.integers(0, 69)), max_size=120)


@given(STEPS, st.sampled_from([(10, 10), (10, 3), (40, 10), (1, 1)]))
def test_sliding_window_is_a_list_of_tuples(steps: list[tuple[int, int, int]], size_and_slide: tuple[int, int]) -> None:
    size, slide = size_and_slide
    w, slides = window.sliding_window(70, 3, size, slide), -(-size // slide)
    w = window.widened(w, 5)
    kept: list[tuple[int, int, int]] = []  # slide, key, worker
    time, now = -20, -(2**70)
    for step, key, worker in steps:
        time += step
        window.advance(w, time)
        window.add(w, worker)
        if key >= 0:
            window.hold(w, key, worker)
        if step == 5:
            window.forget(w, 2)
            kept = [(t, -1 if k == 2 else k, v) for t, k, v in kept]
            key = -1 if key == 2 else key
        now = max(now, time // slide)  # a late tuple belongs to the present slide
        kept = [old for old in kept if old[0] > now - slides] + [(now, key, worker)]
        assert w.load.tolist() == [sum(v == i for _, _, v in kept) for i in range(70)]
        held = [{v for _, k, v in kept if k == number} for number in range(5)]
        assert w.fragments.tolist() == [len(workers) for workers in held]
        assert [{i for i in range(70) if bits.has(row, i)} for row in w.held] == held


@given(st.lists(st.integers(-10, 30), max_size=50), st.integers(1, 20))
def test_a_clock_counts_the_windows_that_passed(steps: list[int], length: int) -> None:
    c, numbers = window.clock(length), list[int]()
    for time in np.cumsum(steps).tolist():
        before = max(numbers, default=time // length)
        numbers.append(time // length)
        assert window.passed(c, time) == max(0, time // length - before)
