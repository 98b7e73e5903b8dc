"""Prompt's elastic rule: how many tasks the next batch should have, as a pure function of the batches so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from skewless.arrays import require, whole


@dataclass(frozen=True)
class Rule:
    """When to scale: Prompt section 6.

    Zone 3, above `threshold`: too slow, tasks are added. Zone 1, at most `threshold` - `step`: idle, tasks go. Zone 2
    in between shields from sudden changes. A zone must last for `patience` batches, and as long after a change nothing
    is done in the other direction.
    """

    threshold: float = 0.9
    step: float = 0.1
    patience: int = 3
    least: int = 1  # tasks of a stage
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
class Batch:
    """What a batch was like."""

    processing: float  # seconds it took
    interval: float  # seconds it had
    tuples: int
    keys: int


@dataclass(frozen=True)
class Scale:
    """Tasks of both stages, and what the rule remembers."""

    mappers: int
    reducers: int
    recent: tuple[Batch, ...] = ()  # of the zone at hand, and the one before them
    zone: Literal[1, 2, 3] = 2
    last: Literal["out", "in", ""] = ""
    grace: int = 0  # batches during which the last decision is not reversed
    reason: str = ""  # of the last change; empty if this batch changed nothing


def scaled(scale: Scale, batch: Batch, rule: Rule | None = None) -> Scale:
    """Algorithm 4, both directions: the scale after one more batch.

    >>> scale = Scale(mappers=4, reducers=4)
    >>> for tuples in (1000, 1500, 2000, 2500):
    ...     scale = scaled(scale, Batch(processing=0.95, interval=1.0, tuples=tuples, keys=100))
    >>> scale.mappers, scale.reducers, scale.reason
    (5, 4, 'out: 95 % of the interval for 3 batches, more tuples')
    """
    rule = rule or Rule()
    require(batch.interval > 0, f"an interval is more than 0 s, not {batch.interval}")
    busy = batch.processing / batch.interval  # l. 1
    zone: Literal[1, 2, 3] = 3 if busy > rule.threshold else 1 if busy <= rule.threshold - rule.step else 2
    # The first of the batches remembered is the one before the zone began: what they are compared with.
    recent = (*scale.recent, batch)[-(rule.patience + 1) :] if zone == scale.zone else (*scale.recent[-1:], batch)
    waited = replace(scale, recent=recent, zone=zone, grace=max(0, scale.grace - 1), reason="")
    direction: Literal["out", "in"] = "out" if zone == 3 else "in"
    if zone == 2 or len(recent) <= rule.patience or (scale.grace > 0 and scale.last not in ("", direction)):
        return waited
    step = 1 if direction == "out" else -1
    rate, distribution = ((after - before) * step > 0 for before, after in _change(recent))
    # l. 6, 7; where neither changed, yet it is too slow or idle, it is the mappers that see every tuple.
    mappers = scale.mappers + step * (rate or not distribution)
    reducers = scale.reducers + step * distribution
    mappers, reducers = (min(max(tasks, rule.least), rule.most) for tasks in (mappers, reducers))
    if (mappers, reducers) == (scale.mappers, scale.reducers):
        return waited
    more = "more" if direction == "out" else "fewer"
    changes = [f"{more} {what}" for what, changed in (("tuples", rate), ("keys", distribution)) if changed]
    why = " and ".join(changes) or "rate and keys as before"
    told = f"{direction}: {100 * busy:.0f} % of the interval for {rule.patience} batches, {why}"
    return Scale(mappers, reducers, (batch,), 2, direction, rule.patience, told)


def _change(recent: tuple[Batch, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Tuples and keys, at the beginning and at the end."""
    return (recent[0].tuples, recent[-1].tuples), (recent[0].keys, recent[-1].keys)
