"""Auto: plans with several partitioners and follows the plan that is predicted to cost least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require
from skewless.arrays import precedence
from skewless.histogram import Histogram
from skewless.migration import arriving
from skewless.partitioner import Forecast, Partitioner
from skewless.partitioners.candidates import CANDIDATES
from skewless.partitioners.level import Level
from skewless.planning.planner import Planned, Planner, Policy, as_policy, table_of
from skewless.table import RoutingTable

MARGIN = 0.1  # a candidate replaces the one in force if it costs less by more than this share
KEEP = 0.97  # weight of a measured batch relative to the next one
PRIOR = 0.001  # weight of the `costs` parameter relative to a measured batch
MOST = 1e15  # the largest effort, in tuples
DECISIONS = 1000  # how many decisions are remembered
NEAR = 1e-6  # costs that differ by less than this share are equal


class Effort(NamedTuple):
    """The terms of a batch's cost."""

    worker: float  # tuples on the busiest worker
    reducer: float  # fragments of split keys at the busiest reducer that merges them
    arriving: float  # tuples of keys that are new to a worker, on the worker with most of these


@dataclass(frozen=True)
class Comparison:
    """Which candidate was chosen, and why."""

    chosen: str
    costs: dict[str, float]  # predicted cost of each candidate
    weights: Effort  # weight of each term: as configured, or as measured
    reason: str


class _Choice(NamedTuple):
    """A decision in numbers, as Policy.memo has it: [chosen, *weights, *costs]."""

    chosen: int  # number of the candidate
    weights: tuple[float, ...]  # constant cost of a batch, then the weights of Effort
    costs: tuple[float, ...]  # of each candidate

    @classmethod
    def of(cls, memo: NDArray[np.float64]) -> Self:
        """Returns the choice that `memo` wrote."""
        chosen, *numbers = memo.tolist()
        return cls(int(chosen), tuple(numbers[:_TERMS]), tuple(numbers[_TERMS:]))

    def memo(self) -> NDArray[np.float64]:
        """Returns the choice as an array, for Policy.memo."""
        return np.array([self.chosen, *self.weights, *self.costs])


