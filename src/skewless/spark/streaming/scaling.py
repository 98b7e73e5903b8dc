"""The number of workers of the next batch, by Prompt's elastic rule."""

from __future__ import annotations

from dataclasses import dataclass, replace

from skewless import elastic


@dataclass(frozen=True)
class Scaling:
    """How the number of workers follows the load of a query."""

    interval: float | None = None  # seconds between batches
    limits: tuple[int, int] | None = None  # least and most workers; None: their number is fixed

    @property
    def follows_load(self) -> bool:
        """Whether the number of workers changes by itself: it needs limits, and an interval to measure batches by."""
        return self.limits is not None and self.interval is not None

    def within(self, n_workers: int) -> int:
        """Returns the nearest number of workers within the limits."""
        return n_workers if self.limits is None else min(max(n_workers, self.limits[0]), self.limits[1])

    def after(
        self, last: elastic.Scale | None, n_workers: int, *, seconds: float, rows: int, keys: int
    ) -> elastic.Scale | None:
        """Returns the scale for the next batch; None if the number of workers does not follow the load.

        last: the scale before this batch, if there was one.
        n_workers, seconds, rows, keys: of this batch.
        """
        if self.limits is None or self.interval is None:
            return None
        least, most = self.limits
        batch = elastic.BatchStatistics(seconds, self.interval, rows, keys)
        scale = elastic.Scale(n_workers, n_workers) if last is None else last
        scale = replace(scale, mappers=n_workers, reducers=n_workers)
        new = elastic.scaled(scale, batch, elastic.Rule(least=least, most=most))
        # One stage does the work of mappers and reducers, so it follows the larger of the two changes.
        changes = abs(new.mappers - n_workers), abs(new.reducers - n_workers)
        target = new.mappers if changes[0] >= changes[1] else new.reducers
        return replace(new, mappers=target, reducers=target)
