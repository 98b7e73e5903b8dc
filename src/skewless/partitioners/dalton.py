"""Dalton: a contextual bandit learns where the tuples of each hot key do most good; all other keys are hashed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skewless.arguments import require, whole
from skewless.arrays import Keys, Times, Workers, checked, copied, fingerprint, n_bytes, precedence, ticking
from skewless.kernels import hashtable
from skewless.kernels import window as windows
from skewless.kernels.hash import all_mixed, hasher
from skewless.kernels.hashtable import Entries, Table
from skewless.kernels.lowest import floor
from skewless.kernels.sketch import count_min
from skewless.kernels.window import NEVER, clock, holders, sliding_window
from skewless.partitioner import Partitioner, Window, check_window
from skewless.partitioners import bandit
from skewless.partitioners.bandit import FREE, GAMMA, WORST, ZERO_SLIDE, Agreed, Learned, Peers, Rows, Statistics

STATISTICS = 1000  # length of a statistics window where there is no slide
MOST_OTHERS = 8  # a source assumes at most this many tuples of each other source per tuple of its own
LONGEST = 1000  # statistics windows that an agreed row lasts at most
SKETCH = (4, 4096)  # of the count-min sketch: depth and width


@dataclass(eq=False)
class Dalton(Partitioner[Learned, Agreed]):
    """Dalton: for a hot key, the worker with the best expected reward, now and then any; for the rest, the hash.

    The reward of a tuple is -(CI + CA) / 2: how much fuller its worker is than the mean, and over how many workers its
    key is spread (equations 3 and 4). Estimates follow rewards by a tenth (equation 5) and begin at the worst, so that
    a key stays with its worker until exploration has shown a better one. A key turns hot when its tuples in a
    statistics window reach 1 / n of all tuples of the previous window, and stays so to the end of the next one
    (definition 3.3, section 3.3).

    window: what counts as load and fragments; None: everything since the beginning. A slide is a statistics window.
    hot: keys with at least 1 / (hot x n) of the tuples are learned about, at most hot x n of them. 1 is the paper's,
        and lets keys just below the threshold collide on one worker.
    frequencies: "exact" counts in a hash map, "sketch" in a count-min sketch, "hybrid" takes the sketch when the last
        statistics window had more keys than half the columns of the sketch, else the hash map.
    micro_batch: fragments count within a slide, which is then a micro-batch, not within the window (section 3.4).
    average: how estimates of several sources become one. "pooled": as if one learner had had the rewards of all.
        "mean": the mean, weighted by the tuples that each saw of the key; the more sources, the slower it learns.
        "paper": the weighted sum divided by all tuples times the number of sources, which shrinks it to almost 0.
    greedy: no bandit. A hot key goes to the emptiest of its workers, and to the emptiest of all when that one is more
        than 5 % above the mean. With hot=5 this leaves less than half of the bandit's imbalance, and fewer fragments
        than `pkg`.

    >>> import skewless
    >>> keys = skewless.streams.zipf(500_000, keys=10_000, exponent=1.5)
    >>> for name, params in (("hash", {}), ("dalton", {}), ("dalton", {"hot": 5, "greedy": True})):
    ...     m = skewless.measure(keys, skewless.partitioner(name, 16, **params).route(keys), 16)
    ...     print(name, params, round(m.imbalance_ratio, 2), m.keys, m.fragments)
    hash {} 6.54 5137 5137
    dalton {} 1.41 5137 5194
    dalton {'hot': 5, 'greedy': True} 1.01 5137 5156

    Zapridou, Mytilinis, Ailamaki: Dalton: learned partitioning for distributed data streams. PVLDB 16(3), 2022.

    Departures from the paper: `hot` and `greedy`. Ties go to the first worker, counted from the key's hash worker. A
    key turns hot only if it came at least twice in its statistics window; until then its hash worker is assumed to hold
    it. If more keys are hot than there are rows, the later ones are hashed. Cooperation: `average`. Sources share their
    loads too, so that rewards reflect the load of all. Between two agreements a source assumes that the others do what
    it does, in proportion to their tuples; otherwise all would see, and fill, the same empty worker. Rewards after a
    message take effect at once; when the answer comes, they are applied to it, as if they had been buffered.
    """

    name: ClassVar[str] = "dalton"
    splits_keys: ClassVar[bool] = True

    window: Window | None = None
    hot: int = 1
    frequencies: Literal["exact", "sketch", "hybrid"] = "exact"
    micro_batch: bool = False
    average: Literal["pooled", "mean", "paper"] = "pooled"
    greedy: bool = False

    def __post_init__(self) -> None:
        check_window(self.window)
        self.hot = whole("hot", self.hot, 1, 1000)
        kinds = ("exact", "sketch", "hybrid")
        require(self.frequencies in kinds, f"frequencies is one of {', '.join(kinds)}, not {self.frequencies!r}")
        averages = ("pooled", "mean", "paper")
        require(self.average in averages, f"average is one of {', '.join(averages)}, not {self.average!r}")
        super().__post_init__()

    def fresh(self) -> Learned:
        n, rows = self.n_workers, self.hot * self.n_workers
        size, slide = (self.window.size, self.window.slide) if self.window else (NEVER, NEVER)
        frequency = Statistics(
            clock=clock(slide if self.window else STATISTICS),
            seen=np.zeros(2, np.int64),
            exact=hashtable.table(),
            rough=count_min(*SKETCH),
            use=np.array([self.frequencies == "sketch", self.frequencies == "hybrid"], np.int64),
        )
        q = Rows(
            numbers=hashtable.table(rows + 1),
            keys=np.zeros(rows, np.uint64),
            spare=np.arange(rows, dtype=np.int64)[::-1].copy(),
            until=np.full(rows, FREE, np.int64),
            born=np.zeros(rows, np.int64),
            values=np.full((rows, n), WORST),
            before=np.full((rows, n), WORST),
            tries=np.zeros((rows, n), np.int64),
            best=np.zeros(rows, np.int64),
            second=np.full(rows, WORST),
            counts=np.zeros(rows, np.int64),
        )
        no_keys = np.zeros(0, np.uint64)
        no_agreement = Agreed(
            version=np.zeros(1, np.int64),
            keys=no_keys,
            values=np.zeros((0, n)),
            held=np.zeros((0, n), np.bool_),
            load=np.zeros(n, np.int64),
            tuples=np.zeros(3, np.int64),
            split=no_keys,
            split_in=no_keys,
            covers=np.full(1, FREE, np.int64),
        )
        return Learned(
            hasher=hasher(n, self.seed),
            rule=np.array([rows, self.micro_batch, self.greedy, fingerprint(self)], np.int64),
            frequency=frequency,
            window=sliding_window(n, rows, size, slide),
            load=np.zeros(n),
            total=np.zeros(1),
            tuples=np.zeros(2, np.int64),
            rows=q,
            least=floor(),
            holders=holders(rows),
            once=hashtable.table(),
            peers=Peers(load=np.zeros(n), ratio=np.zeros(1), near=hashtable.table(), agreed_in=np.zeros(1, np.int64)),
            agreed=no_agreement,
        )

    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        # Statistics windows pass even where the window itself never ends.
        ticks = ticking(self._state.frequency.clock.now, times, keys.size)
        self.run(bandit.assign, keys, ticks, workers)

    def grown(self, state: Learned) -> Learned:
        if hashtable.full(state.frequency.exact):
            return state._replace(frequency=state.frequency._replace(exact=hashtable.grown(state.frequency.exact)))
        if hashtable.full(state.peers.near):
            return state._replace(peers=state.peers._replace(near=hashtable.grown(state.peers.near)))
        return state._replace(once=_pruned(state))

    def memory_bound(self, n_keys: int) -> int:
        # Keys of a statistics window, those that were hot once, and those near it; and what was agreed on.
        rows = self.hot * self.n_workers
        tables = 3 * hashtable.most_bytes(2 * n_keys + rows)
        return n_bytes(self.fresh()) + tables + rows * (9 * self.n_workers + 16) + 16 * n_keys

    def merge(self, snapshots: Sequence[Learned]) -> Agreed:
        """Returns the heavy hitters of all sources together and the estimates for them (section 4.1)."""
        require(len(snapshots) >= 1, "merge needs at least 1 snapshot")
        last = max((s.agreed for s in snapshots), key=precedence)
        active = [s for s in snapshots if s.tuples[bandit.SINCE] > 0]
        if not active:
            return copied(last)
        # Sources that are idle now reported earlier slides; one that is missing may be splitting keys somewhere.
        started = [s for s in snapshots if s.tuples[bandit.EVER] > 0]
        sources_ever = max(len(started), int(last.tuples[bandit.SOURCES_EVER]))
        covers = np.min([s.window.clock.number for s in started], axis=0)
        counts, learned = dict[int, int](), dict[int, list[_Report]]()
        for report in (report for s in active for report in _reports(s)):
            counts[report.key] = counts.get(report.key, 0) + report.tuples
            if report.values.size:
                learned.setdefault(report.key, []).append(report)
        total, rows = sum(int(s.tuples[bandit.SINCE]) for s in active), self.hot * self.n_workers
        # A key that is learned about stays so until it has fallen to half the threshold, or it would come and go.
        hot = [key for key in counts if counts[key] * rows * (2 if key in learned else 1) >= total]
        keys = sorted(sorted(hot, key=lambda key: (-counts[key], key))[:rows])
        values, held = np.full((len(keys), self.n_workers), WORST), np.zeros((len(keys), self.n_workers), np.bool_)
        for number, key in enumerate(keys):
            if key in learned:
                values[number] = self._combined(learned[key], total, len(active))
                held[number] = np.any([report.tries > 0 for report in learned[key]], axis=0)
        split, split_in = _latest([hashtable.entries(_pruned(s)) for s in started])
        return Agreed(
            version=last.version + 1,
            keys=np.array(keys, np.uint64),
            values=values,
            held=held,
            load=np.stack([s.window.load for s in snapshots]).sum(axis=0),
            tuples=np.array([total, len(started), sources_ever], np.int64),
            split=split,
            split_in=split_in,
            covers=covers if len(started) == sources_ever else np.minimum(covers, last.covers),
        )

    def _combined(self, reports: list[_Report], total: int, sources: int) -> NDArray[np.float64]:
        """Returns the estimates of one key; they do not depend on the order of the sources."""
        if self.average == "pooled":
            return _pooled(reports)
        weighted = _sum([report.tuples * report.values for report in reports])
        return weighted / (sum(report.tuples for report in reports) if self.average == "mean" else total * sources)

    def adopt(self, policy: Agreed, reported: Learned | None = None) -> None:
        """Follows a policy (algorithm 2, l. 17 to 20); rewards since the snapshot `reported` are applied to it."""
        of_kind = type(policy) is Agreed
        shape = policy.values.shape if of_kind else ()
        fits = of_kind and shape == (policy.keys.size, self.n_workers) == policy.held.shape
        require(fits and policy.load.shape == shape[1:], f"this policy is not an Agreed of {self.n_workers} workers")
        if precedence(policy) <= precedence(self._state.agreed):
            return
        state = copied(self._state)
        reported = copied(state if reported is None else reported)
        q, window = state.rows, int(state.frequency.clock.number[0])
        same = (
            (q.until != FREE)
            & (reported.rows.until != FREE)
            & (q.keys == reported.rows.keys)
            & (q.born == reported.rows.born)
        )
        q.counts[:] -= np.where(same, reported.rows.counts, 0)
        q.tries[:] -= np.where(same[:, None], reported.rows.tries, 0)
        # Equation 5 is Q -> (1 - gamma) Q + gamma R: all rewards of an estimate together are one factor and one term.
        factor = (1 - GAMMA) ** q.tries
        term = q.values - factor * np.where(same[:, None], reported.rows.values, q.before)
        state = state._replace(
            once=_split_keys(state, policy), peers=_estimated_peers(state, reported, policy), agreed=copied(policy)
        )
        state.tuples[bandit.SINCE] -= reported.tuples[bandit.SINCE]
        for row in np.flatnonzero(same & ~np.isin(q.keys, policy.keys)).tolist():
            bandit.release(state, row)
        # An agreed row lasts until the next agreement and a window more, if that takes as long as this one did.
        before = int(self._state.peers.agreed_in[0])
        waited = min(window - before, LONGEST) if FREE < before < window and self._state.agreed.version[0] > 0 else 0
        for number, key in enumerate(policy.keys):
            row = int(q.numbers.slots[int(hashtable.find(q.numbers, key)) + 1]) - 1
            new = row < 0
            row = int(bandit.new_row(state, key)) if new else row
            if row >= 0:
                q.until[row] = window + 1 + waited
                q.values[row] = policy.values[number] if new else factor[row] * policy.values[number] + term[row]
                q.before[row] = policy.values[number]
                bandit.seek_best(state, row)
                if state.tuples[bandit.EVER] > 0:
                    for worker in np.flatnonzero(policy.held[number]).tolist():
                        windows.hold(state.window, row, worker)
        bandit.new_loads(state, 0.0)
        self._state = state

    def forwards(self, keys: Keys, slide: int | None = None) -> NDArray[np.bool_]:
        """Returns for each key whether its result for a window is complete on its hash worker (section 4.2).

        slide: number of the window's last slide; by default the present one. Where there are other sources, a key is
            forwarded only when all of them have reported the whole of that slide; and not when it is long past.
        """
        keys, _ = checked(keys)
        s = self._state
        now, slides = int(s.window.clock.number[0]), s.window.ring_load.shape[0]
        slide = now if slide is None else slide
        if slide <= now - slides or (s.agreed.tuples[bandit.SOURCES_EVER] > 1 and slide >= s.agreed.covers[0]):
            return np.zeros(keys.size, np.bool_)
        split, last = hashtable.entries(s.once)
        within = last.astype(np.int64) - ZERO_SLIDE > slide - (1 if self.micro_batch else slides)
        hot = s.rows.keys[s.rows.until != FREE]
        return ~np.isin(all_mixed(s.hasher, keys), np.concatenate((split[within], hot)))


class _Report(NamedTuple):
    """What a source reports of a key; for a key that is nearly hot, only the number of tuples."""

    key: int
    tuples: int
    values: NDArray[np.float64]
    before: NDArray[np.float64]
    tries: NDArray[np.int64]


def _reports(s: Learned) -> Iterator[_Report]:
    q = s.rows
    for row in np.flatnonzero((q.until != FREE) & (q.counts > 0)).tolist():
        yield _Report(
            key=int(q.keys[row]),
            tuples=int(q.counts[row]),
            values=q.values[row],
            before=q.before[row],
            tries=q.tries[row],
        )
    for key, tuples in zip(*(part.tolist() for part in hashtable.entries(s.peers.near)), strict=True):
        yield _Report(key=key, tuples=tuples, values=np.empty(0), before=np.empty(0), tries=np.empty(0, np.int64))


def _pooled(reports: list[_Report]) -> NDArray[np.float64]:
    """Returns the estimates of one learner with all rewards; how a source's estimates changed gives its mean reward."""
    tries = np.sum([report.tries for report in reports], axis=0)
    factors = [(1 - GAMMA) ** report.tries for report in reports]
    rewards = [
        report.tries * (report.values - factor * report.before) / np.maximum(1 - factor, GAMMA)
        for report, factor in zip(reports, factors, strict=True)
    ]
    factor = (1 - GAMMA) ** tries
    before = _sum([report.tuples * report.before for report in reports]) / sum(report.tuples for report in reports)
    return np.asarray(factor * before + (1 - factor) * _sum(rewards) / np.maximum(tries, 1))


