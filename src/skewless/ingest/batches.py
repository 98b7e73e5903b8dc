"""Cuts a log into batches as its rows arrive, and plans the blocks of each, if possible before Spark asks for it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Lock
from time import monotonic

import numpy as np

from skewless.arrays import Keys
from skewless.ingest.accumulator import Accumulated, Accumulator, divided
from skewless.ingest.heartbeat import Heartbeat
from skewless.ingest.journal import Journal, JournalReader
from skewless.ingest.records import Block, LineFormat, decode


@dataclass
class LogBatch:
    """A batch, complete or still arriving: the offsets of its frames, and Prompt's accumulator of its keys."""

    start: int
    end: int
    accumulator: Accumulator  # its interval starts at 0, with the first frame
    offsets: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)  # in ms
    rows: int = 0
    planned_for: int = 0  # blocks; 0 before the first plan
    _blocks: list[Block] = field(default_factory=list, repr=False)
    _released: Accumulated | None = field(default=None, repr=False)
    _planning: Lock = field(default_factory=Lock, repr=False)

    def add(self, offset: int, end: int, now: int, keys: Keys) -> None:
        """Adds the rows of a frame."""
        self.offsets.append(offset)
        self.counts.append(keys.size)
        self.times.append(now)
        # A batch may take longer than expected, and the system clock may be set back.
        _, end_of_interval = self.accumulator.interval
        time_in_batch = min(max(now - self.times[0], 0), end_of_interval - 1)
        self.accumulator.add(keys, np.full(keys.size, time_in_batch, np.int64))
        self.rows += keys.size
        self.end = end

    def following(self) -> LogBatch:
        """Returns the next batch, which is expected to be about as large as this one."""
        return LogBatch(self.end, self.end, accumulator_for(self.rows, self.accumulator.n_keys, self.times))

    def blocks(self, directory: Path, n_blocks: int) -> list[Block]:
        """Returns the blocks of a complete batch, as they were planned before if that was for as many."""
        with self._planning:
            if self.planned_for != n_blocks:
                self._released = self._released or self.accumulator.release()
                self._blocks = blocks_of(self, divided(self._released, n_blocks), str(directory))
                self.planned_for = n_blocks
            return self._blocks


def accumulator_for(n_tuples: int, n_keys: int, times: list[int]) -> Accumulator:
    """Returns an accumulator for a batch that is like one with so many tuples and keys, and these times."""
    duration = times[-1] - times[0] if times else 0
    return Accumulator((0, max(duration, 0) + 1), expected_tuples=max(n_tuples, 1), expected_keys=max(n_keys, 1))


def blocks_of(batch: LogBatch, workers: np.ndarray[tuple[int], np.dtype[np.int32]], directory: str) -> list[Block]:
    """Returns the blocks of a batch, given the block of each row."""
    counts = np.array(batch.counts, np.int64)
    offsets = np.array(batch.offsets, np.int64)
    starts = np.cumsum(counts) - counts
    by_block = np.split(np.argsort(workers, kind="stable"), np.cumsum(np.bincount(workers))[:-1])
    blocks = []
    for tuples in by_block:
        if tuples.size:
            frame = np.searchsorted(starts, tuples, side="right") - 1
            used, n_used = np.unique(frame, return_counts=True)
            rows = (tuples - starts[frame]).astype(np.int32)
            blocks.append(Block(directory=directory, offsets=offsets[used], counts=n_used, rows=rows))
    return blocks


