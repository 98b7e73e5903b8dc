"""What a verb asks for: rows by key, an operator, and the parameters that say how to balance them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from pyspark.sql import DataFrame

from skewless.arguments import require, whole
from skewless.partitioner import Partitioner
from skewless.partitioners import configured
from skewless.spark.checksums import splitting_problem
from skewless.spark.exact import Exact
from skewless.spark.keys import Keyed
from skewless.table import RoutingTable

PartitionerLike: TypeAlias = str | Partitioner[Any, Any] | RoutingTable
Verb = Literal[
    "repartition", "applyInPandas", "applyInArrow", "cogroup", "over", "agg", "collect_list", "ArrowAggregate", "join"
]

# The `costs` of "auto": of a tuple, a fragment and a move. A batch has no state yet, so moves cost nothing.
BATCH_COSTS = (1.0, 1.0, 0.0)
_log = logging.getLogger("skewless")


class Traits(NamedTuple):
    """The properties of an operator that a decision depends on."""

    splits: bool = False  # may one key be split?
    native: bool = False  # does Spark itself process the rows? A Python function may take any time for each


OPERATORS: dict[Verb, Traits] = {
    "repartition": Traits(native=True),
    "applyInPandas": Traits(),
    "applyInArrow": Traits(),
    "cogroup": Traits(),
    "over": Traits(native=True),
    "agg": Traits(splits=True, native=True),
    "collect_list": Traits(splits=True, native=True),
    "ArrowAggregate": Traits(splits=True),
    "join": Traits(splits=True),
}


@dataclass(frozen=True, eq=False)
class Request:
    """The rows of a verb, and how the user wants them routed."""

    operator: Verb
    frames: tuple[Keyed, ...]  # one, or the left and the right side
    partitioner: PartitionerLike | Exact = "auto"
    n_workers: int | None = None  # None: the default
    sample: float | None = None  # the share of rows to profile; None: all of little data, a small portion of much
    how: str = "inner"  # of a join
    numbered: bool = False  # the result has a column with the worker's number, which Spark's own plan does not give

    @property
    def df(self) -> DataFrame:
        return self.frames[0].df

    @property
    def splits(self) -> bool:
        """Whether one key may be split."""
        return OPERATORS[self.operator].splits

    @property
    def native(self) -> bool:
        """Whether Spark itself processes the rows; a Python function may take any time for each."""
        return OPERATORS[self.operator].native

    @property
    def may_leave(self) -> bool:
        """Whether Spark's own plan is an option: not if the user asks for a partitioner or a number of workers."""
        return self.partitioner == "auto" and self.n_workers is None and not self.numbered

    @property
    def planner(self) -> str | Partitioner[Any, Any] | RoutingTable:
        """The partitioner, also that of an Exact."""
        return self.partitioner.partitioner if isinstance(self.partitioner, Exact) else self.partitioner

    def checked(self) -> Request:
        """Refuses contradictory parameters before any job runs; returns the request."""
        if self.n_workers is not None:
            whole("n_workers", self.n_workers, 1)
        by, planner = self.partitioner, self.planner
        require(
            not (self.operator == "join" and isinstance(by, Exact)),
            "a join takes no Exact, which routes each side on its own, so that equal keys would not meet: "
            "give the partitioner itself",
        )
        check_workers(by, self.n_workers)
        if isinstance(planner, RoutingTable):
            may_route = self.splits or not planner.splits_keys
            refusal = f"this table splits keys, but {self.operator} needs each key whole"
            require(may_route, f"{refusal}: plan it with a partitioner that keeps keys whole, such as kip")
        elif planner != "auto":
            chosen(planner, self.n_workers or 1, self.splits)
        return self

    def partitioner_for(self, n_workers: int) -> Partitioner[Any, Any]:
        """Returns the partitioner that plans or routes."""
        planner = self.planner
        assert not isinstance(planner, RoutingTable)
        return chosen(planner, n_workers, self.splits and is_safe_to_split(self.df, planner))


def is_safe_to_split(df: DataFrame, planner: object) -> bool:
    """Returns whether keys may be split; without shuffle checksums, "auto" must keep them whole, which is logged.

    For other partitioners it returns True: those that split keys are refused later, by `check_splitting`.
    """
    problem = splitting_problem(df) if planner == "auto" else ""
    if problem:
        _log.warning("keys stay whole: %s", problem)
    return not problem


def check_workers(partitioner: PartitionerLike | Exact, n_workers: int | None) -> None:
    """Refuses anything but a partitioner, and a partitioner for another number of workers."""
    planner = partitioner.partitioner if isinstance(partitioner, Exact) else partitioner
    if isinstance(planner, str):
        return
    if not isinstance(planner, (Partitioner, RoutingTable)):
        raise TypeError(f"a partitioner is a name, an instance, a RoutingTable or an Exact, not {planner!r}")
    name = "the table" if isinstance(planner, RoutingTable) else planner.name
    fits = n_workers in (None, planner.n_workers)
    differs = f"{name} is for {planner.n_workers} workers, not for {n_workers}"
    require(fits, f"{differs}: leave n_workers out, or give one for {n_workers} workers")


_KEEPS_WHOLE = 'take "auto", "level", "kip" or another that keeps keys whole'


def chosen(
    partitioner: str | Partitioner[Any, Any],
    n_workers: int,
    split: bool,
    costs: tuple[float, float, float] = BATCH_COSTS,
) -> Partitioner[Any, Any]:
    """Returns a partitioner, given itself or by name; refuses to split keys that must stay whole.

    split: whether keys may be split.
    costs: the weights by which "auto" compares its candidates, see `Auto`.
    """
    if isinstance(partitioner, str):
        *_, arriving = costs
        # Workers that are beside a key too heavy for any are levelled, too, where keys move at no cost.
        even = not split and arriving == 0
        partitioner = configured(partitioner, n_workers, split=split, costs=costs, even=even)
    whole_keys = split or not partitioner.splits_keys
    require(whole_keys, f"{partitioner.name} splits keys, but each is needed whole: {_KEEPS_WHOLE}")
    return partitioner
