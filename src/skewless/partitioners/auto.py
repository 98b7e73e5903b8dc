"""Auto: plans with several partitioners and goes by the one that will cost least; or leaves things as they are."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from skewless.arrays import Keys, copied, require
from skewless.histogram import Histogram
from skewless.moves import arriving
from skewless.partitioner import Partitioner
from skewless.partitioners.baselines import Hash
from skewless.partitioners.choices import DChoices, WChoices
from skewless.partitioners.kip import Kip
from skewless.partitioners.level import Level
from skewless.partitioners.mixed import Mixed
from skewless.partitioners.pkg import Pkg
from skewless.partitioners.planner import Planned, Planner, Policy, as_policy, as_table, precedence
from skewless.partitioners.prompt import Prompt
from skewless.table import RoutingTable

MARGIN = 0.1  # how much less than the one in force another must cost, to take its place
KEEP = 0.97  # what a measured batch weighs against the next one
PRIOR = 0.001  # what the costs given weigh against a measured batch
MOST = 1e15  # tuples of an effort
SAMPLE = 100_000  # tuples that a partitioner without plans is tried on
DECISIONS = 1000  # that are remembered
NEAR = 1e-6  # costs that differ by less are the same
_KNOWN: dict[str, type[Partitioner[Any, Any]]] = {
    cls.name: cls for cls in (Hash, Pkg, DChoices, WChoices, Prompt, Mixed, Kip, Level)
}


class Effort(NamedTuple):
    """What a batch takes: the terms of its cost."""

    worker: float  # tuples on the busiest worker
    reducer: float  # fragments of split keys at the busiest reducer of the second step
    arriving: float  # tuples of keys that are new to the worker with most of these


@dataclass(frozen=True)
class Decision:
    """Which candidate was chosen, and why."""

    chosen: str
    costs: dict[str, float]  # predicted, of each candidate
    weights: Effort  # of the terms: as given, or as measured
    reason: str


@dataclass(eq=False)
class Auto(Planner):
    """Auto: predicts from the histogram what each candidate would cost, and changes to another when it costs less.

    The cost of a batch is that of its longest worker, its longest reducer, if keys are split, and what moves. Their
    weights are fitted to what was measured (`measured`). Another candidate must be a tenth cheaper than the one in
    force, so that noise changes nothing. `decisions` has the reasons.

    among: names of the candidates. The first is in force at the beginning, and stays where nothing is worth a change:
        with "hash" that is to leave it to Spark.
    split: False admits only those that keep keys whole.
    costs: of a tuple on the longest worker, of a fragment at the longest reducer, and of a tuple that arrives at a
        worker where its key was not before, spread over the batches that a plan serves: until something is measured.

    >>> import skewless
    >>> for exponent in (0.2, 1.0):
    ...     p = skewless.partitioner("auto", 16)
    ...     p.observe(skewless.streams.zipf(100_000, keys=10_000, exponent=exponent))
    ...     p.adopt(p.merge([p.snapshot()]))
    ...     print(p.decisions[-1].reason)
    hash stays: 6,402 a batch; level costs 6,269
    level instead of hash: 6,510 a batch, not 15,298

    It is nobody's but ours.
    """

    name: ClassVar[str] = "auto"
    splits_keys: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    among: tuple[str, ...] = ("hash", "level", "kip")
    split: bool = True
    costs: tuple[float, float, float] = (1.0, 1.0, 0.1)
    decisions: list[Decision] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.among if name not in _KNOWN]
        require(not unknown, f"candidates are among {', '.join(_KNOWN)}, not {', '.join(unknown)}")
        require(min(self.costs) >= 0 < self.costs[0], f"costs are 0 or more, and of a tuple more, not {self.costs}")
        self._offers = [self._offer(name) for name in self.among]
        splitting = [offer.name for offer in self._offers if offer.splits_keys]
        require(self.split or not splitting, f"with split=False, no candidate may split keys as {splitting} do")
        require(bool(self._offers), "there is at least 1 candidate")
        require(self.moving is None, "auto weighs moves by its costs: leave moving out")
        super().__post_init__()
        if not splitting:
            self.__dict__["splits_keys"] = False

    def _offer(self, name: str) -> Partitioner[Any, Any]:
        if name == "level":
            return Level(self.n_workers, seed=self.seed, split=self.split, even=self.costs[2] == 0)
        return _KNOWN[name](self.n_workers, seed=self.seed)

    def fresh(self) -> Planned:
        return super().fresh()._replace(memo=np.zeros(_EVIDENCE))

    def place(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        return self.decided(histogram, old)[0]

    def merge(self, snapshots: Sequence[Planned]) -> Policy:
        require(len(snapshots) >= 1, "merge needs at least 1 snapshot")
        last = max((snapshot.policy for snapshot in snapshots), key=precedence)
        if not any(snapshot.counters.counts.used[0] for snapshot in snapshots):
            return copied(last)
        evidence = np.sort(np.stack([snapshot.memo for snapshot in snapshots]), axis=0).sum(axis=0)
        weights = _fitted(evidence, np.array(self.costs))
        in_force = int(last.memo[0]) if last.memo.size else 0
        table, memo = self._decide(self.counted(snapshots), as_table(last, self.n_workers), in_force, weights)
        return as_policy(table, last.rule)._replace(version=last.version + 1, memo=memo)

    def decided(self, histogram: Histogram, old: RoutingTable) -> tuple[RoutingTable, Decision]:
        """The plan by the costs given, if the first candidate is in force, and why it is that one."""
        table, memo = self._decide(histogram, old, 0, (0.0, *self.costs))
        return table, self._decision(memo, 0)

    def adopt(self, policy: Policy, told: Planned | None = None) -> None:
        news = precedence(policy) > precedence(self._state.policy)
        former = self._state.policy.memo
        super().adopt(policy, told)
        if news and policy.memo.size:
            self.decisions.append(self._decision(policy.memo, int(former[0]) if former.size else 0))
            del self.decisions[:-DECISIONS]

    def resized(self, n_workers: int) -> Self:
        new = super().resized(n_workers)  # what it has measured, and which candidate is in force, is so for any workers
        state = self._state
        new._state = new._state._replace(
            memo=state.memo.copy(), policy=new._state.policy._replace(memo=state.policy.memo.copy())
        )
        return new

    def measured(self, effort: Effort, seconds: float) -> None:
        """Learn what the parts of a batch's effort cost, from a batch that took so many seconds."""
        require(isfinite(seconds) and seconds > 0, f"a batch takes more than 0 s, not {seconds}")
        sound = all(isfinite(term) and 0 <= term <= MOST for term in effort)
        require(sound, f"an effort is between 0 and {MOST:.0e}, not {effort}")
        if effort.worker == 0:
            return  # an empty batch tells nothing about tuples
        terms = np.array([1.0, *effort, seconds])
        self._state.memo[:] = KEEP * self._state.memo + np.outer(terms, terms).ravel()

    def effort(self, table: RoutingTable, old: RoutingTable, histogram: Histogram) -> Effort:
        """What a batch like this takes by a table, after that of the batch before."""
        lengths = np.diff(table.starts)
        reducers = table.host_of(table.keys) % self.n_workers
        fragments = np.bincount(reducers, np.where(lengths > 1, lengths, 0), minlength=1)
        load = table.loads(histogram.keys, histogram.counts, histogram.rest)
        return Effort(float(load.max()), float(fragments.max()), float(arriving(old, table, histogram).max()))

    def _decide(
        self, histogram: Histogram, old: RoutingTable, in_force: int, weights: tuple[float, ...]
    ) -> tuple[RoutingTable, NDArray[np.float64]]:
        """The plan of the candidate to go by; and the decision, as numbers."""
        tables = [table_for(offer, histogram, old) for offer in self._offers]
        costs = [float(np.dot(weights, (1.0, *self.effort(table, old, histogram)))) for table in tables]
        best = next(number for number, cost in enumerate(costs) if cost <= min(costs) * (1 + NEAR))
        chosen = best if costs[best] < (1 - MARGIN) * costs[in_force] else in_force
        return replace(tables[chosen], version=old.version), np.array([chosen, *weights, *costs])

    def _decision(self, memo: NDArray[np.float64], former: int) -> Decision:
        chosen, costs = int(memo[0]), memo[5:].tolist()
        name, now = self.among[chosen], f"{_amount(costs[chosen])} a batch"
        best = int(np.argmin(memo[5:]))
        if chosen != former:
            reason = f"{name} instead of {self.among[former]}: {now}, not {_amount(costs[former])}"
        elif costs[chosen] <= costs[best] * (1 + NEAR):
            reason = f"{name} stays: {now}; nothing costs less"
        else:
            reason = f"{name} stays: {now}; {self.among[best]} costs {_amount(costs[best])}"
        return Decision(name, dict(zip(self.among, costs, strict=True)), Effort(*memo[2:5].tolist()), reason)