def _sum(arrays: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Returns a sum that does not depend on the order of the arrays."""
    return np.asarray(np.sort(np.stack(arrays), axis=0).sum(axis=0))


def _pruned(s: Learned) -> Table:
    """Returns the keys that are hot, or were within this window or the one before, with their last hot slide."""
    keys, last = hashtable.entries(s.once)
    hot = np.isin(keys, s.rows.keys[s.rows.until != FREE])
    slide = max(int(s.window.clock.number[0]), 1 - ZERO_SLIDE) + ZERO_SLIDE
    last = np.where(hot, np.uint64(slide), last)
    recent = hot | (last.astype(np.int64) > slide - 2 * s.window.ring_load.shape[0])
    return hashtable.filled(keys[recent], last[recent], room=2 * int(recent.sum()))


def _latest(tables: Sequence[Entries]) -> Entries:
    """Returns the keys of all tables, ascending, each with its latest slide."""
    keys, last = (np.concatenate(part) for part in zip(*tables, strict=True))
    order = np.lexsort((last, keys))
    at_end = np.append(keys[order][1:] != keys[order][:-1], True)[: keys.size]
    return Entries(keys[order][at_end], last[order][at_end])


def _split_keys(s: Learned, policy: Agreed) -> Table:
    """Returns the keys that were split by any source, in a table with room for all rows."""
    keys, last = _latest([hashtable.entries(_pruned(s)), Entries(policy.split, policy.split_in)])
    return hashtable.filled(keys, last, room=2 * keys.size + int(s.rule[bandit.N_ROWS]))


def _estimated_peers(s: Learned, reported: Learned, policy: Agreed) -> Peers:
    """Estimates the other sources: as agreed, and since then in proportion to what this source has done."""
    others, own = np.maximum(policy.load - reported.window.load, 0), int(reported.window.load.sum())
    ratio = min(float(others.sum()) / max(own, 1), MOST_OTHERS * float(policy.tuples[bandit.SOURCES_EVER]))
    load = others + ratio * np.maximum(s.window.load - reported.window.load, 0)
    before = dict(zip(*(part.tolist() for part in hashtable.entries(reported.peers.near)), strict=True))
    keys, counts = hashtable.entries(s.peers.near)
    counts = counts - np.array([before.get(key, 0) for key in keys.tolist()], np.uint64)
    new = (counts > 0) & ~np.isin(keys, policy.keys)
    return Peers(
        load=load,
        ratio=np.array([ratio]),
        near=hashtable.filled(keys[new], counts[new]),
        agreed_in=s.frequency.clock.number.copy(),
    )
