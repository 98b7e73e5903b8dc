"""Auto hashes keys where no plan gains enough, chooses the cheapest plan elsewhere, and says why."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from skewless import Keys, measure, streams
from skewless.arrays import from_bytes, to_bytes
from skewless.cooperation.protocol import exchange
from skewless.histogram import Histogram
from skewless.migration import Moving
from skewless.partitioners.auto import Auto, Effort
from skewless.planning.planner import Planned
from skewless.table import RoutingTable

TRUE = Effort(2e-6, 3e-4, 5e-7)  # seconds: splitting is dear, moving is cheap


def chosen(p: Auto, keys: Keys) -> str:
    p.observe(keys)
    exchange([p])
    return p.decisions[-1].chosen


def efforts(n: int, seed: int = 0) -> list[Effort]:
    rng = np.random.default_rng(seed)
    sizes = zip(rng.uniform(1e4, 1e5, n), rng.integers(0, 200, n), rng.exponential(5e3, n), strict=True)
    return [Effort(float(worker), float(reducer), float(moved)) for worker, reducer, moved in sizes]


def seconds(effort: Effort, noise: float = 1.0) -> float:
    return noise * sum(weight * term for weight, term in zip(TRUE, effort, strict=True))


def test_does_nothing_for_even_keys() -> None:
    p = Auto(16)
    assert chosen(p, streams.uniform(200_000, 50_000)) == "hash"
    assert "hash stays" in p.decisions[-1].reason
    assert p.table().keys.size == 0


@pytest.mark.parametrize("exponent", [0.8, 1.0, 1.5])
def test_levels_skewed_keys(exponent: float) -> None:
    p = Auto(16)
    keys = streams.zipf(200_000, 50_000, exponent)
    assert chosen(p, keys) == "level"
    assert "level instead of hash" in p.decisions[-1].reason
    assert measure(keys, p.route(keys), 16).imbalance_ratio < 1.05


def test_keeps_keys_whole_if_asked_to_or_if_splitting_is_expensive() -> None:
    keys = streams.zipf(200_000, 50_000, 1.0)
    whole = Auto(16, split=False)
    assert chosen(whole, keys) in ("kip", "level")
    m = measure(keys, whole.route(keys), 16)
    assert m.fragments == m.keys
    assert chosen(Auto(16, costs=(1.0, 1e6, 0.1)), keys) == "kip"


def test_finds_the_costs_that_were_measured_in_any_unit() -> None:
    for unit in (1.0, 1000.0):
        p = Auto(16)
        for number, effort in enumerate(efforts(60)):
            p.measured(effort, unit * seconds(effort, 1 + 0.05 * (-1) ** number))
        keys = streams.zipf(200_000, 50_000, 1.2)
        chosen(p, keys)
        assert p.decisions[-1].weights == pytest.approx([unit * weight for weight in TRUE], rel=0.2)


def test_what_was_measured_changes_what_is_chosen() -> None:
    """Splitting pays by the default costs, but not by the measured ones: a fragment costs as much as 150 tuples."""
    keys = streams.zipf(20_000, 5000, 0.9)
    before, after = Auto(16), Auto(16)
    for effort in efforts(40):
        after.measured(effort, seconds(effort))
    assert (chosen(before, keys), chosen(after, keys)) == ("level", "kip")


def test_a_cost_that_never_occurred_is_as_given_in_the_unit_that_fits() -> None:
    p = Auto(16)
    for effort in efforts(50):
        p.measured(Effort(effort.worker, 0.0, 0.0), 2e-6 * effort.worker)
    chosen(p, streams.zipf(100_000, 5000, 1.0))
    assert p.decisions[-1].weights == pytest.approx([2e-6, 2e-6, 2e-7], rel=0.05)


def test_noise_does_not_make_it_change_its_mind() -> None:
    for exponent in (0.3, 0.5, 0.7, 1.0):
        p = Auto(16)
        for batch in np.split(streams.zipf(1_000_000, 20_000, exponent), 40):
            p.observe(batch)
            exchange([p])
        names = [decision.chosen for decision in p.decisions]
        assert sum(one != other for one, other in pairwise(names)) <= 1


def test_follows_a_stream_that_changes() -> None:
    p = Auto(16)
    even, skewed = streams.uniform(300_000, 20_000), streams.zipf(300_000, 20_000, 1.3)
    for part in (even, skewed, even):
        for batch in np.split(part, 6):
            p.observe(batch)
            exchange([p])
    names = [decision.chosen for decision in p.decisions]
    assert names[5] == "hash"
    assert names[11] == "level"
    assert names[17] == "level"  # going back would move keys, and gain nothing


def test_candidates_without_plans_are_tried_on_a_sample() -> None:
    p = Auto(16, among=("hash", "pkg", "d_choices"))
    keys = streams.zipf(200_000, 50_000, 1.0)
    assert chosen(p, keys) in ("pkg", "d_choices")
    assert measure(keys, p.table().route(keys), 16).imbalance_ratio < 1.1


def test_evidence_outlives_a_restart_and_that_of_sources_is_summed() -> None:
    one, other, both = Auto(16), Auto(16), Auto(16)
    for number, effort in enumerate(efforts(20)):
        (one if number % 2 else other).measured(effort, seconds(effort))
    snapshot = from_bytes(Planned, to_bytes(one.snapshot()))
    assert np.array_equal(Auto(16).restore(snapshot).snapshot().memo, one.snapshot().memo)
    keys = streams.zipf(10_000, 500, 1.0)
    one.observe(keys)
    exchange([one, other, both])
    assert one.decisions[-1] == other.decisions[-1] == both.decisions[-1]
    assert one.decisions[-1].weights == pytest.approx(list(TRUE), rel=0.2)


def test_effort_counts_split_keys_at_reducers_and_what_arrives() -> None:
    p = Auto(2)
    old = RoutingTable.hashed(2)
    key = np.array([7], np.uint64)
    split = old.with_hot_keys(key, np.array([0, 2]), np.array([0, 1], np.int32), np.array([0.5, 0.5]))
    assert p.effort(split, old, Histogram(key, np.array([100.0]))) == pytest.approx((50, 2, 50))
    assert p.effort(old, old, Histogram(key, np.array([100.0]))) == pytest.approx((100, 0, 0))


def test_bad_parameters_get_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"candidates are among hash, pkg, .* not shuffle"):
        Auto(4, among=("hash", "shuffle"))
    with pytest.raises(ValueError, match=r"no candidate may split keys as .*pkg"):
        Auto(4, among=("hash", "pkg"), split=False)
    with pytest.raises(ValueError, match="at least 1 candidate"):
        Auto(4, among=())
    with pytest.raises(ValueError, match="costs are 0 or more"):
        Auto(4, costs=(0.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="costs are 3 numbers"):
        Auto(4, costs=(1.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more than 0 s, not 0"):
        Auto(4).measured(Effort(1, 1, 1), 0.0)
    for wrong in (Effort(1, float("nan"), 2), Effort(1e200, 1, 1), Effort(-1, 0, 0)):
        with pytest.raises(ValueError, match="an effort is between 0 and"):
            Auto(4).measured(wrong, 1.0)
    with pytest.raises(ValueError, match="leave moving out"):
        Auto(4, moving=Moving())
    other = Auto(4, among=("hash", "kip"))
    mine = Auto(4)
    mine.observe(streams.zipf(1000, 100, 1.0))
    with pytest.raises(ValueError, match="not of auto with 4 workers and the same parameters"):
        other.adopt(mine.merge([mine.snapshot()]))


def test_an_empty_batch_and_a_constant_part_of_the_time_change_no_weights() -> None:
    p = Auto(16)
    p.measured(Effort(0, 0, 0), 0.3)
    for effort in efforts(80):
        p.measured(effort, 5.0 + seconds(effort))
    chosen(p, streams.zipf(100_000, 5000, 1.0))
    assert p.decisions[-1].weights == pytest.approx(list(TRUE), rel=0.4)
    assert min(p.decisions[-1].costs.values()) > 5.0


def test_old_measurements_fade() -> None:
    p = Auto(16)
    for effort in efforts(100):
        p.measured(effort, 50 * seconds(effort))
    for effort in efforts(250, seed=1):
        p.measured(effort, seconds(effort))
    chosen(p, streams.zipf(100_000, 5000, 1.0))
    assert p.decisions[-1].weights == pytest.approx(list(TRUE), rel=0.5)
