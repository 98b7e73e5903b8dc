"""The compiled building blocks against dictionaries, sets and lists."""

from __future__ import annotations

from collections import Counter

import datasketches
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless import Keys, streams
from skewless.kernels import bits, hashtable, sketch, window
from skewless.kernels.hash import below, candidates, hasher, mix64
from skewless.kernels.lowest import floor, lowered, lowest
from tests import oracles
from tests.conftest import COMPILED

LENGTH = 100_000 if COMPILED else 3_000
_1 = np.uint64(1)


def mixed(keys: Keys) -> Keys:
    return np.array([mix64(key) for key in keys], np.uint64)


def test_mix64_is_splitmix64() -> None:
    """The first outputs of the published generator, which adds the golden ratio before each mix."""
    golden = 0x9E3779B97F4A7C15
    seen = [int(mix64(np.uint64((1234567 + golden * i) % 2**64))) for i in (1, 2, 3)]
    assert seen == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(x=st.integers(0, 2**64 - 1), n=st.integers(1, 2**31 - 1))
def test_below_is_exact_where_numba_modulo_is_not(x: int, n: int) -> None:
    assert int(below(np.uint64(x), np.uint64(n))) == (x >> 32) * n >> 32 < n


@pytest.mark.parametrize("n_workers", [1, 2, 3, 4, 6, 10, 16, 24, 100])
def test_candidates(n_workers: int) -> None:
    keys = streams.uniform(300, keys=10**6)
    out = candidates(hasher(n_workers, 3), keys, 5)
    assert out.tolist() == [oracles.candidates(int(key), n_workers, 3, 5) for key in keys]


@pytest.mark.compiled
@pytest.mark.parametrize("n_workers", [6, 10, 16, 50, 97])
def test_pairs_of_candidates_are_evenly_spread(n_workers: int) -> None:
    """Every ordered pair of workers is equally likely, whether or not n_workers is prime."""
    keys = np.arange(500 * n_workers * (n_workers - 1), dtype=np.uint64)
    out = candidates(hasher(n_workers, 0), keys, 2)
    pairs = np.bincount(out[:, 0] * n_workers + out[:, 1], minlength=n_workers**2).reshape(n_workers, n_workers)
    expected = 500 * (1 - np.eye(n_workers))
    assert np.abs(pairs - expected).max() < 5 * 500**0.5


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "remove"]), st.integers(0, 30), st.integers(1, 9)), max_size=200
)


@given(OPERATIONS)
def test_hash_table_is_a_dict(operations: list[tuple[str, int, int]]) -> None:
    table, model = hashtable.table(), dict[int, int]()
    for what, number, value in operations:
        # Few different upper bits, so that slots are fought over; the key 0 among them.
        key = np.uint64((number % 4) << 62 | number)
        slot = hashtable.find(table, key)
        if what == "put":
            if hashtable.full(table):
                table = hashtable.grown(table)
                slot = hashtable.find(table, key)
            hashtable.put(table, slot, key, np.uint64(value))
            model[int(key)] = value
        elif int(key) in model:
            hashtable.remove(table, slot)
            del model[int(key)]
        keys, values = hashtable.entries(table)
        assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == model
        assert table.used[0] == len(model)
        assert all(int(table.slots[hashtable.find(table, np.uint64(k)) + _1]) == v for k, v in model.items())
        assert keys.nbytes * 2 <= table.slots.nbytes <= hashtable.most_bytes(max(len(model), 30)) + 256


@given(st.lists(st.integers(0, 7), max_size=300), st.integers(1, 8))
def test_lowest_is_argmin_of_growing_values(raised: list[int], size: int) -> None:
    values, f = np.zeros(size, np.int64), floor()
    for number in raised:
        values[number % size] += 1 + number % 3
        assert lowest(values, f) == np.argmin(values)
    values //= 2
    lowered(f)
    assert lowest(values, f) == np.argmin(values)


@given(st.sets(st.integers(0, 199)), st.sets(st.integers(0, 199)))
def test_bit_rows_are_sets(put: set[int], dropped: set[int]) -> None:
    row = np.zeros(bits.words(200), np.uint64)
    for bit in put:
        bits.put(row, bit)
    for bit in dropped:
        bits.drop(row, bit)
    assert {bit for bit in range(200) if bits.has(row, bit)} == put - dropped
    ones, bit = [], bits.following(row, 0)
    while bit >= 0:
        ones.append(bit)
        bit = bits.following(row, bit + 1)
    assert ones == sorted(put - dropped)


