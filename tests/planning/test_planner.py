"""What all planners share: when a plan is adopted, how sources agree, how the past fades."""

from __future__ import annotations

import numpy as np
import pytest

from skewless import streams
from skewless.cooperation.protocol import exchange
from skewless.histogram import Histogram
from skewless.migration import Moving
from skewless.partitioners.auto import Auto
from skewless.partitioners.gedik import Readj, Redist, Scan
from skewless.partitioners.kip import Kip
from skewless.partitioners.level import Level
from skewless.partitioners.mixed import Mixed
from skewless.partitioners.prompt import Prompt
from skewless.planning.planner import Planner
from skewless.table import RoutingTable
from tests.plans import planned

pytestmark = pytest.mark.compiled


def test_planners_agree_after_an_exchange_and_ignore_an_older_policy() -> None:
    a, b = (Kip(16) for _ in range(2))
    first, second = np.split(streams.zipf(100_000, 5000, 1.0), 2)
    planned(a, first)
    planned(b, second)
    older = a.merge([a.snapshot()])
    exchange([a, b])
    assert np.array_equal(a.route(first), b.route(first))
    planned(a, second)
    version = a.table().version
    a.adopt(older)
    assert a.table().version == version


def test_the_past_outlives_empty_and_small_batches_but_not_a_change() -> None:
    p = Level(16)
    for batch in np.split(streams.zipf(20_000, 100_000, 1.0), 20):
        planned(p, batch)
    remembered = p.snapshot().counters.past
    assert remembered.slots[1::2].sum() > 3 * 16 * 1000  # more than the last batch of 1000, in sixteenths
    exchange([p, Level(16)])
    assert p.snapshot().counters.past.used[0] == remembered.used[0]
    planned(p, 500_000 + streams.zipf(20_000, 100, 1.5))
    assert p.snapshot().counters.past.slots[1::2].sum() == 16 * 20_000


@pytest.mark.parametrize("p", [cls(4) for cls in (Kip, Level, Prompt, Scan, Redist, Readj, Mixed, Auto)], ids=str)
def test_plans_from_nothing_from_little_and_from_a_table_of_other_workers(p: Planner) -> None:
    old = RoutingTable.hashed(4)
    none = np.empty(0, np.uint64)
    assert p.plan(Histogram(none, np.empty(0), rest=5.0), old).keys.size == 0
    alone = Histogram(np.array([7], np.uint64), np.array([3.0]))
    for other in (RoutingTable.hashed(64), RoutingTable.hashed(1), old):
        table = p.plan(alone, other)
        assert table.n_workers == 4
        assert set(table.route(np.array([7], np.uint64)).tolist()) <= set(range(4))
    for wrong in (0.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="counts of more than 0"):
            p.plan(Histogram(np.array([7, 8], np.uint64), np.array([3.0, wrong])), old)


def test_a_plan_that_is_not_worth_it_is_not_adopted_and_not_in_the_table() -> None:
    keys = streams.zipf(50_000, 1000, 1.2)
    for p in (Kip(16, moving=Moving(cost=1e9)), Level(16, moving=Moving(cost=1e9))):
        planned(p, keys)
        assert p.table().keys.size == 0
        assert np.array_equal(p.table().hosts, RoutingTable.hashed(16).hosts)
        assert p.table().version == 1
    for p in (Kip(16, moving=Moving()), Level(16, moving=Moving())):
        planned(p, keys)
        assert p.table().keys.size > 0


def test_speeds_count_when_a_plan_is_weighed() -> None:
    m = planned(Level(4, speeds=(1, 1, 0.5, 2), moving=Moving()), streams.zipf(200_000, 10_000, 0.5))
    assert m.load / m.load.sum() == pytest.approx([0.222, 0.222, 0.111, 0.444], abs=0.01)


def test_sources_of_different_age_count_alike() -> None:
    """One has seen ten batches, the other begins: both see half of a batch of which half the tuples are key 42."""
    old, new = (Kip(16) for _ in range(2))
    for batch in np.split(streams.zipf(100_000, 1000, 0.5), 10):
        planned(old, batch)
    keys = streams.zipf(10_000, 1000, 0.5, seed=5)
    old.observe(keys)
    new.observe(np.full(10_000, 42_000, np.uint64))
    seen = new.counted([old.snapshot(), new.snapshot()])
    assert seen.keys[0] == 42_000
    assert seen.counts[0] / seen.total == pytest.approx(0.5, abs=0.02)


def test_the_past_of_an_idle_source_fades() -> None:
    busy, idle = (Kip(16) for _ in range(2))
    idle.observe(np.full(10_000, 42_000, np.uint64))
    for batch in np.split(streams.zipf(400_000, 1000, 0.5), 40):
        busy.observe(batch)
        exchange([busy, idle])
    seen = busy.counted([busy.snapshot(), idle.snapshot()])
    share = dict(zip(seen.keys.tolist(), seen.counts.tolist(), strict=True)).get(42_000, 0.0) / seen.total
    assert share < 0.01


def test_policies_of_other_planners_are_refused() -> None:
    five, eight = Kip(5), Kip(8)
    five.observe(streams.zipf(1000, 100, 1.0))
    with pytest.raises(ValueError, match="not of kip with 8 workers"):
        eight.adopt(five.merge([five.snapshot()]))
    assert np.array_equal(Level(4, key_cost=20).snapshot().rule, Level(4, key_cost=20.0).snapshot().rule)
