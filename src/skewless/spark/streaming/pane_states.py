"""Routes the rows of a batch and computes one aggregate state for each key and pane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from skewless.spark.exact import Pass, Sourced, Sources, passed
from skewless.spark.keys import column, hashed, unused
from skewless.spark.profile import distinct, observed
from skewless.spark.route import WORKER, routed
from skewless.spark.streaming.fragments import sent_to_reducers
from skewless.spark.streaming.panes import PANE, pane
from skewless.spark.streaming.rows import StreamKey
from skewless.spark.verbs.fold import Fold
from skewless.table import RoutingTable

_HASH = "hash of key"


@dataclass(frozen=True)
class PaneStates:
    """The states of a batch. The methods must be called after the states have been written."""

    states: DataFrame
    seen: Observation
    n_workers: int = 0  # 0: Spark distributes the rows
    loads: Observation | None = None
    routed: Pass | None = None  # where sources route each row

    def facts(self) -> dict[str, Any]:
        """Returns the number of `fragments`, about how many `keys`, and the `first` and `last` pane."""
        return observed(self.seen)

    def record(self) -> dict[str, Any]:
        """Returns the rows of each worker and the number of fragments; before Spark 4.3 failed attempts count too."""
        if self.loads is None:
            return {}
        load = np.zeros(self.n_workers, np.int64)
        for number, count in observed(self.loads).get("loads") or ():
            load[number] = count
        return {"loads": load.tolist(), "fragments": self.facts().get("fragments", 0)}

    def sources(self) -> Sources | None:
        """Returns what the sources have learned; None where a table or Spark distributes the rows."""
        return None if self.routed is None else self.routed.left()


@dataclass(frozen=True)
class PaneAggregation:
    """Computes the states of panes."""

    key: StreamKey
    fold: Fold
    schema: StructType  # of states

    def states(self, rows: DataFrame, router: RoutingTable | Sourced | None, batch: int) -> PaneStates:
        """Returns one state for each key and pane of the rows, which have a column PANE."""
        by, hidden = [PANE, *self.key.columns], [PANE, *self.key.added]
        seen = Observation(f"states {batch}")
        if router is None:
            return PaneStates(self._observed(self.fold.partial(rows, by, hidden), rows, seen), seen)
        n, loads = router.n_workers, Observation(f"loads {batch}")
        (number,) = unused(rows, WORKER, besides=self.schema.names)
        routing = passed(rows, self.key.columns, router, number) if isinstance(router, Sourced) else None
        sent = routed(rows, self.key.columns, router, number) if routing is None else routing.rows
        # The sketch counts exactly, since it may track twice as many items as there are.
        top = F.call_function("approx_top_k", column(number), F.lit(n), F.lit(1 << (2 * n).bit_length()))
        sent = sent.observe(loads, top.alias("loads"))
        states = self._observed(self.fold.partial(sent, [*by, number], [*hidden, number]), rows, seen)
        if not router.splits_keys:
            states = states.drop(number)
        elif isinstance(router, Sourced):
            states = self.fold.merged(states.drop(number), by, self.schema)
        else:
            fragments = sent_to_reducers(states.drop(number), self.key.columns, router, number)
            states = self.fold.merged(fragments, [*by, number], self.schema).drop(number)
        return PaneStates(states, seen, n, loads, routing)

    def _observed(self, states: DataFrame, rows: DataFrame, seen: Observation) -> DataFrame:
        """Observes the states instead of the rows, since they are fewer."""
        bounds = F.min(pane()).alias("first"), F.max(pane()).alias("last")
        facts = F.count(F.lit(1)).alias("fragments"), distinct(_HASH).alias("keys"), *bounds
        hashes = hashed(rows, self.key.columns).alias(_HASH)
        return states.select("*", hashes).observe(seen, *facts).drop(_HASH)
