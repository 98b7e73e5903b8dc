"""Plans of a single source, for the tests of planners."""

from __future__ import annotations

from skewless import Keys, Metrics, measure
from skewless.cooperation.protocol import exchange
from skewless.planning.planner import Planner


def planned(p: Planner, keys: Keys) -> Metrics:
    p.observe(keys)
    exchange([p])
    return measure(keys, p.route(keys), p.n_workers)
