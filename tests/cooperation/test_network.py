"""Networks with delays, losses and dead sources: what they do to the interval of messages, and to balance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from skewless import partitioner, simulate, streams
from skewless.cooperation.network import Cooperation, Network
from tests.cooperation.counting import Counting


def test_the_interval_stays_short_when_messages_are_lost() -> None:
    for sources, loss in ((4, 0.1), (16, 0.05), (2, 0.3)):
        cooperation = Cooperation(Network(loss=loss), [Counting(1) for _ in range(sources)])
        for now in range(0, 1_000_000, 1000):
            cooperation.advance(now)
        assert cooperation.members[0].interval <= 8000
        assert cooperation.merges > 100


def test_the_interval_follows_the_time_that_merging_takes() -> None:
    """Figure 14b: the interval doubles with the merge time, doubles again, and shrinks when merging is quick again."""
    slow = {0: 6000, 500_000: 12_000, 1_000_000: 24_000, 1_500_000: 6000}
    network = Network(20_000, 1000, merge_time=lambda now: slow[max(at for at in slow if at <= now)])
    sources = [Counting(1) for _ in range(2)]
    cooperation = Cooperation(network, sources)
    seen = dict[int, int]()
    for now in range(0, 2_000_000, 1000):
        for source in sources:
            source.observe(np.zeros(500, np.uint64))
        cooperation.advance(now)
        seen[now] = cooperation.members[0].interval
    steady = [seen[at] for at in (400_000, 900_000, 1_400_000, 1_900_000)]
    assert steady == [10_000, 20_000, 40_000, 10_000]


def test_the_interval_has_a_lower_bound() -> None:
    cooperation = Cooperation(Network(64_000, 1000), [Counting(1)])
    for now in range(0, 1_000_000, 500):
        cooperation.advance(now)
    assert cooperation.members[0].interval == 1000


@pytest.mark.compiled
@pytest.mark.parametrize(
    "network",
    [
        Network(delay=(0, 5000)),
        Network(loss=0.3),
        Network(delay=(500, 20_000), loss=0.2),
        Network(deaths={1: 150_000, 3: 200_000}),
        Network(delay=(0, 3000), loss=0.1, deaths={0: 100_000}),
    ],
    ids=["late", "lost", "late and lost", "dead", "all of it"],
)
@pytest.mark.parametrize(
    ("name", "params"), [("dalton", {"hot": 5, "greedy": True}), ("level", {}), ("kip", {}), ("pkg", {})]
)
def test_a_bad_network_costs_little_balance(name: str, params: dict[str, Any], network: Network) -> None:
    keys = streams.zipf(400_000, 100_000, 1.2)

    def ratio(sync_every: Network) -> float:
        *_, last = simulate(partitioner(name, 16, **params), keys, sources=4, sync_every=sync_every, batch=1000)
        assert last.syncs > 15
        return last.imbalance_ratio

    perfect = ratio(Network())
    assert ratio(network) <= 1.1 * perfect


def test_a_network_is_checked() -> None:
    for wrong in ({"loss": 1.0}, {"delay": (5, 1)}, {"interval": 10, "least": 20}):
        with pytest.raises(ValueError, match=r"not|least"):
            replace(Network(), **wrong)
    with pytest.raises(ValueError, match="dead"):
        list(simulate(partitioner("pkg", 4), streams.uniform(10, 5), sync_every=Network(deaths={0: 0})))
