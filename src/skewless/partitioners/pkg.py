"""Partial key grouping: sends each tuple to the least loaded of its key's few candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import NO_TIMES, Keys, Times, Workers, checked
from skewless.kernels import kernel
from skewless.kernels.hash import Hasher, candidates, first, following, hasher, mixed, stride
from skewless.partitioner import Partitioner


class Balanced(NamedTuple):
    """State of PKG."""

    hasher: Hasher
    choices: NDArray[np.int64]
    load: NDArray[np.int64]  # this source's estimate: its own tuples and `others`
    others: NDArray[np.int64]  # tuples of other sources, as of the last probe


class Loads(NamedTuple):
    """A policy: the true load of each worker, as periodic probing would measure it."""

    load: NDArray[np.int64]


class _Loaded(Protocol):
    @property
    def load(self) -> NDArray[np.int64]: ...
    @property
    def others(self) -> NDArray[np.int64]: ...


def sent(snapshots: Sequence[_Loaded]) -> NDArray[np.int64]:
    """Returns how many tuples all sources together sent to each worker."""
    total: NDArray[np.int64] = np.stack([snapshot.load - snapshot.others for snapshot in snapshots]).sum(axis=0)
    return total


def probe(state: _Loaded, policy: Any, kind: type, reported: _Loaded | None) -> None:
    """Corrects the load estimate of a source by the true loads: what it did not send itself came from others.

    reported: the state of the source when the loads were summed; None: its present state.
    """
    load = getattr(policy, "load", None) if type(policy) is kind else None
    fits = isinstance(load, np.ndarray) and load.dtype == np.int64 and load.shape == state.load.shape
    require(fits, f"this policy is not a {kind.__name__} of {state.load.size} workers")
    own = sent([state])
    state.others[:] = policy.load - (own if reported is None else sent([reported]))
    state.load[:] = own + state.others


@dataclass(eq=False)
class Pkg(Partitioner[Balanced, Loads]):
    """Partial key grouping, PKG's Greedy-d: the least loaded of the key's d candidates (sections III and IV).

    A key is split over at most `choices` workers, and no key is stored. Each source counts only what it sent itself: if
    every source balances its own tuples, the sum is balanced (local load estimation).

    choices: candidates per key, at most n_workers of them. 1 is hashing; 2 is the paper's; more help the hottest keys.

    >>> import numpy as np, skewless
    >>> p = skewless.partitioner("pkg", 4)
    >>> p.candidates(np.array([7], np.uint64)).tolist()
    [[3, 0]]
    >>> p.route(np.array([7, 7, 7, 7, 8], np.uint64)).tolist()
    [3, 0, 3, 0, 1]

    Nasir, De Francisci Morales, Garcia-Soriano, Kourtellis, Serafini: The power of both choices. ICDE 2015.

    Departures from the paper: the candidates of a key are distinct (where they coincide, with probability 1/n, the
    key is not split at all), and ties go to the first. `merge` sums what the sources sent, and `adopt` uses the sum as
    the load: this is the paper's periodic probing, which the authors conclude is not needed.
    """

    name: ClassVar[str] = "pkg"
    splits_keys: ClassVar[bool] = True

    choices: int = 2

    def __post_init__(self) -> None:
        self.choices = whole("choices", self.choices, 1)
        super().__post_init__()

    def fresh(self) -> Balanced:
        return Balanced(
            hasher=hasher(self.n_workers, self.seed),
            choices=np.array([min(self.choices, self.n_workers)], np.int64),
            load=np.zeros(self.n_workers, np.int64),
            others=np.zeros(self.n_workers, np.int64),
        )

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        self.run(_pkg, keys, NO_TIMES, workers)

    def merge(self, snapshots: Sequence[Balanced]) -> Loads:
        return Loads(sent(snapshots))

    def adopt(self, policy: Loads, reported: Balanced | None = None) -> None:
        probe(self._state, policy, Loads, reported)

    def candidates(self, keys: Keys) -> NDArray[np.int32]:
        return candidates(self._state.hasher, checked(keys)[0], self.choices)


@kernel
def least_loaded(h: Hasher, load: NDArray[np.int64], x: np.uint64, choices: int) -> np.uint64:
    """Returns P_t(k) = argmin L_i(t) over the candidates of k (PKG section IV), the first of them on ties."""
    best = first(h, x)
    candidate, start, step, least = best, best, stride(h, x), load[best]
    for _ in range(1, choices):
        candidate, start = following(h, candidate, start, step)
        # A conditional move, not a branch: which candidate wins cannot be predicted (9 ns a tuple become 5).
        best = candidate if load[candidate] < least else best
        least = min(load[candidate], least)
    return best


@kernel
def _pkg(s: Balanced, keys: Keys, times: Times, workers: Workers, start: int) -> int:
    for i in range(start, keys.size):
        worker = least_loaded(s.hasher, s.load, mixed(s.hasher, keys[i]), s.choices[0])
        s.load[worker] += 1
        workers[i] = worker
    return keys.size
