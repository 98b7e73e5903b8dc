"""Arguments, windows and times of the contract, and the defaults that treat a user's own classes like the built-in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from skewless import Partitioner, Window, partitioner, streams, to_bytes
from skewless.arrays import Keys, Times, Workers
from skewless.histogram import Histogram
from skewless.partitioner import Forecast
from skewless.partitioners import ALL, configured, rebuilt
from skewless.partitioners.auto import Auto
from skewless.table import RoutingTable
from tests.spark.own import Emptiest


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
        ("lm", 4, {"p": 1.5}, "p is between 0 and 1, not 1.5"),
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
        (partitioner("lm", 4), partitioner("lm", 4, p=0.6)),
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
def test_snapshots_of_other_partitioners_are_refused(mine: Any, theirs: Any) -> None:
    with pytest.raises(ValueError, match=f"this snapshot is not of {mine.name} with 4 workers and the same parameters"):
        mine.restore(theirs.snapshot())


def test_policies_of_other_partitioners_are_refused() -> None:
    for name in ("pkg", "d_choices", "potc", "off_greedy", "level"):
        policy = partitioner(name, 64).merge([partitioner(name, 64).snapshot()])
        with pytest.raises(ValueError, match=r"4 workers|numbered from 0 to 3"):
            partitioner(name, 4).adopt(policy)
    with pytest.raises(ValueError, match="this policy is not a Loads of 4 workers"):
        partitioner("pkg", 4).adopt(None)


def test_a_partitioner_without_policy_or_candidates_says_so() -> None:
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


class Seen(NamedTuple):
    keys: NDArray[np.uint64]
    policy: NDArray[np.uint64]  # hottest key, then its worker


class HottestKey(NamedTuple):
    policy: NDArray[np.uint64]


@dataclass(eq=False)
class HottestAlone(Partitioner[Seen, HottestKey]):
    """A user's planner: worker 0 gets the hottest key and nothing else."""

    name: ClassVar[str] = "hottest_alone"
    splits_keys: ClassVar[bool] = False
    plans_ahead: ClassVar[bool] = True

    def fresh(self) -> Seen:
        return Seen(np.empty(0, np.uint64), np.empty(0, np.uint64))

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        others = max(self.n_workers - 1, 1)
        workers[:] = (keys % np.uint64(others)).astype(np.int32) + min(1, self.n_workers - 1)
        workers[np.isin(keys, self._state.policy)] = 0

    def observe(self, keys: Keys, times: Times | None = None) -> None:
        self._state = self._state._replace(keys=np.concatenate((self._state.keys, keys)))

    def merge(self, snapshots: Sequence[Seen]) -> HottestKey:
        keys, counts = np.unique(np.concatenate([snapshot.keys for snapshot in snapshots]), return_counts=True)
        return HottestKey(keys[[counts.argmax()]] if keys.size else snapshots[0].policy)

    def adopt(self, policy: HottestKey, reported: Seen | None = None) -> None:
        self._state = self._state._replace(policy=policy.policy)


def counted(hot: int, seed: int = 0) -> Histogram:
    """Returns counts of tuples of which 60 % have one key, and the rest one of 500 others."""
    others = streams.uniform(4000, keys=500, seed=seed)
    keys, counts = np.unique(np.append(others, np.full(6000, hot, np.uint64)), return_counts=True)
    order = np.lexsort((keys, -counts))
    return Histogram(keys[order], counts[order].astype(np.float64))


def test_a_users_learner_learns_from_counts_what_it_learns_from_their_sample() -> None:
    histogram, by_counts, by_sample = counted(7), Emptiest(4), Emptiest(4)
    by_counts.count(histogram, seed=9)
    by_sample.observe(histogram.sample(9))
    assert to_bytes(by_counts.snapshot()) == to_bytes(by_sample.snapshot())
    table = by_counts.learn(histogram, seed=10)
    by_sample.observe(histogram.sample(10))
    assert table.to_json() == by_sample.table(histogram.sample(10)).to_json()
    assert to_bytes(by_counts.snapshot()) == to_bytes(by_sample.snapshot())
    assert table.splits_keys


