"""Which keys a worker answers for: hosts, and single keys that are an exception to their host."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import require
from skewless.kernels.place import hosts_at, key_places
from skewless.table import RoutingTable

Places = NDArray[np.uint64]  # of keys, by `kernels.place`: the leading bits are the host


@dataclass(frozen=True, eq=False)
class Share:
    """A set of keys, given by hosts, except for hot keys, of which each is in or out by itself.

    Shares are of any number of hosts: a host is the leading bits of a place, so that host i of H is the hosts 2 i and
    2 i + 1 of 2 H. What moves when a table changes is a difference of two shares, and is a share again.
    """

    hosts: NDArray[np.bool_]  # a power of two of them
    hot: Places  # ascending
    owned: NDArray[np.bool_]  # which of the hot keys are in

    @classmethod
    def of(cls, table: RoutingTable, worker: int) -> Self:
        """What a worker answers for under a table."""
        require(not table.splits_keys, "this table splits keys, but the state of a key is whole on one worker")
        hot = key_places(table.keys)
        order = np.argsort(hot)
        return cls(table.hosts == worker, hot[order], (table.workers == worker)[order])

    @classmethod
    def whole(cls, all_keys: bool = True) -> Self:
        """All keys, or none."""
        return cls(np.array([all_keys]), np.empty(0, np.uint64), np.empty(0, np.bool_))

    def has(self, places: Places) -> NDArray[np.bool_]:
        found = self.hosts[hosts_at(places, self.hosts.size)]
        number, is_hot = self._numbers(places)
        found[is_hot] = self.owned[number[is_hot]]
        return found

    def units(self, places: Places) -> NDArray[np.int64]:
        """The unit of each key: its host; for hot key number i, the number of hosts and i."""
        units = hosts_at(places, self.hosts.size)
        number, is_hot = self._numbers(places)
        units[is_hot] = self.hosts.size + number[is_hot]
        return units

    def _numbers(self, places: Places) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        number = np.searchsorted(self.hot, places)
        is_hot = number < self.hot.size
        is_hot[is_hot] = self.hot[number[is_hot]] == places[is_hot]
        return number, is_hot

    def without(self, other: Share) -> Share:
        """The keys that are in this share and not in the other."""
        return self._with(other, lambda mine, others: mine & ~others)

    def within(self, other: Share) -> Share:
        """The keys that are in both."""
        return self._with(other, np.logical_and)

    def _with(self, other: Share, both: Callable[..., NDArray[np.bool_]]) -> Share:
        size = max(self.hosts.size, other.hosts.size)
        hosts = [share.hosts.repeat(size // share.hosts.size) for share in (self, other)]
        hot = np.union1d(self.hot, other.hot)
        return Share(both(*hosts), hot, both(self.has(hot), other.has(hot)))

    @property
    def is_empty(self) -> bool:
        return not (self.hosts.any() or self.owned.any())

    def folded(self, size: int) -> NDArray[np.bool_]:
        """For each of so many hosts: may it hold keys of this share that are not hot ones?"""
        if size >= self.hosts.size:
            return self.hosts.repeat(size // self.hosts.size)
        return np.asarray(self.hosts.reshape(size, -1).any(axis=1))

    def to_json(self) -> str:
        content = {
            "size": self.hosts.size,
            "hosts": np.packbits(self.hosts).tobytes().hex(),
            "hot": [str(place) for place in self.hot.tolist()],
            "owned": self.owned.astype(int).tolist(),
        }
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> Self:
        content = json.loads(text)
        packed = np.frombuffer(bytes.fromhex(content["hosts"]), np.uint8)
        hosts = np.unpackbits(packed, count=content["size"]).astype(np.bool_)
        hot = np.array([int(place) for place in content["hot"]], np.uint64)
        return cls(hosts, hot, np.array(content["owned"], np.bool_))
