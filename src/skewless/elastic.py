"""Prompt's elasticity rule: the number of tasks of the next batch, from the load of the batches so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from skewless.arguments import require, whole


@dataclass(frozen=True)
class Rule:
    """When to scale (Prompt, section 6), by the share of its interval that a batch took.

    threshold: above this share (zone 3), tasks are added.
    step: up to `threshold - step` (zone 1), tasks are removed; between the two (zone 2), nothing changes.
    patience: batches for which a zone must last before a change, and for which a change is not reversed.
    least, most: bounds of the number of tasks of a stage.
    """

    threshold: float = 0.9
    step: float = 0.1
    patience: int = 3
    least: int = 1
    most: int = 1_000_000

    def __post_init__(self) -> None:
        require(self.threshold > 0, f"threshold is more than 0, not {self.threshold}")
        require(
            0 < self.step < self.threshold, f"step is between 0 and the threshold {self.threshold}, not {self.step}"
        )
        whole("patience", self.patience, 1)
        whole("least", self.least, 1)
        whole("most", self.most, self.least)


@dataclass(frozen=True)
class BatchStatistics:
    """What the rule needs to know of a batch."""

    processing: float  # seconds it took
    interval: float  # seconds between two batches
    tuples: int
    keys: int


@dataclass(frozen=True)
class Scale:
    """The number of tasks of both stages, and the rule's memory."""

    mappers: int
    reducers: int
    recent: tuple[BatchStatistics, ...] = ()  # the batch before the current zone, then those of the zone
    zone: Literal[1, 2, 3] = 2
    last: Literal["out", "in", ""] = ""  # direction of the last change
    grace: int = 0  # batches for which the last change is not reversed
    reason: str = ""  # of the last change; empty if this batch changed nothing


def scaled(scale: Scale, batch: BatchStatistics, rule: Rule | None = None) -> Scale:
    """Returns the scale after one more batch (algorithm 4, in both directions).

    scale: the result for the batch before. batch: the batch that has ended. rule: by default Rule().

    >>> scale = Scale(mappers=4, reducers=4)
    >>> for tuples in (1000, 1500, 2000, 2500):
    ...     scale = scaled(scale, BatchStatistics(processing=0.95, interval=1.0, tuples=tuples, keys=100))
    >>> scale.mappers, scale.reducers, scale.reason
    (5, 4, 'out: 95 % of the interval for 3 batches, more tuples')
    """
    rule = rule or Rule()
    require(batch.interval > 0, f"an interval is more than 0 s, not {batch.interval}")
    busy = batch.processing / batch.interval  # l. 1
    zone: Literal[1, 2, 3] = 3 if busy > rule.threshold else 1 if busy <= rule.threshold - rule.step else 2
    # The first of the recent batches is the last one before the zone began: later ones are compared with it.
    recent = (*scale.recent, batch)[-(rule.patience + 1) :] if zone == scale.zone else (*scale.recent[-1:], batch)
    unchanged = replace(scale, recent=recent, zone=zone, grace=max(0, scale.grace - 1), reason="")
    direction: Literal["out", "in"] = "out" if zone == 3 else "in"
    if zone == 2 or len(recent) <= rule.patience or (scale.grace > 0 and scale.last not in ("", direction)):
        return unchanged
    step = 1 if direction == "out" else -1
    first = recent[0]
    tuples_changed, keys_changed = (batch.tuples - first.tuples) * step > 0, (batch.keys - first.keys) * step > 0
    # l. 6, 7; where neither changed, scale the mappers, which process every tuple.
    mappers = scale.mappers + step * (tuples_changed or not keys_changed)
    reducers = scale.reducers + step * keys_changed
    mappers, reducers = (min(max(tasks, rule.least), rule.most) for tasks in (mappers, reducers))
    if (mappers, reducers) == (scale.mappers, scale.reducers):
        return unchanged
    quantity = "more" if direction == "out" else "fewer"
    changes = [
        f"{quantity} {unit}" for unit, changed in (("tuples", tuples_changed), ("keys", keys_changed)) if changed
    ]
    why = " and ".join(changes) or "rate and keys as before"
    return Scale(
        mappers=mappers,
        reducers=reducers,
        recent=(batch,),
        zone=2,
        last=direction,
        grace=rule.patience,
        reason=f"{direction}: {100 * busy:.0f} % of the interval for {rule.patience} batches, {why}",
    )
