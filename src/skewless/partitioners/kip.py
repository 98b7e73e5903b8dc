"""KIP, the key isolator partitioner of Dynamic Repartitioning: it assigns heavy keys one by one, the rest by hosts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.histogram import Histogram
from skewless.kernels import kernel
from skewless.kernels.fit import emptiest
from skewless.migration import Moving
from skewless.planning.planner import Planner
from skewless.table import RoutingTable

MOVING = Moving()  # as costly as processing, for a plan that serves ten batches


@dataclass(eq=False)
class Kip(Planner):
    """KIP: whole keys; a heavy key stays if there is room, else goes to its hash worker, else to the least loaded.

    No worker should get more than an even part, or the heaviest key if that is more, plus a little slack. Heavy keys
    come first; then hosts, which carry all other keys, leave the workers that are too full. Nothing else moves.

    heavy: keys assigned one by one, per worker (lambda).
    slack: how much above the least possible load a worker may be (epsilon), as a part of that load.
    moving: what it costs to move keys; a plan that gains less over the coming batches gives way to the table in force.
    memory: as for every planner (`skewless.planning.planner.Planner`).

    >>> import skewless
    >>> keys = skewless.streams.zipf(100_000, keys=10_000, exponent=1.0)
    >>> p = skewless.partitioner("kip", 16)
    >>> p.observe(keys)
    >>> p.adopt(p.merge([p.snapshot()]))
    >>> for name, workers in (("hash", skewless.partitioner("hash", 16).route(keys)), ("kip", p.route(keys))):
    ...     print(name, round(skewless.measure(keys, workers, 16).imbalance_ratio, 2))
    hash 2.37
    kip 1.63

    Zvara, Szabo, Lorant, Benczur: System-aware dynamic partitioning for batch and streaming workloads (Dynamic
    Repartitioning).

    Departures from the paper: there are at least 64 hosts a worker, and they weigh what was counted in them, not an
    average; those that must leave go to the worker with the least load, not to the first with room, which would fill
    it to the brim. The slack is a part of the load, not of all tuples: 0.001 of all is more than a worker's whole load
    when there are a thousand. The authors' code plans anew when a worker has a hundredth of all tuples too much; here
    a plan must be worth what it moves.
    """

    name: ClassVar[str] = "kip"
    splits_keys: ClassVar[bool] = False
    averages: ClassVar[bool] = True

    heavy: int = 2
    slack: float = 0.001
    moving: Moving | None = MOVING

    def __post_init__(self) -> None:
        self.heavy = whole("heavy", self.heavy, 1, 1000)
        require(0 <= self.slack <= 1, f"slack is between 0 and 1, not {self.slack}")
        super().__post_init__()

    def make_table(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        n_heavy = min(self.heavy * self.n_workers, histogram.keys.size)
        keys, shares = histogram.keys[:n_heavy], histogram.counts / histogram.total
        host_shares = histogram.by_host(old, n_heavy) / histogram.total
        hashed = old.hosts[old.host_of(keys)]
        workers, hosts = old.main_workers(keys), old.hosts.copy()
        most = max(1 / self.n_workers, float(shares[0])) * (1 + self.slack)
        update(shares[:n_heavy], hashed, workers, host_shares, hosts, np.zeros(self.n_workers), most)
        return replace(old, hosts=hosts).with_hot_keys(keys, np.arange(n_heavy + 1), workers, np.ones(n_heavy))


@kernel
def update(
    shares: NDArray[np.float64],
    hashed: NDArray[np.int32],
    workers: NDArray[np.int32],
    host_shares: NDArray[np.float64],
    hosts: NDArray[np.int32],
    load: NDArray[np.float64],
    most: float,
) -> None:
    """Updates the workers of heavy keys and of hosts (algorithm 1, KIPUPDATE); `load` is 0 at first."""
    for key in range(shares.size):  # l. 3
        if load[workers[key]] + shares[key] > most:  # l. 4, 5: where it was
            workers[key] = hashed[key]
            if load[workers[key]] + shares[key] > most:  # l. 7, 8: where it would be if it were not heavy
                workers[key] = emptiest(load)  # l. 10
        load[workers[key]] += shares[key]
    for host in range(hosts.size):  # l. 11 to 13
        load[hosts[host]] += host_shares[host]
    for host in range(hosts.size):  # l. 14, 15
        if host_shares[host] > 0.0 and load[hosts[host]] > most:
            least = emptiest(load)
            if load[least] + host_shares[host] < load[hosts[host]]:
                load[hosts[host]] -= host_shares[host]
                load[least] += host_shares[host]
                hosts[host] = least