class LogBatches:
    """The batches of a log: those that are complete and wait for Spark, then the one that is arriving.

    A batch closes when it has the most rows, when Spark asks, or shortly before Spark should ask: Prompt's early
    release. Then its blocks are ready when Spark asks; rows that arrive in between belong to the next batch. Batches
    end at offsets in the log. One that Spark asks for again, after a crash, is accumulated from the log.

    journal: the log. lines: how its rows are read again. changed: guards the log and the batches; whoever calls `add`,
        `latest` or `stop` holds it. most_rows: the most rows of a batch; no limit if None.
    """

    def __init__(self, journal: Journal, lines: LineFormat, changed: Condition, most_rows: int | None) -> None:
        self.lines, self.most_rows = lines, most_rows
        self._journal, self._changed = journal, changed
        self._heartbeat = Heartbeat()
        self._target: int | None = None
        self._waiting = deque[LogBatch]()
        self._incoming = LogBatch(journal.end, journal.end, accumulator_for(1000, 100, []))
        self._asked: LogBatch | None = None  # that Spark asked for last
        self._n_blocks = 0  # that Spark asked for last
        self._last_closing: float | None = None  # when a batch was to close early
        self._stopped = False

    def add(self, offset: int, now: int, keys: Keys) -> None:
        """Adds the rows of a frame that has just been logged.

        now: its time, in ms.
        """
        rows = self._incoming.rows
        if self.most_rows is not None and rows > 0 and rows + keys.size > self.most_rows:
            self._close()
            self._changed.notify_all()
        self._incoming.add(offset, self._journal.end, now, keys)

    def stop_at(self, target: int) -> None:
        """Ends all batches at or before this offset."""
        self._target = target

    def latest(self, start: int, most: int | None) -> int:
        """Returns where the batch that begins at `start` ends, with at most `most` rows."""
        first = self._journal.skip_description(start)
        end = self._end_of_batch(first, most)
        self._heartbeat.beat(monotonic(), had_rows=end > first)
        self._changed.notify_all()
        return end if end > first else start

    def _end_of_batch(self, start: int, most: int | None) -> int:
        log_end = self._journal.end
        limit = log_end if self._target is None else min(log_end, self._target)
        batch = self._waiting[0] if self._waiting else self._incoming
        if start < batch.start:
            return self._scan(start, min(batch.start, limit), most)
        if start == batch.start and batch.end <= limit and (most is None or batch.rows <= most):
            if batch.rows:
                if not self._waiting:
                    self._close()
                self._asked = self._waiting.popleft()
            return batch.end
        # None of these batches is the requested one, which will be accumulated from the log.
        self._incoming = LogBatch(log_end, log_end, self._incoming.following().accumulator)
        self._waiting.clear()
        return self._scan(start, limit, most)

    def _close(self) -> None:
        """Completes the arriving batch, and begins the next one."""
        self._waiting.append(self._incoming)
        self._incoming = self._incoming.following()

    def _scan(self, start: int, limit: int, most: int | None) -> int:
        """Returns where a batch of at most `most` rows ends; it has at least one frame."""
        if most is None:
            return max(start, limit)
        rows, end = 0, start
        for frame in self._journal.frames(start, limit):
            rows += frame.notes["rows"]
            if rows > most and end > start:
                break
            end = frame.end
        return end

    def blocks(self, start: int, end: int, n_blocks: int) -> list[Block]:
        """Returns the batch between two offsets as blocks of equal size that split few keys."""
        with self._changed:
            batch, self._n_blocks = self._asked, n_blocks
        if batch is None or (batch.start, batch.end) != (self._journal.skip_description(start), end):
            batch = self._replay(start, end)
        return self._planned(batch, n_blocks)

    def _planned(self, batch: LogBatch, n_blocks: int) -> list[Block]:
        """Returns the blocks of a batch; if they were not planned yet, takes note of how long that took."""
        began, is_ready = monotonic(), batch.planned_for == n_blocks
        blocks = batch.blocks(self._journal.directory, n_blocks)
        if not is_ready:
            with self._changed:
                self._heartbeat.planned(monotonic() - began)
        return blocks

    def _replay(self, start: int, end: int) -> LogBatch:
        """Accumulates a batch again from the log."""
        with JournalReader(self._journal.directory) as journal:
            frames = [*journal.frames(start, end)]
        rows = sum(frame.notes["rows"] for frame in frames)
        times = [frame.notes["time"] for frame in frames]
        batch = LogBatch(start, end, accumulator_for(rows, rows // 10, times))
        for frame in frames:
            keys = self.lines.keys(decode(frame.content, self.lines.schema))
            batch.add(frame.offset, end, frame.notes["time"], keys)
        return batch

    def plan_ahead(self) -> None:
        """Closes batches early and plans those that wait, as long as the receiver runs; a thread does this."""
        while (batch := self._next_to_plan()) is not None:
            self._planned(batch, self._n_blocks)

    def _next_to_plan(self) -> LogBatch | None:
        """Waits for a batch to plan, which may be the arriving one when it is time to close it; None in the end."""
        with self._changed:
            while not self._stopped:
                unplanned = [batch for batch in self._waiting if not batch.planned_for]
                if unplanned and self._n_blocks:
                    return unplanned[0]
                closing, patience = self._heartbeat.closing, None
                if closing is not None and closing != self._last_closing and not self._waiting:
                    patience = closing - monotonic()
                    if patience <= 0:
                        self._last_closing = closing  # also if there is nothing to close
                        if self._incoming.rows:
                            self._close()
                        continue
                self._changed.wait(patience)
        return None

    def stop(self) -> None:
        """Ends `plan_ahead`."""
        self._stopped = True
        self._changed.notify_all()