def _amount(cost: float) -> str:
    """In tuples, or in seconds once those were measured."""
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"


_EVIDENCE = 25  # sums of products of 1, the three terms and the seconds: 5 x 5


def _fitted(evidence: NDArray[np.float64], given: NDArray[np.float64]) -> tuple[float, ...]:
    """What a batch costs besides, and the weights of the terms, none below 0, by least squares.

    They are near those given as long as little was measured.
    """
    products = evidence.reshape(5, 5)
    squares, with_seconds, batches = products[:4, :4], products[:4, 4], float(products[0, 0])
    prior = np.append(0.0, given)
    if batches == 0:
        return tuple(prior.tolist())
    # The costs given are right but for their unit: that which fits best, besides what every batch takes.
    mean, mean_seconds = float(prior @ squares[0]) / batches, float(with_seconds[0]) / batches
    spread = float(prior @ squares @ prior) / batches - mean**2
    shared = float(prior @ with_seconds) / batches - mean * mean_seconds
    unit = shared / spread if spread > 1e-6 * mean**2 and shared > 0 else mean_seconds / mean
    scale = PRIOR * np.maximum(squares.diagonal(), 1e-12) / batches
    weights, free = np.zeros(4), [0, 1, 2, 3]
    while free:
        found = np.linalg.solve(
            squares[np.ix_(free, free)] + np.diag(scale[free]), with_seconds[free] + scale[free] * unit * prior[free]
        )
        if (found >= 0).all():
            weights[free] = found
            break
        free = [term for term, weight in zip(free, found, strict=True) if weight >= 0]
    # Measurements under which nothing costs anything tell nothing.
    return tuple((weights if weights[1:].any() else unit * prior).tolist())


