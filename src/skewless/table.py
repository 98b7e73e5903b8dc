"""A routing table: what a partitioner has learned, in a form that Spark runs natively."""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import MOST_WORKERS, Keys, Workers, checked, require
from skewless.kernels import hashtable, kernel
from skewless.kernels.alias import settle
from skewless.kernels.hash import below, spark_hash
from skewless.kernels.hashtable import Table
from skewless.kernels.place import hosts_at, key_place, key_places

FORMAT = 2
HOSTS_PER_WORKER = 64
WHOLE = 2**32  # the parts of a key sum to this: a 32-bit coin decides
HOT = 10  # a key is worth an entry of its own when its share is above 1 / (10 n)
_0, _1 = np.uint64(0), np.uint64(1)


class _Compiled(NamedTuple):
    """What `route` looks up: two array reads for a tail key, a few more for a hot one."""

    hosts: NDArray[np.int32]
    keys: Table  # the place of a key -> its number + 1
    starts: NDArray[np.int64]
    workers: NDArray[np.int32]
    aliases: NDArray[np.int32]
    accept: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RoutingTable:
    """Hot keys with the workers that share them, and hosts, which are hash buckets, for all other keys.

    The host of a tail key is the leading bits of its place. The row of a hot key throws a coin that is the hash of its
    ordinal, never the ordinal itself, which periodic data would defeat; each worker gets its part of WHOLE. So routing
    is a function of (row, table), the same in Python and in Spark. `version` is that of the policy it comes from.
    """

    n_workers: int
    hosts: NDArray[np.int32]  # a power of two of them, at least 64 a worker
    keys: Keys  # hot, ascending
    starts: NDArray[np.int64]  # the fragments of keys[i] are number starts[i] to starts[i + 1]
    workers: NDArray[np.int32]  # of each fragment
    parts: NDArray[np.int64]  # of each fragment, out of WHOLE
    version: int = 0

    def __post_init__(self) -> None:
        n, size = self.n_workers, self.hosts.size
        require(1 <= n <= MOST_WORKERS, f"n_workers is between 1 and {MOST_WORKERS}, not {n}")
        require(size & (size - 1) == 0, f"the number of hosts is a power of two, not {size}")
        require(size >= HOSTS_PER_WORKER * n, f"{n} workers need at least {HOSTS_PER_WORKER * n} hosts, not {size}")
        require(bool(np.all(self.keys[1:] > self.keys[:-1])), "the hot keys of a table are ascending and distinct")
        lengths = np.diff(self.starts)
        require(self.starts.size == self.keys.size + 1 and self.starts[0] == 0, "starts has one entry a key, and one")
        require(bool(np.all(lengths >= 1)) and self.starts[-1] == self.workers.size, "every hot key has a worker")
        for places in (self.hosts, self.workers):
            within = places.size == 0 or (int(places.min()) >= 0 and int(places.max()) < n)
            require(within, f"the workers of a table are numbered from 0 to {n - 1}")
        sums = np.add.reduceat(self.parts, self.starts[:-1]) if self.keys.size else np.empty(0, np.int64)
        of_key = np.repeat(np.arange(self.keys.size), lengths)
        pairs = np.unique(of_key * n + self.workers)
        require(pairs.size == self.workers.size, "the workers of a hot key are distinct")
        require(bool(np.all(self.parts > 0)) and bool(np.all(sums == WHOLE)), f"the parts of a key sum to {WHOLE}")

    @classmethod
    def hashed(cls, n_workers: int) -> Self:
        """No hot keys, and as many hosts for each worker: plain hashing.

        >>> import numpy as np
        >>> RoutingTable.hashed(4).route(np.arange(8, dtype=np.uint64)).tolist()
        [0, 1, 3, 0, 2, 3, 1, 2]
        """
        require(n_workers >= 1, f"n_workers is at least 1, not {n_workers}")
        size = 1 << (HOSTS_PER_WORKER * n_workers - 1).bit_length()
        none = np.empty(0, np.int64)
        hosts = (np.arange(size, dtype=np.int64) * n_workers // size).astype(np.int32)
        return cls(n_workers, hosts, none.astype(np.uint64), np.zeros(1, np.int64), none.astype(np.int32), none)

    def placing(self, keys: Keys, starts: NDArray[np.int64], workers: Workers, weights: NDArray[np.float64]) -> Self:
        """The same hosts with these hot keys: keys[i] is shared by workers[starts[i]:starts[i + 1]] by weight."""
        order = np.argsort(keys)
        lengths = np.diff(starts)[order]
        ends = np.cumsum(lengths)
        new_starts = np.concatenate((np.zeros(1, np.int64), ends))
        at = np.repeat(starts[:-1][order] - new_starts[:-1], lengths) + np.arange(workers.size)
        parts = _in_parts(weights[at].astype(np.float64), new_starts)
        kept = parts > 0
        counts = np.add.reduceat(kept, new_starts[:-1]) if keys.size else np.empty(0, np.int64)
        return replace(
            self,
            keys=keys[order],
            starts=np.concatenate((np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64))),
            workers=workers[at][kept],
            parts=parts[kept],
        )

    @classmethod
    def distill(cls, keys: Keys, workers: Workers, n_workers: int) -> Self:
        """A table that does what some partitioner did with a sample of tuples: this makes every algorithm native.

        Keys with a share above 1 / (10 n) keep their workers, by the share that each had. The hosts of all others are
        dealt out so that each worker gets the load that it had from such keys.
        """
        keys, _ = checked(keys, None)
        require(keys.size == workers.size, f"every key has a worker: {keys.size} keys came with {workers.size} workers")
        plain = cls.hashed(n_workers)
        within = workers.size == 0 or (int(workers.min()) >= 0 and int(workers.max()) < n_workers)
        require(within, f"workers are numbered from 0 to {n_workers - 1}")
        distinct, number, counts = np.unique(keys, return_inverse=True, return_counts=True)
        hot = counts * HOT * n_workers > keys.size
        of_hot = hot[number]
        pairs, weights = np.unique(number[of_hot] * n_workers + workers[of_hot], return_counts=True)
        tail = ~of_hot
        # What was seen once stands for what was not seen at all: spread that share of the mass over all hosts alike.
        unseen = ((counts == 1).sum() + 1) / (keys.size + 1)
        seen = np.bincount(plain.host_of(keys[tail]), minlength=plain.hosts.size)
        mass = (1 - unseen) * seen + unseen * tail.sum() / plain.hosts.size
        wanted = np.bincount(workers[tail], minlength=n_workers)
        hosts = dealt(mass, wanted.astype(np.float64)) if tail.any() else plain.hosts
        starts = np.searchsorted(pairs, np.append(np.flatnonzero(hot), distinct.size) * n_workers)
        placed = replace(plain, hosts=hosts)
        return placed.placing(distinct[hot], starts, (pairs % n_workers).astype(np.int32), weights.astype(np.float64))

    def condensed(self, keys: Keys, counts: NDArray[np.float64]) -> Self:
        """Places for keys with more than 1 / (10 n) of these counts only; hosts that give workers the rest they had."""
        hot = counts * HOT * self.n_workers > counts.sum()
        tail, sizes = keys[~hot], counts[~hot]
        if tail.size == 0:
            return self
        wanted = np.bincount(self.places_of(tail), sizes, minlength=self.n_workers).astype(np.float64)
        plain = self.hashed(self.n_workers)
        # Hosts without a key weigh a little too, or they would all go to one worker.
        mass = (
            np.bincount(plain.host_of(tail), sizes, minlength=plain.hosts.size) + 1e-6 * sizes.sum() / plain.hosts.size
        )
        kept = np.isin(self.keys, keys[hot])
        of_kept = np.repeat(kept, np.diff(self.starts))
        starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.diff(self.starts)[kept])))
        return replace(plain, hosts=dealt(mass, wanted), version=self.version).placing(
            self.keys[kept], starts, self.workers[of_kept], self.parts[of_kept].astype(np.float64)
        )

    def host_of(self, keys: Keys) -> NDArray[np.int64]:
        """The number of the host that a key belongs to while it is not hot."""
        return hosts_at(key_places(keys), self.hosts.size)

    def spread(self, mass: float) -> NDArray[np.float64]:
        """What each worker gets of a mass that is spread over all hosts alike."""
        share: NDArray[np.float64] = np.bincount(self.hosts, minlength=self.n_workers) / self.hosts.size
        return mass * share

    def loads(self, keys: Keys, counts: NDArray[np.float64], rest: float = 0.0) -> NDArray[np.float64]:
        """What each worker gets of keys that occur so often, and of a rest that is spread over all hosts alike."""
        number, hot = self._numbers(keys)
        load = self.spread(rest) + np.bincount(self.hosts[self.host_of(keys[~hot])], counts[~hot], self.n_workers)
        sizes = np.bincount(number[hot], counts[hot], self.keys.size)
        pieces = np.repeat(sizes, np.diff(self.starts)) * self.parts / WHOLE
        return np.asarray(load + np.bincount(self.workers, pieces, self.n_workers))

    def route(self, keys: Keys, ordinals: Keys | None = None) -> Workers:
        """The worker of each row, by its key and its ordinal (left out: its position)."""
        keys, _ = checked(keys, None)
        if ordinals is None:
            ordinals = np.arange(keys.size, dtype=np.uint64)
        ordinals, _ = checked(ordinals, None)
        require(ordinals.size == keys.size, f"every row has an ordinal: {keys.size} rows, {ordinals.size} ordinals")
        out = np.empty(keys.size, np.int32)
        _route(self._compiled, keys, ordinals, out)
        return out

    @cached_property
    def alias(self) -> tuple[NDArray[np.int64], Workers]:
        """For Walker's method: the coins, out of WHOLE, that keep each fragment's worker; who gets the others."""
        lengths = np.diff(self.starts)
        accept, alias = self.parts * np.repeat(lengths, lengths), np.arange(self.workers.size)
        alias -= np.repeat(self.starts[:-1], lengths)
        _settle(self.starts, accept, alias, np.empty((2, self.workers.size), np.int64))
        return accept, self.workers[alias + np.repeat(self.starts[:-1], lengths)]

    @cached_property
    def _compiled(self) -> _Compiled:
        accept, aliases = self.alias
        numbers = hashtable.filled(key_places(self.keys), np.arange(1, self.keys.size + 1, dtype=np.uint64))
        return _Compiled(self.hosts, numbers, self.starts, self.workers, aliases, accept)

    @property
    def splits_keys(self) -> bool:
        return self.workers.size > self.keys.size

    def places(self, key: int) -> dict[int, float]:
        """The workers of a key, with the weight of each.

        >>> import numpy as np
        >>> keys, workers = np.array([7, 7, 7, 7], np.uint64), np.array([0, 1, 1, 1], np.int32)
        >>> RoutingTable.distill(keys, workers, 2).places(7)
        {0: 0.25, 1: 0.75}
        """
        at = int(np.searchsorted(self.keys, np.uint64(key)))
        if at < self.keys.size and int(self.keys[at]) == key:
            fragments = slice(self.starts[at], self.starts[at + 1])
            pairs = zip(self.workers[fragments], self.parts[fragments], strict=True)
            return {int(worker): int(part) / WHOLE for worker, part in pairs}
        return {int(self.hosts[self.host_of(np.array([key], np.uint64))[0]]): 1.0}

    def places_of(self, keys: Keys) -> Workers:
        """The worker of each key; of a split key, the one with the largest part, the first of them."""
        places = self.hosts[self.host_of(keys)]
        number, hot = self._numbers(keys)
        of_key = np.repeat(np.arange(self.keys.size), np.diff(self.starts))
        largest_first = np.lexsort((-self.parts, of_key))
        places[hot] = self.workers[largest_first[self.starts[number[hot]]]]
        return places

    def _numbers(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The number of each key among the hot ones, and whether it is one of them."""
        number = np.searchsorted(self.keys, keys)
        hot = number < self.keys.size
        hot[hot] = self.keys[number[hot]] == keys[hot]
        return number, hot

    def resized(self, n_workers: int) -> Self:
        """The same table for more or fewer workers, with little placed elsewhere.

        Each worker gives the same part of its hosts to new ones; the hosts of workers that go are dealt out evenly. A
        worker gets hosts of as few others as can be. A hot key stays where it is, as far as its workers stay; if none
        does, it goes where its host is. Placing hot keys on new workers is the business of a partitioner.
        """
        if n_workers == self.n_workers:
            return self
        plain = self.hashed(n_workers)
        size = max(self.hosts.size, plain.hosts.size)
        hosts = _redealt(self.hosts.repeat(size // self.hosts.size), self.n_workers, n_workers)
        of_key = np.repeat(np.arange(self.keys.size), np.diff(self.starts))
        stays = self.workers < n_workers
        homeless = np.bincount(of_key[stays], minlength=self.keys.size) == 0
        kept = stays.copy()
        kept[self.starts[:-1][homeless]] = True
        bare = replace(plain, hosts=hosts, version=self.version)
        at_home = hosts[bare.host_of(self.keys)][of_key]
        lengths = np.bincount(of_key[kept], minlength=self.keys.size)
        return bare.placing(
            self.keys,
            np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths))),
            np.where(stays, self.workers, at_home)[kept],
            self.parts[kept].astype(np.float64),
        )

    def save(self, path: str | Path) -> None:
        """Write it as JSON, whole or not at all."""
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(self.to_json())
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        return cls.from_json(Path(path).read_text())

    def to_json(self) -> str:
        content: dict[str, Any] = {"format": FORMAT, "n_workers": self.n_workers, "version": self.version}
        for name, dtype in _ARRAYS.items():
            # JSON's numbers are doubles to many readers, and key hashes are longer: they are written as words.
            values = getattr(self, name).tolist()
            content[name] = [str(value) for value in values] if dtype is np.uint64 else values
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            content = json.loads(text)
            known = content["format"]
        except (ValueError, TypeError, KeyError):
            raise ValueError("this is not a routing table: no JSON object with a format") from None
        require(known == FORMAT, f"this routing table has format {known}; this version of skewless reads {FORMAT}")
        lacking = [name for name in ("n_workers", "version", *_ARRAYS) if name not in content]
        require(not lacking, f"this routing table lacks {', '.join(lacking)}")
        arrays = {name: np.array([int(v) for v in content[name]], dtype) for name, dtype in _ARRAYS.items()}
        return cls(content["n_workers"], version=content["version"], **arrays)

    def describe(self, most: int = 10) -> str:
        """For people: how much it holds, and where the first of its hot keys go."""
        shares = np.bincount(self.hosts, minlength=self.n_workers) / self.hosts.size * self.n_workers
        lines = [
            f"routing table {self.version}: {self.n_workers:,} workers, {self.hosts.size:,} hosts, "
            f"{self.keys.size:,} hot keys in {self.workers.size:,} fragments",
            f"hosts of a worker: {shares.min():.2f} to {shares.max():.2f} of the mean",
        ]
        for number, key in enumerate(self.keys[:most].tolist()):
            where = ", ".join(f"{worker} ({weight:.0%})" for worker, weight in self.places(key).items())
            lines.append(f"hot key #{number + 1} ({key:016x}): {where}")
        if self.keys.size > most:
            lines.append(f"... and {self.keys.size - most:,} more")
        return "\n".join(lines)


_ARRAYS = {"hosts": np.int32, "keys": np.uint64, "starts": np.int64, "workers": np.int32, "parts": np.int64}


def dealt(mass: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.int32]:
    """Deal hosts out so that each worker gets about the mass it wants: heaviest first, to who lacks most."""
    scaled = wanted * (mass.sum() / wanted.sum())
    lacking = [(-float(want), worker) for worker, want in enumerate(scaled)]
    heapq.heapify(lacking)
    hosts = np.empty(mass.size, np.int32)
    for host in np.argsort(-mass, kind="stable"):
        lack, worker = lacking[0]
        hosts[host] = worker
        heapq.heapreplace(lacking, (lack + float(mass[host]), worker))
    return hosts


def _redealt(hosts: NDArray[np.int32], old: int, new: int) -> NDArray[np.int32]:
    """The hosts for another number of workers: from each an equal part for those who come, or from those who go to all.

    A worker gets what it gets from as few others as can be: it has to read their files, if the hosts have state. What
    lies together, such as hosts that were one, stays together where it can.
    """
    hosts = hosts.copy()
    if new < old:
        free = np.flatnonzero(hosts >= new)
        free = free[np.argsort(hosts[free], kind="stable")]
        hosts[free] = np.arange(free.size) * new // max(free.size, 1)
    else:
        of_each = [np.flatnonzero(hosts == worker) for worker in range(old)]
        free = np.concatenate([own[round(own.size * old / new) :] for own in of_each])
        hosts[free] = old + np.arange(free.size) * (new - old) // max(free.size, 1)
    return hosts


def _in_parts(weights: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Weights as whole parts that sum to WHOLE for each key; what rounding leaves goes to the first of the heaviest."""
    if starts.size == 1:
        return np.empty(0, np.int64)
    totals = np.repeat(np.add.reduceat(weights, starts[:-1]), np.diff(starts))
    parts: NDArray[np.int64] = np.floor(weights / totals * WHOLE).astype(np.int64)
    missing = WHOLE - np.add.reduceat(parts, starts[:-1])
    alone = np.diff(starts) == 1
    parts[starts[:-1][alone]] = WHOLE
    for start, end, rest in zip(starts[:-1][~alone], starts[1:][~alone], missing[~alone], strict=True):
        parts[start + int(np.argmax(weights[start:end]))] += rest
    return parts


@kernel
def _route(t: _Compiled, keys: Keys, ordinals: Keys, out: Workers) -> None:
    size = np.uint64(t.hosts.size)
    for i in range(keys.size):
        place = key_place(keys[i])
        number = t.keys.slots[hashtable.find(t.keys, place) + _1]
        if number == _0:
            out[i] = t.hosts[below(place, size)]
        else:
            start, end = t.starts[number - _1], t.starts[number]
            coin = spark_hash(ordinals[i])
            column = start + np.int64(below(coin, np.uint64(end - start)))
            mine = np.int64(coin & np.uint64(WHOLE - 1)) < t.accept[column]
            out[i] = t.workers[column] if mine else t.aliases[column]


@kernel
def _settle(
    starts: NDArray[np.int64], accept: NDArray[np.int64], alias: NDArray[np.int64], stacks: NDArray[np.int64]
) -> None:
    """The columns of each key, by themselves."""
    for key in range(starts.size - 1):
        columns = slice(starts[key], starts[key + 1])
        settle(accept[columns], alias[columns], WHOLE, stacks)
