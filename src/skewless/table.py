"""RoutingTable: what a partitioner has learned, in a form that Spark evaluates natively."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, require_format
from skewless.arrays import MOST_WORKERS, Keys, Workers, check_numbers, checked, numbers_in
from skewless.division import aligned, dealt, in_order, redealt
from skewless.filesystem import resolve, write_atomically
from skewless.kernels import hashtable
from skewless.kernels.position import hosts_at, key_positions
from skewless.kernels.routing import WHOLE, Lookup, aliases, route

FORMAT = 2
HOSTS_PER_WORKER = 64
HOT = 10  # a key is worth an entry of its own when its share is above 1 / (10 n)


@dataclass(frozen=True, eq=False)
class RoutingTable:
    """Hot keys with the workers that share them, and hosts, which are hash buckets, for all other keys.

    The host of a tail key is the leading bits of its position. Each row of a split hot key goes to one of its workers
    at random, by the hash of the row's ordinal (the ordinal itself would not spread periodic data). So routing is a
    function of (row, table), the same in Python and in Spark.

    n_workers: the number of workers.
    hosts: the worker of each host.
    keys, starts, workers, parts: the hot keys, ascending, and their fragments: keys[i] is shared by
        workers[starts[i]:starts[i + 1]], each of which gets its part of WHOLE.
    version: the version of the policy that the table comes from.

    >>> import numpy as np
    >>> keys, workers = np.array([7, 7, 7, 7, 8], np.uint64), np.array([0, 1, 1, 1, 0], np.int32)
    >>> table = RoutingTable.distill(keys, workers, 2)
    >>> table.shares(7), table.splits_keys
    ({0: 0.25, 1: 0.75}, True)
    >>> table.route(keys).tolist(), table.main_workers(keys).tolist()
    ([1, 1, 1, 1, 0], [1, 1, 1, 1, 0])
    >>> table.loads(np.array([7, 8], np.uint64), np.array([4.0, 1.0])).tolist()
    [2.0, 3.0]
    >>> RoutingTable.from_json(table.to_json()).shares(7)
    {0: 0.25, 1: 0.75}
    """

    n_workers: int
    hosts: NDArray[np.int32]  # a power of two of them, at least 64 per worker
    keys: Keys
    starts: NDArray[np.int64]
    workers: NDArray[np.int32]
    parts: NDArray[np.int64]
    version: int = 0

    def __post_init__(self) -> None:
        n, size = self.n_workers, self.hosts.size
        require(1 <= n <= MOST_WORKERS, f"n_workers is between 1 and {MOST_WORKERS}, not {n}")
        require(size & (size - 1) == 0, f"the number of hosts is a power of two, not {size}")
        require(size >= HOSTS_PER_WORKER * n, f"{n} workers need at least {HOSTS_PER_WORKER * n} hosts, not {size}")
        require(bool(np.all(self.keys[1:] > self.keys[:-1])), "the hot keys of a table are ascending and distinct")
        lengths = np.diff(self.starts)
        require(
            self.starts.size == self.keys.size + 1 and self.starts[0] == 0,
            "starts begins with 0 and has one entry more than keys",
        )
        require(bool(np.all(lengths >= 1)) and self.starts[-1] == self.workers.size, "every hot key has a worker")
        for numbers in (self.hosts, self.workers):
            check_numbers("the workers of a table", numbers, n)
        sums = np.add.reduceat(self.parts, self.starts[:-1]) if self.keys.size else np.empty(0, np.int64)
        of_key = np.repeat(np.arange(self.keys.size), lengths)
        pairs = np.unique(of_key * n + self.workers)
        require(pairs.size == self.workers.size, "the workers of a hot key are distinct")
        require(bool(np.all(self.parts > 0)) and bool(np.all(sums == WHOLE)), f"the parts of a key sum to {WHOLE}")

    @classmethod
    def hashed(cls, n_workers: int) -> Self:
        """Returns the table of plain hashing for n_workers: no hot keys, and about equally many hosts for each worker.

        >>> RoutingTable.hashed(4).route(np.arange(8, dtype=np.uint64)).tolist()
        [0, 1, 3, 0, 2, 3, 1, 2]
        """
        require(n_workers >= 1, f"n_workers is at least 1, not {n_workers}")
        size = 1 << (HOSTS_PER_WORKER * n_workers - 1).bit_length()
        none = np.empty(0, np.int64)
        hosts = (np.arange(size, dtype=np.int64) * n_workers // size).astype(np.int32)
        return cls(n_workers, hosts, none.astype(np.uint64), np.zeros(1, np.int64), none.astype(np.int32), none)

    def with_hot_keys(
        self, keys: Keys, starts: NDArray[np.int64], workers: Workers, weights: NDArray[np.float64]
    ) -> Self:
        """Returns a table with the same hosts and these hot keys.

        keys[i] is shared by workers[starts[i]:starts[i + 1]] in proportion to their weights.

        >>> hot = np.array([7], np.uint64), np.array([0, 2]), np.array([0, 1], np.int32), np.array([1.0, 3.0])
        >>> RoutingTable.hashed(2).with_hot_keys(*hot).shares(7)
        {0: 0.25, 1: 0.75}
        """
        order = np.argsort(keys)
        starts, workers, parts = in_order(order, starts, workers, weights)
        return replace(self, keys=keys[order], starts=starts, workers=workers, parts=parts)

    @classmethod
    def distill(cls, keys: Keys, workers: Workers, n_workers: int) -> Self:
        """Returns a table that imitates what a partitioner did with a sample of tuples.

        Keys with a share above 1 / (10 n) keep their workers, in proportion to the tuples of each. The hosts of all
        other keys are dealt out so that each worker gets the load that it had from them.

        keys, workers: the sample, and the worker of each of its tuples. n_workers: the number of workers.
        """
        keys, _ = checked(keys, None)
        require(keys.size == workers.size, f"every key has a worker: {keys.size} keys came with {workers.size} workers")
        plain = cls.hashed(n_workers)
        check_numbers("workers", workers, n_workers)
        distinct, number, counts = np.unique(keys, return_inverse=True, return_counts=True)
        hot = counts * HOT * n_workers > keys.size
        of_hot = hot[number]
        pairs, weights = np.unique(number[of_hot] * n_workers + workers[of_hot], return_counts=True)
        tail = ~of_hot
        # Keys seen once stand for keys not seen at all (Good-Turing): spread their share evenly over all hosts.
        unseen = ((counts == 1).sum() + 1) / (keys.size + 1)
        seen = np.bincount(plain.host_of(keys[tail]), minlength=plain.hosts.size)
        mass = (1 - unseen) * seen + unseen * tail.sum() / plain.hosts.size
        load = np.bincount(workers[tail], minlength=n_workers).astype(np.float64)
        hosts = dealt(mass, load) if tail.any() else plain.hosts
        starts = np.searchsorted(pairs, np.append(np.flatnonzero(hot), distinct.size) * n_workers)
        return replace(plain, hosts=hosts).with_hot_keys(
            distinct[hot], starts, (pairs % n_workers).astype(np.int32), weights.astype(np.float64)
        )

    def condensed(self, keys: Keys, counts: NDArray[np.float64]) -> Self:
        """Returns a table whose hot keys are only those with more than 1 / (10 n) of the counts.

        The hosts are dealt out anew, so that each worker keeps the load of its other keys.

        keys, counts: how often each key occurs.

        >>> table = RoutingTable.distill(np.array([7, 7, 8], np.uint64), np.array([0, 1, 1], np.int32), 2)
        >>> table.condensed(np.array([7, 8], np.uint64), np.array([100.0, 1.0])).keys.tolist()
        [7]
        """
        hot = counts * HOT * self.n_workers > counts.sum()
        tail, sizes = keys[~hot], counts[~hot]
        if tail.size == 0:
            return self
        load = np.bincount(self.main_workers(tail), sizes, minlength=self.n_workers).astype(np.float64)
        plain = self.hashed(self.n_workers)
        # Hosts without a key get a small weight, or they would all go to one worker.
        mass = np.bincount(plain.host_of(tail), sizes, plain.hosts.size) + 1e-6 * sizes.sum() / plain.hosts.size
        stays = np.isin(self.keys, keys[hot])
        fragments = np.repeat(stays, np.diff(self.starts))
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.diff(self.starts)[stays])))
        return replace(plain, hosts=dealt(mass, load), version=self.version).with_hot_keys(
            self.keys[stays], starts, self.workers[fragments], self.parts[fragments].astype(np.float64)
        )

    def host_of(self, keys: Keys) -> NDArray[np.int64]:
        """Returns the host of each of the keys, by which it is routed unless it is hot.

        >>> RoutingTable.hashed(2).host_of(np.array([7, 8], np.uint64)).tolist()
        [86, 7]
        """
        return hosts_at(key_positions(keys), self.hosts.size)

    def spread(self, mass: float) -> NDArray[np.float64]:
        """Returns the load of each worker from a mass that is spread evenly over all hosts.

        >>> RoutingTable.hashed(2).spread(10.0).tolist()
        [5.0, 5.0]
        """
        share: NDArray[np.float64] = np.bincount(self.hosts, minlength=self.n_workers) / self.hosts.size
        return mass * share

    def loads(self, keys: Keys, counts: NDArray[np.float64], rest: float = 0.0) -> NDArray[np.float64]:
        """Returns the load of each worker.

        keys, counts: how often each key occurs. rest: tuples of other keys, spread evenly over all hosts.
        """
        number, hot = numbers_in(self.keys, keys)
        load = self.spread(rest) + np.bincount(self.hosts[self.host_of(keys[~hot])], counts[~hot], self.n_workers)
        sizes = np.bincount(number[hot], counts[hot], self.keys.size)
        pieces = np.repeat(sizes, np.diff(self.starts)) * self.parts / WHOLE
        return np.asarray(load + np.bincount(self.workers, pieces, self.n_workers))

    def route(self, keys: Keys, ordinals: Keys | None = None) -> Workers:
        """Returns the worker of each row.

        keys: the hash of each row's key. ordinals: the number of each row; by default its index.
        """
        keys, _ = checked(keys, None)
        if ordinals is None:
            ordinals = np.arange(keys.size, dtype=np.uint64)
        ordinals, _ = checked(ordinals, None)
        require(ordinals.size == keys.size, f"every row has an ordinal: {keys.size} rows, {ordinals.size} ordinals")
        out = np.empty(keys.size, np.int32)
        route(self._lookup, keys, ordinals, out)
        return out

    @cached_property
    def alias(self) -> tuple[NDArray[np.int64], Workers]:
        """The columns of Walker's alias method, one for each fragment: a bound and a second worker.

        A row of a hot key draws one of its fragments, and a coin below WHOLE. Coins below the bound send it to the
        worker of the fragment, others to the second worker.
        """
        return aliases(self.starts, self.workers, self.parts)

    @cached_property
    def _lookup(self) -> Lookup:
        accept, second = self.alias
        numbers = hashtable.filled(key_positions(self.keys), np.arange(1, self.keys.size + 1, dtype=np.uint64))
        return Lookup(
            hosts=self.hosts, keys=numbers, starts=self.starts, workers=self.workers, aliases=second, accept=accept
        )

    @property
    def splits_keys(self) -> bool:
        """Whether any key has several workers."""
        return self.workers.size > self.keys.size

    def shares(self, key: int) -> dict[int, float]:
        """Returns the workers of a key, with the share of each.

        >>> keys, workers = np.array([7, 7, 7, 7], np.uint64), np.array([0, 1, 1, 1], np.int32)
        >>> RoutingTable.distill(keys, workers, 2).shares(7)
        {0: 0.25, 1: 0.75}
        """
        at = int(np.searchsorted(self.keys, np.uint64(key)))
        if at < self.keys.size and int(self.keys[at]) == key:
            fragments = slice(self.starts[at], self.starts[at + 1])
            pairs = zip(self.workers[fragments], self.parts[fragments], strict=True)
            return {int(worker): int(part) / WHOLE for worker, part in pairs}
        return {int(self.hosts[self.host_of(np.array([key], np.uint64))[0]]): 1.0}

    def main_workers(self, keys: Keys) -> Workers:
        """Returns the worker of each of the keys; of a split key, the first of those with the largest part."""
        workers = self.hosts[self.host_of(keys)]
        number, hot = numbers_in(self.keys, keys)
        of_key = np.repeat(np.arange(self.keys.size), np.diff(self.starts))
        largest_first = np.lexsort((-self.parts, of_key))
        workers[hot] = self.workers[largest_first[self.starts[number[hot]]]]
        return workers

    places, places_of, placing = shares, main_workers, with_hot_keys  # the former names

    def resized(self, n_workers: int) -> Self:
        """Returns a table for another number of workers that moves few keys.

        Each worker gives the same part of its hosts to added workers; hosts of removed workers are dealt out evenly.
        A hot key stays on those of its workers that remain; if none does, it goes to the worker of its host. Giving
        added workers a part of hot keys is left to partitioners.

        >>> RoutingTable.hashed(2).resized(4).n_workers
        4
        """
        if n_workers == self.n_workers:
            return self
        plain = self.hashed(n_workers)
        own_hosts, _ = aligned(self.hosts, plain.hosts)
        hosts = redealt(own_hosts, self.n_workers, n_workers)
        of_key = np.repeat(np.arange(self.keys.size), np.diff(self.starts))
        stays = self.workers < n_workers
        homeless = np.bincount(of_key[stays], minlength=self.keys.size) == 0
        selected = stays.copy()
        selected[self.starts[:-1][homeless]] = True
        bare = replace(plain, hosts=hosts, version=self.version)
        at_home = hosts[bare.host_of(self.keys)][of_key]
        lengths = np.bincount(of_key[selected], minlength=self.keys.size)
        starts, workers = np.append(0, np.cumsum(lengths)), np.where(stays, self.workers, at_home)[selected]
        return bare.with_hot_keys(self.keys, starts, workers, self.parts[selected].astype(np.float64))

    def save(self, path: str | Path) -> None:
        """Writes the table to a JSON file, atomically.

        path: the file; a file of this name is replaced.
        """
        write_atomically(*resolve(str(Path(path).absolute())), self.to_json().encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a table that `save` wrote.

        path: the file.

        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as directory:
        ...     RoutingTable.hashed(2).save(f"{directory}/table.json")
        ...     RoutingTable.load(f"{directory}/table.json").n_workers
        2
        """
        return cls.from_json(Path(path).read_text())

    def to_json(self) -> str:
        """Returns the table as JSON text."""
        content: dict[str, Any] = {"format": FORMAT, "n_workers": self.n_workers, "version": self.version}
        for name, dtype in _ARRAYS.items():
            # Many JSON readers parse numbers as doubles, which cannot hold a 64-bit hash: write these as strings.
            values = getattr(self, name).tolist()
            content[name] = [str(value) for value in values] if dtype is np.uint64 else values
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Returns the table of a text that `to_json` wrote."""
        try:
            content = json.loads(text)
            version = content["format"]
        except (ValueError, TypeError, KeyError):
            raise ValueError("this is not a routing table: no JSON object with a format") from None
        require_format("this routing table", version, FORMAT)
        lacking = [name for name in ("n_workers", "version", *_ARRAYS) if name not in content]
        require(not lacking, f"this routing table lacks {', '.join(lacking)}")
        arrays = {name: np.array([int(v) for v in content[name]], dtype) for name, dtype in _ARRAYS.items()}
        return cls(content["n_workers"], version=content["version"], **arrays)

    def describe(self, most: int = 10) -> str:
        """Returns a summary for people: its size, and the workers of its first hot keys.

        most: how many hot keys to list.

        >>> print(RoutingTable.hashed(2).describe())
        routing table 0: 2 workers, 128 hosts, 0 hot keys in 0 fragments
        hosts of a worker: 1.00 to 1.00 of the mean
        """
        shares = np.bincount(self.hosts, minlength=self.n_workers) / self.hosts.size * self.n_workers
        lines = [
            f"routing table {self.version}: {self.n_workers:,} workers, {self.hosts.size:,} hosts, "
            f"{self.keys.size:,} hot keys in {self.workers.size:,} fragments",
            f"hosts of a worker: {shares.min():.2f} to {shares.max():.2f} of the mean",
        ]
        for number, key in enumerate(self.keys[:most].tolist()):
            where = ", ".join(f"{worker} ({weight:.0%})" for worker, weight in self.shares(key).items())
            lines.append(f"hot key #{number + 1} ({key:016x}): {where}")
        if self.keys.size > most:
            lines.append(f"... and {self.keys.size - most:,} more")
        return "\n".join(lines)


_ARRAYS = {"hosts": np.int32, "keys": np.uint64, "starts": np.int64, "workers": np.int32, "parts": np.int64}