@dataclass(eq=False)
class Auto(Planner):
    """Auto: predicts from the histogram what each candidate would cost, and changes to another when it costs less.

    The cost of a batch has three terms: tuples on its busiest worker, fragments at its busiest reducer if keys are
    split, and tuples that move. Their weights are fitted to measured batches (`measured`). Another candidate must be a
    tenth cheaper than the one in force, so that noise changes nothing. `decisions` has the reasons.

    among: names of the candidates. The first is in force at the beginning, and stays in force where no other is worth a
        change; "hash" leaves the job to Spark.
    split: False admits only candidates that keep keys whole.
    memory: as for every planner (`skewless.planning.planner.Planner`). Leave `moving` out: `costs` weighs moves.
    costs: weights of the three terms until a batch is measured: of a tuple on the busiest worker, of a fragment at the
        busiest reducer, and of a tuple that arrives at a worker where its key was not before, divided by the number of
        batches that a plan serves.

    >>> import skewless
    >>> for exponent in (0.2, 1.0):
    ...     p = skewless.partitioner("auto", 16)
    ...     p.observe(skewless.streams.zipf(100_000, keys=10_000, exponent=exponent))
    ...     p.adopt(p.merge([p.snapshot()]))
    ...     print(p.decisions[-1].reason)
    hash stays: 6,402 a batch; level costs 6,269
    level instead of hash: 6,510 a batch, not 15,298

    Source: Skewless; not from a paper.
    """

    name: ClassVar[str] = "auto"
    averages: ClassVar[bool] = True

    among: tuple[str, ...] = ("hash", "level", "kip")
    split: bool = True
    costs: tuple[float, float, float] = (1.0, 1.0, 0.1)
    decisions: list[Comparison] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        unknown = [name for name in self.among if name not in CANDIDATES]
        require(not unknown, f"candidates are among {', '.join(CANDIDATES)}, not {', '.join(unknown)}")
        require(len(self.costs) == len(Effort._fields), f"costs are {len(Effort._fields)} numbers, not {self.costs}")
        sound = min(self.costs) >= 0 < self.costs[0]
        require(sound, f"costs are 0 or more, and that of a tuple is more than 0, not {self.costs}")
        self._offers = [self._offer(name) for name in self.among]
        splitting = [offer.name for offer in self._offers if offer.splits_keys]
        culprits = ", ".join(splitting)
        require(not splitting or self.split, f"with split=False, no candidate may split keys as {culprits} would")
        require(bool(self._offers), "among is empty: give the name of at least 1 candidate")
        require(self.moving is None, "auto weighs moves by its costs: leave moving out")
        super().__post_init__()

    @property
    def splits_keys(self) -> bool:
        return any(offer.splits_keys for offer in self._offers)

    @property
    def reason(self) -> str:
        return self.decisions[-1].reason if self.decisions else self.name

    def _offer(self, name: str) -> Partitioner[Any, Any]:
        if name == "level":
            return Level(self.n_workers, seed=self.seed, split=self.split, even=Effort(*self.costs).arriving == 0)
        return CANDIDATES[name](self.n_workers, seed=self.seed)

    def fresh(self) -> Planned:
        return super().fresh()._replace(memo=np.zeros(_EVIDENCE))

    def make_table(self, histogram: Histogram, old: RoutingTable) -> RoutingTable:
        return self.decided(histogram, old)[0]

    def planned(self, snapshots: Sequence[Planned], last: Policy) -> Policy:
        evidence = np.sort(np.stack([snapshot.memo for snapshot in snapshots]), axis=0).sum(axis=0)
        weights = _fitted(evidence, np.array(self.costs))
        table, choice = self._decide(self.counted(snapshots), table_of(last, self.n_workers), _followed(last), weights)
        return as_policy(table, last.rule)._replace(memo=choice.memo())

    def decided(self, histogram: Histogram, old: RoutingTable) -> tuple[RoutingTable, Comparison]:
        """Returns the plan by `costs`, with the first candidate in force, and the decision with its reason."""
        table, choice = self._decide(histogram, old, 0, (0.0, *self.costs))
        return table, self._decision(choice, 0)

    def explained(self, histogram: Histogram, old: RoutingTable | None = None) -> Forecast:
        old = self.table() if old is None else old.resized(self.n_workers)
        table, decision = self.decided(histogram, old)
        return Forecast(table, decision.chosen, decision.reason)

    def adopt(self, policy: Policy, reported: Planned | None = None) -> None:
        is_newer = precedence(policy) > precedence(self._state.policy)
        former = _followed(self._state.policy)
        super().adopt(policy, reported)
        if is_newer and policy.memo.size:
            self.decisions.append(self._decision(_Choice.of(policy.memo), former))
            del self.decisions[:-DECISIONS]

    def resized(self, n_workers: int) -> Self:
        # Measurements, and which candidate is in force, hold for any number of workers.
        new, state = super().resized(n_workers), self._state
        new._state = new._state._replace(
            memo=state.memo.copy(), policy=new._state.policy._replace(memo=state.policy.memo.copy())
        )
        return new

    def measured(self, effort: Effort, seconds: float) -> None:
        """Learns the weights of the terms from the effort of a batch and the seconds that it took."""
        require(isfinite(seconds) and seconds > 0, f"a batch takes more than 0 s, not {seconds}")
        sound = all(isfinite(term) and 0 <= term <= MOST for term in effort)
        require(sound, f"an effort is between 0 and {MOST:.0e}, not {effort}")
        if effort.worker == 0:
            return  # an empty batch says nothing about the cost of tuples
        terms = np.array([1.0, *effort, seconds])
        self._state.memo[:] = KEEP * self._state.memo + np.outer(terms, terms).ravel()

    def timed(
        self, table: RoutingTable, before: RoutingTable, histogram: Histogram, *, busiest: int, seconds: float
    ) -> None:
        self.measured(self.effort(table, before, histogram)._replace(worker=float(busiest)), seconds)

    def effort(self, table: RoutingTable, old: RoutingTable, histogram: Histogram) -> Effort:
        """Returns the effort of a batch with these counts under a table. old: the table of the batch before."""
        lengths = np.diff(table.starts)
        reducers = table.host_of(table.keys) % self.n_workers
        fragments = np.bincount(reducers, np.where(lengths > 1, lengths, 0), minlength=1)
        load = table.loads(histogram.keys, histogram.counts, histogram.rest)
        return Effort(float(load.max()), float(fragments.max()), float(arriving(old, table, histogram).max()))

    def _decide(
        self, histogram: Histogram, old: RoutingTable, in_force: int, weights: tuple[float, ...]
    ) -> tuple[RoutingTable, _Choice]:
        """Returns the plan of the best candidate, or of that in force if it costs about as little; and the choice."""
        tables = [offer.forecast(histogram, old) for offer in self._offers]
        costs = [float(np.dot(weights, (1.0, *self.effort(table, old, histogram)))) for table in tables]
        best = next(number for number, cost in enumerate(costs) if cost <= min(costs) * (1 + NEAR))
        chosen = best if costs[best] < (1 - MARGIN) * costs[in_force] else in_force
        return replace(tables[chosen], version=old.version), _Choice(chosen, tuple(weights), tuple(costs))

    def _decision(self, choice: _Choice, former: int) -> Comparison:
        chosen, (_, *weights), costs = choice
        name, cost = self.among[chosen], f"{_amount(costs[chosen])} a batch"
        best = int(np.argmin(costs))
        if chosen != former:
            reason = f"{name} instead of {self.among[former]}: {cost}, not {_amount(costs[former])}"
        elif costs[chosen] <= costs[best] * (1 + NEAR):
            reason = f"{name} stays: {cost}; nothing costs less"
        else:
            reason = f"{name} stays: {cost}; {self.among[best]} costs {_amount(costs[best])}"
        return Comparison(name, dict(zip(self.among, costs, strict=True)), Effort(*weights), reason)