def summarized(keys: Keys, counters: int) -> sketch.SpaceSaving:
    s = sketch.space_saving(counters)
    for x in mixed(keys):
        sketch.tally(s, x)
    return s


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_space_saving_keeps_its_bounds(exponent: float) -> None:
    keys = streams.zipf(3000, keys=500, exponent=exponent)
    s, truth = summarized(keys, 40), Counter(mixed(keys).tolist())
    assert s.counts.sum() == s.seen[0] == keys.size
    for key, counted, error in zip(s.keys.tolist(), s.counts.tolist(), s.errors.tolist(), strict=True):
        assert counted - error <= truth[key] <= counted
        assert error <= keys.size / 40
    assert {key for key, often in truth.items() if often > keys.size / 40} <= set(s.keys.tolist())


def test_space_saving_finds_what_datasketches_finds() -> None:
    keys = streams.zipf(LENGTH, keys=10_000, exponent=1.2)
    s, peer = summarized(keys, 256), datasketches.frequent_strings_sketch(9)
    for x in mixed(keys).tolist():
        peer.update(str(x))
    theirs = {
        int(name)
        for name, *_ in peer.get_frequent_items(
            datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES, LENGTH // 100
        )
    }
    ours = {int(s.keys[i]) for i in range(256) if s.counts[i] > LENGTH // 100}
    assert ours == theirs
    assert len(ours) > 5


def test_space_saving_halved() -> None:
    s, peer = sketch.space_saving(4), oracles.SpaceSaving(4)
    for number, x in enumerate(mixed(streams.zipf(500, keys=20, exponent=1.0))):
        sketch.tally(s, x)
        peer.tally(int(x))
        if number % 37 == 0:
            sketch.halve(s)
            peer.halve()
        assert (s.counts.tolist(), s.errors.tolist(), s.seen[0]) == (peer.counts, peer.errors, peer.seen)


def test_count_min_is_never_too_low_and_rarely_too_high() -> None:
    keys = mixed(streams.zipf(LENGTH, keys=2000, exponent=1.0))
    s = sketch.count_min(4, 1000)
    assert s.cells.shape == (4, 1024)
    for x in keys:
        sketch.count(s, x)
    truth = Counter(keys.tolist())
    excess = np.array([sketch.frequency(s, np.uint64(key)) - often for key, often in truth.items()])
    assert excess.min() >= 0
    assert (excess > np.e * LENGTH / 1024).mean() < np.exp(-4)


@pytest.mark.parametrize("distinct", [100, 3000, 50_000])
def test_hyperloglog_estimates_within_four_standard_errors(distinct: int) -> None:
    distinct = distinct if COMPILED else min(distinct, 3000)
    s = sketch.hyperloglog(2)
    for x in mixed(np.arange(distinct, dtype=np.uint64)):
        register, rank = sketch.hll_cell(x)
        sketch.update(s, 1, register, rank)
        assert sketch.contains(s, 1, register, rank)
        assert not sketch.update(s, 1, register, rank)
    assert sketch.estimate(s.zeros[1], s.harmonic[1]) == pytest.approx(distinct, rel=4 * 1.04 / 64)
    assert sketch.estimate(s.zeros[0], s.harmonic[0]) == 0
    sketch.empty(s)
    assert not s.registers.any()
    assert sketch.estimate(s.zeros[1], s.harmonic[1]) == 0


def test_contains_is_optimistic_by_trial_update() -> None:
    """Holistic 3.2.2: known if the estimate would not change; while registers are 0, a higher rank changes nothing."""
    s = sketch.hyperloglog(1)
    low, high = np.uint8(1), np.uint8(9)
    register = np.uint64(7)
    assert not sketch.contains(s, 0, register, low)
    sketch.update(s, 0, register, low)
    assert sketch.contains(s, 0, register, low)
    assert sketch.contains(s, 0, register, high)  # linear counting looks at zeros only: wrongly, but as the paper does
    assert not sketch.contains(s, 0, np.uint64(8), low)
    for other in range(sketch.REGISTERS):
        sketch.update(s, 0, np.uint64(other), np.uint8(5))
    assert sketch.contains(s, 0, register, np.uint8(5))
    assert not sketch.contains(s, 0, register, high)


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
