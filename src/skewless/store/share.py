"""The keys of a worker: whole hosts, and hot keys as exceptions to their host."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require
from skewless.arrays import numbers_in
from skewless.division import aligned
from skewless.kernels.position import hosts_at, key_positions
from skewless.table import RoutingTable

Positions = NDArray[np.uint64]  # of keys, see `kernels.position`: the leading bits are the host


@dataclass(frozen=True, eq=False)
class Share:
    """A set of keys: all keys of some hosts, and hot keys, which are in or out whatever their host.

    Shares with different numbers of hosts can be combined: a host is the leading bits of a position, so host i of H is
    the hosts 2 i and 2 i + 1 of 2 H. The keys that move when a table changes are the difference of two shares, which is
    a share again.
    """

    hosts: NDArray[np.bool_]  # which hosts are in; their number is a power of two
    hot: Positions  # ascending
    owned: NDArray[np.bool_]  # which of the hot keys are in

    @classmethod
    def of(cls, table: RoutingTable, worker: int) -> Self:
        """Returns the keys that a table sends to a worker."""
        require(
            not table.splits_keys,
            "this table splits keys, but keyed state needs every key on one worker",
        )
        hot = key_positions(table.keys)
        order = np.argsort(hot)
        return cls(table.hosts == worker, hot[order], (table.workers == worker)[order])

    @classmethod
    def whole(cls) -> Self:
        """Returns the share of all keys."""
        return cls(np.array([True]), np.empty(0, np.uint64), np.empty(0, np.bool_))

    @classmethod
    def empty(cls) -> Self:
        """Returns the share of no keys."""
        return cls(np.array([False]), np.empty(0, np.uint64), np.empty(0, np.bool_))

    def has(self, positions: Positions) -> NDArray[np.bool_]:
        """Returns which of these positions are in the share."""
        is_in = self.hosts[hosts_at(positions, self.hosts.size)]
        number, is_hot = numbers_in(self.hot, positions)
        is_in[is_hot] = self.owned[number[is_hot]]
        return is_in

    def units(self, positions: Positions) -> NDArray[np.int64]:
        """Returns the number of the block of each key: its host, or for hot key i, i plus the number of hosts."""
        units = hosts_at(positions, self.hosts.size)
        number, is_hot = numbers_in(self.hot, positions)
        units[is_hot] = self.hosts.size + number[is_hot]
        return units

    def without(self, other: Share) -> Share:
        """Returns the keys that are in this share and not in the other."""
        return self._combined(other, lambda own, others: own & ~others)

    def within(self, other: Share) -> Share:
        """Returns the keys that are in both shares."""
        return self._combined(other, np.logical_and)

    def _combined(self, other: Share, operation: Callable[..., NDArray[np.bool_]]) -> Share:
        hosts = operation(*aligned(self.hosts, other.hosts))
        hot = np.union1d(self.hot, other.hot)
        return Share(hosts, hot, operation(self.has(hot), other.has(hot)))

    @property
    def is_empty(self) -> bool:
        """Whether no key can be in this share."""
        return not (self.hosts.any() or self.owned.any())

    def folded(self, size: int) -> NDArray[np.bool_]:
        """Returns which of `size` hosts may hold keys of this share, hot keys left aside."""
        if size >= self.hosts.size:
            return self.hosts.repeat(size // self.hosts.size)
        return np.asarray(self.hosts.reshape(size, -1).any(axis=1))

    def to_json(self) -> str:
        """Returns the share as JSON text."""
        content = {
            "size": self.hosts.size,
            "hosts": np.packbits(self.hosts).tobytes().hex(),
            "hot": [str(position) for position in self.hot.tolist()],
            "owned": self.owned.astype(int).tolist(),
        }
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Returns the share that `to_json` wrote."""
        content = json.loads(text)
        packed = np.frombuffer(bytes.fromhex(content["hosts"]), np.uint8)
        hosts = np.unpackbits(packed, count=content["size"]).astype(np.bool_)
        hot = np.array([int(position) for position in content["hot"]], np.uint64)
        return cls(hosts, hot, np.array(content["owned"], np.bool_))