def _followed(policy: Policy) -> int:
    """Returns the number of the candidate that a policy follows: at the beginning, the first."""
    return _Choice.of(policy.memo).chosen if policy.memo.size else 0


def _amount(cost: float) -> str:
    """Formats a cost: in tuples, or in seconds once batches were measured."""
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"


_TERMS = 1 + len(Effort._fields)  # a constant, and the terms of Effort
_SECONDS = _TERMS  # row and column of the seconds, behind the terms
_EVIDENCE = (_TERMS + 1) ** 2  # sums of products of all pairs of these


def _fitted(evidence: NDArray[np.float64], configured: NDArray[np.float64]) -> tuple[float, ...]:
    """Fits the constant cost of a batch and the weights of the terms by least squares, none of them below 0.

    They stay near the configured costs while few batches have been measured.
    """
    products = evidence.reshape(_TERMS + 1, _TERMS + 1)
    squares, with_seconds = products[:_TERMS, :_TERMS], products[:_TERMS, _SECONDS]
    batches = float(products[0, 0])
    prior = np.append(0.0, configured)
    if batches == 0:
        return tuple(prior.tolist())
    # The configured costs are taken to be right up to their unit: fit that, next to the constant cost of a batch.
    mean, mean_seconds = float(prior @ squares[0]) / batches, float(with_seconds[0]) / batches
    spread = float(prior @ squares @ prior) / batches - mean**2
    shared = float(prior @ with_seconds) / batches - mean * mean_seconds
    unit = shared / spread if spread > 1e-6 * mean**2 and shared > 0 else mean_seconds / mean
    scale = PRIOR * np.maximum(squares.diagonal(), 1e-12) / batches
    weights, free = np.zeros(_TERMS), list(range(_TERMS))
    while free:
        solution = np.linalg.solve(
            squares[np.ix_(free, free)] + np.diag(scale[free]), with_seconds[free] + scale[free] * unit * prior[free]
        )
        if (solution >= 0).all():
            weights[free] = solution
            break
        free = [term for term, weight in zip(free, solution, strict=True) if weight >= 0]
    # A fit in which no term has a weight is useless: keep the configured costs.
    _, *of_terms = weights
    return tuple((weights if any(of_terms) else unit * prior).tolist())
