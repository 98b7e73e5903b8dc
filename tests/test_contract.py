"""Wrong names, parameters and arrays get a sentence that says what is allowed; windows and times do as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skewless import Window, from_bytes, partitioner, streams, to_bytes
from skewless.coordinate import exchange
from skewless.partitioners.baselines import OnGreedy
from skewless.partitioners.pkg import Loads


@pytest.mark.parametrize(
    ("name", "n_workers", "params", "sentence"),
    [
        ("pgk", 4, {}, r"there is no partitioner 'pgk'; there are hash, shuffle, .*dagreedy"),
        ("pkg", 0, {}, "n_workers is between 1 and 2147483647, not 0"),
        ("pkg", -1, {}, "n_workers is between 1"),
        ("pkg", 2**31, {}, "n_workers is between 1"),
        ("pkg", 2.0, {}, "n_workers is a whole number, not 2.0"),
        ("pkg", True, {}, "n_workers is a whole number, not True"),
        ("pkg", 4, {"seed": -1}, "seed is between 0"),
        ("pkg", 4, {"choices": 0}, "choices is at least 1, not 0"),
        ("pkg", 4, {"choise": 2}, "pkg takes choices besides n_workers and seed, not choise"),
        ("hash", 4, {"choices": 2}, "hash takes no parameters besides"),
        ("cm", 4, {"choices": 64}, "choices is between 1 and 63, not 64"),
        ("pkg", 4, {"choices": 2.9}, "choices is a whole number, not 2.9"),
        ("cam", 4, {"window": 100}, r"window is a Window\(size, slide\) or None, not 100"),
        ("dagreedy", 4, {"window": 100}, "window is a Window"),
        ("level", 4, {"speeds": (1.0, 2.0)}, "4 workers, 2 speeds"),
        ("level", 2, {"speeds": (1.0, 0.0)}, "a speed is more than 0, not 0.0"),
        ("level", 2, {"key_cost": -1}, "key_cost is 0 tuples or more"),
        ("scan", 4, {"theta": 0.0}, "theta is more than 0, not 0.0"),
        ("readj", 4, {"compute": "cubic"}, 'compute is "linear" or "quadratic", not \'cubic\''),
        ("mixed", 4, {"theta": -0.5}, "theta is None, or 0 or more, not -0.5"),
        ("cm", 4, {"cardinality": "hyper"}, 'cardinality is "exact" or "hll", not \'hyper\''),
    ],
)
def test_bad_parameters(name: str, n_workers: Any, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        partitioner(name, n_workers, **params)


@pytest.mark.parametrize(
    ("keys", "times", "sentence"),
    [
        ([1, 2], None, "keys are a one-dimensional numpy array of uint64, not list"),
        (np.array([1, 2]), None, "not 1-dimensional int64: skewless.streams.as_keys"),
        (np.zeros((2, 2), np.uint64), None, "not 2-dimensional uint64"),
        (
            np.zeros(2, np.uint64),
            np.zeros(2),
            "times are a one-dimensional numpy array of int64, not 1-dimensional float64",
        ),
        (np.zeros(2, np.uint64), np.zeros(3, np.int64), "2 keys came with 3 times"),
        (np.zeros(1, np.uint64), np.array([2**62]), "times lie between"),
    ],
)
def test_bad_arrays(keys: Any, times: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        partitioner("pkg", 4).route(keys, times)


@pytest.mark.parametrize(
    ("size", "slide", "sentence"),
    [
        (0, 0, "a window's size is between 1 and .*, not 0"),
        (10.5, 0, "a window's size is a whole number, not 10.5"),
        (2**70, 0, "a window's size is between 1"),
        (5, 6, "a window's slide is between 1 and 5, not 6"),
        (5, -1, "not -1"),
        (10**6, 1, "has 1000000 slides; at most 4096 are kept"),
    ],
)
def test_bad_windows(size: Any, slide: int, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        Window(size, slide)


def test_a_window_without_slide_tumbles() -> None:
    assert Window(10) == Window(10, 10)
    assert Window(10, 3).slides == 4


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (partitioner("cm", 4), partitioner("cm", 4, cardinality="hll")),
        (partitioner("cm", 4), partitioner("cam", 4)),
        (partitioner("cm", 4, window=Window(5)), partitioner("cm", 4, window=Window(6))),
        (partitioner("pkg", 4), partitioner("pkg", 64)),
        (partitioner("pkg", 4), partitioner("pkg", 4, seed=9)),
        (partitioner("pkg", 4), partitioner("pkg", 4, choices=3)),
        (partitioner("pkg", 4), partitioner("shuffle", 4)),
        (partitioner("level", 4), partitioner("level", 64)),
        (partitioner("kip", 4), partitioner("level", 4)),
        (partitioner("scan", 4), partitioner("redist", 4)),
        (partitioner("dalton", 4), partitioner("dalton", 4, hot=2)),
    ],
)
def test_snapshots_of_others_are_refused(mine: Any, theirs: Any) -> None:
    with pytest.raises(ValueError, match=f"this snapshot is not of {mine.name} with 4 workers and the same parameters"):
        mine.restore(theirs.snapshot())


def test_policies_of_others_are_refused() -> None:
    for name in ("pkg", "d_choices", "potc", "off_greedy", "level"):
        policy = partitioner(name, 64).merge([partitioner(name, 64).snapshot()])
        with pytest.raises(ValueError, match=r"4 workers|numbered from 0 to 3"):
            partitioner(name, 4).adopt(policy)
    with pytest.raises(ValueError, match="this policy is no Loads of 4 workers"):
        partitioner("pkg", 4).adopt(None)


def test_bytes_of_others_are_refused() -> None:
    with pytest.raises(ValueError, match="these bytes hold no Loads: load is missing"):
        from_bytes(Loads, to_bytes(partitioner("shuffle", 4).snapshot()))
    with pytest.raises(ValueError, match="these bytes hold no Loads, but keys, load, places"):
        from_bytes(Loads, to_bytes(OnGreedy(4).merge([OnGreedy(4).snapshot()])))
    with pytest.raises(ValueError, match="they are not what to_bytes writes"):
        from_bytes(Loads, b"garbage")


def test_who_has_nothing_to_tell_says_so() -> None:
    p = partitioner("hash", 4)
    assert p.merge([p.snapshot()]) is None
    with pytest.raises(TypeError, match="hash has no policy to adopt"):
        p.adopt(None)
    with pytest.raises(TypeError, match="hash does not choose among a few candidates"):
        p.candidates(np.zeros(1, np.uint64))


@pytest.mark.parametrize(("name", "params"), [("cm", {"window": Window(50)}), ("dagreedy", {"window": Window(60, 20)})])
def test_without_times_the_unit_is_tuples(name: str, params: dict[str, Any]) -> None:
    keys = streams.zipf(500, keys=20, exponent=1.0)
    counted, timed = (partitioner(name, 4, **params) for _ in range(2))
    times = np.arange(500, dtype=np.int64)
    assert np.array_equal(counted.route(keys), timed.route(keys, times))
    # A tuple without a time comes one unit after the one before.
    assert np.array_equal(counted.route(keys), timed.route(keys))


def test_a_window_resets_loads_and_keys() -> None:
    """Holistic algorithm 1: after t_w nothing is remembered, so the same keys are placed the same way again."""
    keys = streams.uniform(100, keys=30)
    for cardinality in ("exact", "hll"):
        p = partitioner("lm", 8, window=Window(100), cardinality=cardinality)
        assert np.array_equal(p.route(keys), p.route(keys))


def test_candidates_stay_distinct_when_workers_are_few() -> None:
    assert partitioner("pkg", 3, choices=9).candidates(np.arange(5, dtype=np.uint64)).shape == (5, 3)


def test_sources_agree_on_the_place_of_a_key_once_they_talk() -> None:
    """PoTC needs coordination: two sources may place a key differently, until they share their tables."""
    a, b = (partitioner("potc", 8) for _ in range(2))
    keys = np.arange(200, dtype=np.uint64)
    a.route(keys)
    b.route(keys[::-1].copy())
    assert not np.array_equal(a.route(keys), b.route(keys))
    exchange([a, b])
    assert np.array_equal(a.route(keys), b.route(keys))


def test_probing_sets_the_load_to_the_truth() -> None:
    a, b = (partitioner("pkg", 2) for _ in range(2))
    a.route(np.arange(100, dtype=np.uint64))
    b.route(np.arange(60, dtype=np.uint64))
    for _ in range(3):  # telling it again and again must not count anything twice
        exchange([a, b])
    assert a.snapshot().load.sum() == 160
    assert a.snapshot().load.tolist() == b.snapshot().load.tolist()
