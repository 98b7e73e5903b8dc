"""The simulator equals a loop over tuples, for any number of sources, and reproduces PKG's findings."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from skewless import Keys, Window, measure, partitioner, simulate, streams
from skewless.cooperation.protocol import exchange
from skewless.partitioners import ALL
from skewless.simulate import SOURCES

KEYS = streams.zipf(40_000, keys=3000, exponent=1.0)


@pytest.mark.parametrize("name", [cls.name for cls in ALL])
def test_one_source_is_the_partitioner_itself(name: str) -> None:
    records = list(simulate(partitioner(name, 16), KEYS, batch=7000))
    p = partitioner(name, 16)
    workers = []
    for batch in np.split(KEYS, range(7000, KEYS.size, 7000)):
        if p.plans_ahead:
            p.observe(batch)
            exchange([p])
        workers.append(p.route(batch))
    m = measure(KEYS, np.concatenate(workers), 16)
    assert [r.tuples for r in records] == [7000, 14000, 21000, 28000, 35000, 40000]
    assert (records[-1].load.tolist(), records[-1].fragments, records[-1].keys) == (
        m.load.tolist(),
        m.fragments,
        m.keys,
    )
    assert records[-1].imbalance == m.imbalance
    assert records[-1].mean_imbalance == pytest.approx(np.mean([r.imbalance for r in records]))


@pytest.mark.parametrize("split", ["uniform", "by_key", "given"])
@pytest.mark.parametrize("sync_every", [None, 2])
def test_several_sources_are_several_partitioners(split: Any, sync_every: int | None) -> None:
    """Compares with routing one tuple at a time."""
    keys = KEYS[:3000]
    given = np.arange(3000, dtype=np.int32) ** 2 % 3
    source: dict[str, NDArray[np.integer[Any]]] = {
        "uniform": np.arange(3000) % 3,
        "by_key": partitioner("hash", 3, seed=SOURCES).route(keys),
        "given": given,
    }
    sources = [partitioner("pkg", 8) for _ in range(3)]
    workers = np.empty(3000, np.int32)
    for i in range(3000):
        workers[i] = sources[source[split][i]].route(keys[i : i + 1])[0]
        if sync_every and i % 2000 == 1999:  # after every second batch of 1000
            exchange(sources)
    options: dict[str, Any] = {"sources": 3, "batch": 1000, "sync_every": sync_every}
    *_, last = simulate(partitioner("pkg", 8), keys, split=given if split == "given" else split, **options)
    m = measure(keys, workers, 8)
    assert (last.load.tolist(), last.fragments) == (m.load.tolist(), m.fragments)
    assert last.syncs == (1 if sync_every else 0)


def test_global_knowledge_is_one_partitioner() -> None:
    *_, alone = simulate(partitioner("pkg", 8), KEYS)
    *_, together = simulate(partitioner("pkg", 8), KEYS, sources=5, sync_every=0)
    assert alone.load.tolist() == together.load.tolist()


def test_global_knowledge_of_given_sources() -> None:
    source = np.arange(KEYS.size, dtype=np.int32) % 3
    *_, together = simulate(partitioner("pkg", 8), KEYS, sources=3, sync_every=0, split=source)
    assert together.load.tolist() == np.bincount(partitioner("pkg", 8).route(KEYS), minlength=8).tolist()


@pytest.mark.parametrize("window", [Window(10_000, 2500), Window(10_000, 3000), Window(4000)])
@pytest.mark.parametrize("batches", [1, 7])
def test_a_window_measures_its_own_tuples_only(window: Window, batches: int) -> None:
    stream = KEYS if batches == 1 else np.array_split(KEYS, batches)
    records = list(simulate(partitioner("pkg", 8), stream, window=window))
    workers = partitioner("pkg", 8).route(KEYS)
    assert len(records) == -(-KEYS.size // window.slide)
    for number, record in enumerate(records):
        end = min((number + 1) * window.slide, KEYS.size)
        last = slice(max(0, end - window.size), end)
        m = measure(KEYS[last], workers[last], 8)
        assert (record.load.tolist(), record.fragments) == (m.load.tolist(), m.fragments)


def test_a_planner_observes_every_batch_and_plans_every_kth() -> None:
    for every, plans in ((1, 4), (2, 2), (4, 1)):
        p = partitioner("off_greedy", 4)
        *_, last = simulate(p, KEYS, batch=10_000, sync_every=every)
        assert last.syncs == plans
        assert p.snapshot().counts.slots[1::2].sum() == KEYS.size


def test_what_a_used_partitioner_has_learned_is_counted_once() -> None:
    p = partitioner("pkg", 8)
    p.route(KEYS)
    list(simulate(p, KEYS, sources=5, sync_every=1))
    assert p.snapshot().load.sum() == 2 * KEYS.size


@pytest.mark.parametrize("sources", [5, 10])
def test_sources_split_by_key_are_as_balanced_as_others(sources: int) -> None:
    """The hash that assigns keys to sources must differ from the one of their first candidate."""
    keys = streams.matched(200_000, 20_000, 0.01)
    by_key, uniform = (
        average_imbalance("pkg", keys, 10, sources=sources, sync_every=None, split=split)
        for split in ("by_key", "uniform")
    )
    assert by_key < 5 * uniform + 10


def test_a_stream_may_be_an_iterable_of_batches() -> None:
    batches = (streams.zipf(10_000, 3000, 1.0, start=start) for start in range(0, 40_000, 10_000))
    *_, pieces = simulate(partitioner("pkg", 8), batches, cardinality="hll")
    *_, whole = simulate(partitioner("pkg", 8), KEYS)
    assert pieces.load.tolist() == whole.load.tolist()
    assert pieces.fragments == pytest.approx(whole.fragments, rel=0.07)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"sources": 0}, "sources is at least 1, not 0"),
        ({"batch": 0}, "batch is at least 1, not 0"),
        ({"sync_every": -1}, "sync_every is at least 0, not -1"),
        ({"window": Window(5), "cardinality": "hll"}, "a window is measured exactly"),
        ({"split": "random"}, 'split is "uniform", "by_key" or an array, not \'random\''),
        ({"split": np.zeros(3, np.int32)}, "split has 3 sources for 40000 tuples"),
        ({"split": np.full(40_000, 2, np.int32), "sources": 2}, "sources are numbered from 0 to 1"),
        ({"cardinality": "rough"}, "cardinality is"),
    ],
)
def test_bad_input_is_refused_before_any_work(options: dict[str, Any], sentence: str) -> None:
    p = partitioner("pkg", 4)
    with pytest.raises(ValueError, match=sentence):
        simulate(p, KEYS, **options)
    assert not p.snapshot().load.any()


def average_imbalance(name: str, keys: Keys, n_workers: int, **options: Any) -> float:
    p = partitioner(name, n_workers)
    if p.plans_ahead:
        p.observe(keys)
        exchange([p])
        options["sync_every"] = None
    *_, last = simulate(p, keys, batch=keys.size // 50, **options)
    return last.mean_imbalance


class TestClaimsOfPkg:
    """PKG section V at small scale."""

    keys = streams.matched(200_000, 20_000, 0.0932)

    def test_key_splitting_beats_whole_keys_until_workers_exceed_two_over_p1(self) -> None:
        few = {name: average_imbalance(name, self.keys, 10) for name in ("pkg", "on_greedy", "potc", "hash")}
        assert few["pkg"] < 10 < min(few["on_greedy"], few["potc"])
        assert max(few["on_greedy"], few["potc"]) < few["hash"] / 2

    def test_with_more_workers_imbalance_is_half_of_p1_minus_one_over_n(self) -> None:
        for n_workers in (50, 100):
            *_, last = simulate(partitioner("pkg", n_workers), self.keys)
            p1 = np.bincount(self.keys.astype(int)).max() / self.keys.size
            assert last.imbalance == pytest.approx((p1 / 2 - 1 / n_workers) * self.keys.size, rel=0.02)

    def test_off_greedy_reaches_the_bound_of_whole_keys(self) -> None:
        p = partitioner("off_greedy", 10)
        p.observe(self.keys)
        exchange([p])
        *_, last = simulate(p, self.keys, sync_every=None)
        assert last.imbalance <= 1
        assert last.fragments == last.keys

    def test_local_estimation_is_as_good_as_global_and_probing_does_not_help(self) -> None:
        how = {"G": 0, "L": None, "LP": 1}
        found = {
            name: average_imbalance("pkg", self.keys, 10, sources=5, sync_every=every) for name, every in how.items()
        }
        assert found["L"] < 10 * max(found["G"], 1)
        assert found["LP"] > found["L"] / 2
        assert found["L"] < average_imbalance("hash", self.keys, 10) / 1000

    def test_skewed_sources_do_not_matter(self) -> None:
        """Question 3: tuples are assigned to sources by source vertex and routed by destination vertex."""
        edges = streams.graph_edges(200_000, 20_000, 0.8)
        skewed = partitioner("hash", 5).route(edges.source)
        options: dict[str, Any] = {"sources": 5, "sync_every": None}
        assert np.bincount(skewed).max() > 1.1 * 200_000 / 5
        uniformly = average_imbalance("pkg", edges.destination, 10, **options)
        assert average_imbalance("pkg", edges.destination, 10, split=skewed, **options) < 10 * uniformly + 10


def test_the_given_partitioner_is_the_first_source() -> None:
    p = partitioner("pkg", 8)
    expected = deepcopy(p)
    list(simulate(p, KEYS, sources=2, sync_every=None))
    expected.route(KEYS[::2].copy())
    assert p.snapshot().load.tolist() == expected.snapshot().load.tolist()