def table_for(p: Partitioner[Any, Any], histogram: Histogram, old: RoutingTable | None = None) -> RoutingTable:
    """What a partitioner would do with keys that occur like this, as a table; p itself is not changed.

    old: the table in force before, for those that leave things where they are.
    """
    if isinstance(p, Planner):
        old = p.table() if old is None else old
        return p.condensed(p.plan(histogram, old), histogram)
    if isinstance(p, Hash):
        return RoutingTable.hashed(p.n_workers)
    sample, fresh = sampled(histogram, p.seed), deepcopy(p).restore(p.fresh())
    if p.plans_ahead:
        fresh.observe(sample)
        fresh.adopt(fresh.merge([fresh.snapshot()]))
    return fresh.table(sample)


def sampled(histogram: Histogram, seed: int) -> Keys:
    """A stream with these frequencies, in some order; keys that were not kept are all different."""
    total = max(histogram.total, 1.0)
    size = int(min(SAMPLE, np.ceil(total)))
    drawn = np.searchsorted(np.cumsum(histogram.counts), (np.arange(size) + 0.5) * (total / size), side="right")
    others = np.random.default_rng(seed + 1).integers(0, 2**64 - 1, size, np.uint64)
    known = drawn < histogram.keys.size
    others[known] = histogram.keys[drawn[known]]
    return np.random.default_rng(seed).permutation(others)