def test_a_users_planner_learns_and_adopts_its_plan() -> None:
    p = HottestAlone(4)
    assert p.learn(counted(7)).route(np.array([7], np.uint64)).tolist() == [0]
    assert p.route(np.array([7], np.uint64)).tolist() == [0]
    with_more_of_another = replace(counted(9), counts=10 * counted(9).counts)
    p.learn(with_more_of_another)
    assert p.route(np.array([9], np.uint64)).tolist() == [0]


@pytest.mark.parametrize("cls", [Emptiest, HottestAlone, *ALL])
def test_a_forecast_changes_nothing(cls: type[Partitioner[Any, Any]]) -> None:
    p = cls(4, seed=3)
    before, old = to_bytes(p.snapshot()), RoutingTable.hashed(4)
    table = p.forecast(counted(7), old)
    assert table.n_workers == 4
    assert to_bytes(p.snapshot()) == before
    assert p.forecast(counted(7), old).to_json() == table.to_json()
    explained = p.explained(counted(7), old)
    assert explained.table.to_json() == table.to_json()
    assert p.splits_keys or not table.splits_keys


@pytest.mark.parametrize("cls", [Emptiest, HottestAlone, *ALL])
def test_a_partitioner_of_another_size_has_the_same_parameters(cls: type[Partitioner[Any, Any]]) -> None:
    p = cls(4, seed=3)
    p.learn(counted(7))
    other = p.resized(6)
    assert repr(other) == repr(replace(p, n_workers=6))
    assert other.route(counted(7).keys).max() < 6


def test_a_planners_forecast_puts_its_plan_into_a_table() -> None:
    assert HottestAlone(4).forecast(counted(7)).route(np.array([7], np.uint64)).tolist() == [0]


def test_what_a_partitioner_says_of_itself() -> None:
    learner, planner, auto = Emptiest(4), HottestAlone(4), Auto(4)
    assert (learner.reason, planner.reason, auto.reason) == ("emptiest", "hottest_alone", "auto")
    assert (learner.sources_agree, planner.sources_agree) == (False, True)
    assert [cls.name for cls in ALL if cls(2).sources_agree and not cls.plans_ahead] == ["hash"]
    table = learner.forecast(counted(7))
    learner.timed(table, table, counted(7), busiest=10, seconds=1.0)  # ignored
    forecast = planner.explained(counted(7))
    assert isinstance(forecast, Forecast)
    assert (forecast.chosen, forecast.reason) == ("hottest_alone", "hottest_alone")
    auto.learn(counted(7))
    assert auto.reason == auto.decisions[-1].reason
    assert auto.explained(counted(7), RoutingTable.hashed(4)).chosen == "level"


def test_whether_keys_are_split_depends_on_parameters() -> None:
    assert partitioner("level", 4).splits_keys
    assert not partitioner("level", 4, split=False).splits_keys
    assert partitioner("auto", 4).splits_keys
    assert not partitioner("auto", 4, split=False).splits_keys
    assert not partitioner("auto", 4, among=("hash", "kip")).splits_keys


def test_settings_go_only_to_classes_that_have_them() -> None:
    for cls in ALL:
        p = configured(cls.name, 4, split=False, costs=(1.0, 2.0, 0.0))
        assert getattr(p, "split", False) is False
        assert getattr(p, "costs", (1.0, 2.0, 0.0)) == (1.0, 2.0, 0.0)


def test_a_class_that_cannot_be_imported_is_named_with_what_to_do() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        rebuilt('{"class": "nowhere.at_all:Mine", "n_workers": 4}')
    assert "nowhere.at_all:Mine is a partitioner of your own" in caught.value.__notes__[0]
    assert "spark.addArtifacts" in caught.value.__notes__[0]
