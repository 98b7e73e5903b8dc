"""Prompt's accumulator: its list of keys, how nearly sorted it is, and how that affects plans."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lab import milp
from skewless import Keys, Metrics, Times, measure, streams
from skewless.histogram import Histogram
from skewless.ingest.accumulator import Accumulated, Accumulator, divided
from skewless.partitioners.level import Level
from skewless.partitioners.prompt import Prompt, packed
from skewless.planning.planner import Planner
from skewless.table import RoutingTable


class Tuples(NamedTuple):
    keys: Keys
    times: Times


@st.composite
def batches(draw: st.DrawFn) -> Tuples:
    """Draws few keys, some of them frequent, with times from 0 to 99, sorted or in any order."""
    numbers = st.lists(st.integers(0, draw(st.integers(0, 40))), max_size=150)
    keys = np.array(draw(numbers), np.uint64) * np.uint64(2**60 + 1)
    times = np.array(draw(st.lists(st.integers(0, 99), min_size=keys.size, max_size=keys.size)), np.int64)
    return Tuples(keys, np.sort(times) if draw(st.booleans()) else times)


EXPECTED = {"expected_tuples": st.integers(1, 300), "expected_keys": st.integers(1, 60), "budget": st.integers(1, 12)}


def accumulated(keys: Keys, times: Times | None = None, *, pieces: int = 1, **expected: Any) -> Accumulated:
    """Accumulates a batch; by default with one tuple per unit of time and exact estimates."""
    about = {"expected_tuples": max(keys.size, 1), "expected_keys": max(np.unique(keys).size, 1)}
    end = max(keys.size, 1) if times is None else 100
    a = Accumulator((0, end), **{**about, **expected})
    times = np.arange(keys.size) if times is None else times
    for some, at in zip(np.array_split(keys, pieces), np.array_split(times, pieces), strict=True):
        a.add(some, at)
    return a.release()


def oracle(tuples: Tuples, expected_tuples: int, expected_keys: int, budget: int) -> tuple[list[Any], int]:
    """Returns (key, count, count in the tree, offsets) and the updates, by algorithm 1 with a dictionary."""
    table, updates = dict[int, dict[str, Any]](), 0
    for i, (key, now) in enumerate(zip(tuples.keys.tolist(), tuples.times.tolist(), strict=True)):
        if key not in table:
            f_step = max(1.0, expected_tuples / (expected_keys * budget))
            t_step = max(1.0, (100 - now) / budget)
            table[key] = {
                "now": 1, "updated": 1, "left": budget, "at": now, "f_step": f_step, "t_step": t_step, "tuples": [i]
            }  # fmt: skip
            continue
        k = table[key]
        k["tuples"].append(i)
        k["now"] += 1
        often, long = k["now"] - k["updated"] >= k["f_step"], now - k["at"] >= k["t_step"]
        if k["left"] > 0 and (often or long):
            k["updated"], k["left"], k["at"], updates = k["now"], k["left"] - 1, now, updates + 1
            if often:
                k["f_step"] = max(1.0, expected_tuples / budget * k["now"] / (i + 1))
            elif k["left"] > 0:
                k["t_step"] = max(1.0, (100 - now) / k["left"])
    entries = [(key, k["now"], k["updated"], k["tuples"]) for key, k in table.items()]
    return sorted(entries, key=lambda entry: -entry[2]), updates  # stable: of equals, the first to appear


def listed(batch: Accumulated) -> list[Any]:
    positions = [part.tolist() for part in np.split(batch.offsets, batch.starts[1:-1])] if batch.n_keys else []
    columns = (batch.keys.tolist(), batch.counts.tolist(), batch.approximate.tolist(), positions)
    return list(zip(*columns, strict=True))


@given(tuples=batches(), **EXPECTED)
def test_it_is_algorithm_1(tuples: Tuples, **expected: Any) -> None:
    batch = accumulated(*tuples, **expected)
    assert (listed(batch), batch.updates) == oracle(tuples, **expected)
    assert (batch.n_tuples, batch.n_keys) == (tuples.keys.size, np.unique(tuples.keys).size)
    assert batch.updates <= expected["budget"] * batch.n_keys


@given(tuples=batches(), pieces=st.integers(2, 9), **EXPECTED)
def test_chunking_changes_nothing(tuples: Tuples, pieces: int, **expected: Any) -> None:
    whole, chunked = (accumulated(*tuples, pieces=n, **expected) for n in (1, pieces))
    assert (listed(whole), whole.updates) == (listed(chunked), chunked.updates)


@given(tuples=batches())
def test_with_an_update_per_tuple_it_is_sorted(tuples: Tuples) -> None:
    batch = accumulated(*tuples, expected_tuples=1, budget=1000)
    assert batch.approximate.tolist() == batch.counts.tolist() == sorted(batch.counts.tolist(), reverse=True)
    assert batch.disorder() == 0.0


@given(counts=st.lists(st.integers(1, 9), max_size=40))
def test_disorder_is_the_share_of_pairs_in_the_wrong_order(counts: list[int]) -> None:
    of_key, numbers = np.array(counts, np.int64), np.arange(1, len(counts) + 1)
    batch = Accumulated(numbers.astype(np.uint64), of_key, of_key, 0, numbers, np.empty(0, np.int32))
    pairs = [(a, b) for i, a in enumerate(counts) for b in counts[i + 1 :] if a != b]
    assert batch.disorder() == pytest.approx(sum(a < b for a, b in pairs) / max(len(pairs), 1))


FIGURE_5: NDArray[np.int64] = np.array([102, 87, 87, 59, 20, 15, 8, 7])


@pytest.mark.parametrize("seed", range(20))
def test_prompts_example(seed: int) -> None:
    """Figure 5: the fully updated tree of 385 tuples is sorted; with the default budget the plan is as good."""
    keys = np.random.default_rng(seed).permutation(np.repeat(np.arange(1, 9, dtype=np.uint64), FIGURE_5))
    full = accumulated(keys, budget=385)
    assert (full.n_tuples, full.n_keys) == (385, 8)
    assert full.counts.tolist() == full.approximate.tolist() == FIGURE_5.tolist()
    assert {1, 2, 3} == {*full.keys[:3].tolist()}
    assert full.keys[3:].tolist() == [4, 5, 6, 7, 8]
    m = measure(keys, divided(accumulated(keys), 4), 4)
    assert m.load.max() <= 97
    assert m.fragments <= 8 + 3


def heavy_sorted(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns counts with those of the keys that Prompt cuts sorted, before the others in their order."""
    heavy = counts * counts.size > counts.sum()
    return np.concatenate((np.sort(counts[heavy])[::-1], counts[~heavy]))


@pytest.mark.compiled
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
class TestZipf:
    """100,000 tuples of up to 10,000 keys, by the default budget."""

    def test_is_nearly_sorted(self, exponent: float) -> None:
        batch = accumulated(streams.zipf(100_000, 10_000, exponent))
        assert 0 < batch.disorder() < 0.05
        assert batch.updates < 4 * batch.n_keys
        top = batch.keys[:3].tolist()
        assert exponent < 1 or top == [0, 1, 2]

    def test_a_larger_budget_sorts_better(self, exponent: float) -> None:
        found = [accumulated(streams.zipf(100_000, 10_000, exponent), budget=b).disorder() for b in (1, 2, 4, 8, 16)]
        assert found == sorted(found, reverse=True)
        assert found[-1] < 0.01

    @pytest.mark.parametrize("n_workers", [16, 64])
    def test_plans_are_nearly_as_good_as_from_sorted_keys(self, exponent: float, n_workers: int) -> None:
        keys = streams.zipf(100_000, 10_000, exponent)
        about, exact = (plan(keys, n_workers, budget) for budget in (None, 100_000))
        assert about.imbalance <= exact.imbalance + 1
        assert about.cardinality_imbalance <= exact.cardinality_imbalance + 3
        assert about.fragments <= exact.fragments + n_workers / 4


@pytest.mark.compiled
def test_keys_that_become_hot_late_spoil_a_plan_unless_the_heavy_ones_are_sorted() -> None:
    """A rare key has a small step: when it becomes hot, it spends the rest of its budget at once."""
    batch = accumulated(streams.drifting(100_000, 10_000, 1.0, every=25_000))
    assert batch.disorder() < 0.06
    lists = (np.sort(batch.counts)[::-1], batch.counts, heavy_sorted(batch.counts))
    best, as_listed, mended = (packed(counts.astype(np.float64), 64).workers.size for counts in lists)
    assert as_listed > best + 64
    assert mended <= best + 16


def plan(keys: Keys, n_workers: int, budget: int | None) -> Metrics:
    batch = accumulated(keys) if budget is None else accumulated(keys, budget=budget)
    return measure(keys, divided(batch, n_workers), n_workers)


@given(tuples=batches(), n_workers=st.integers(1, 9))
def test_a_plan_and_a_division_of_it_agree(tuples: Tuples, n_workers: int) -> None:
    """In any order of the list, every tuple gets a block, and the table has the same shares as the division."""
    batch = accumulated(*tuples, budget=1)
    listed = Histogram(batch.keys, batch.counts.astype(np.float64))
    table = Prompt(n_workers).plan(listed, RoutingTable.hashed(n_workers))
    workers = divided(batch, n_workers)
    for key, start, end in zip(batch.keys.tolist(), batch.starts[:-1], batch.starts[1:], strict=True):
        found, sizes = np.unique(workers[batch.offsets[start:end]], return_counts=True)
        assert table.shares(key) == pytest.approx(dict(zip(found.tolist(), sizes / (end - start), strict=True)))


def test_heavy_keys_are_split_wherever_they_are_in_the_list() -> None:
    """A nearly sorted list may have a light key before a heavy one, which would overfill its block if kept whole."""
    for counts in ([90.0, 4.0, 4.0, 2.0], [2.0, 90.0, 4.0, 4.0]):
        found = packed(np.array(counts), 4)
        assert found.sizes.sum() == 100
        assert np.bincount(found.workers, found.sizes).max() < 30


def test_an_empty_batch() -> None:
    batch = accumulated(np.empty(0, np.uint64))
    assert (batch.n_tuples, batch.n_keys, batch.updates, batch.disorder()) == (0, 0, 0, 0.0)
    assert batch.offsets.size == divided(batch, 3).size == 0


GOOD: dict[str, Any] = {"interval": (10, 20), "expected_tuples": 10, "expected_keys": 5}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"interval": (20, 20)}, "the interval must end after its start 20, not at 20"),
        ({"expected_tuples": 0}, "expected_tuples is at least 1, not 0"),
        ({"expected_keys": 0}, "expected_keys is at least 1, not 0"),
        ({"budget": 0}, "budget is between 1 and 4611686018427387904, not 0"),
    ],
)
def test_bad_accumulators(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Accumulator(**{**GOOD, **wrong})


def test_bad_tuples() -> None:
    a, key = Accumulator(**GOOD), np.zeros(1, np.uint64)
    for time in (9, 20):
        with pytest.raises(ValueError, match=f"are from 10 to before 20, not from {time} to {time}"):
            a.add(key, np.array([time]))
    with pytest.raises(TypeError, match="every tuple of a batch needs a time"):
        a.add(key, None)  # type: ignore[arg-type]
    a.add(key, np.array([10]))
    a.add(key, np.array([19]))
    assert a.release().counts.tolist() == [2]
    for act in (a.release, lambda: a.add(key, np.array([19]))):
        with pytest.raises(ValueError, match="has been released: use a new accumulator"):
            act()


@pytest.mark.compiled
@pytest.mark.parametrize(("cls", "fragments", "cardinality", "size"), [(Prompt, 1.6, 0.6, 3.0), (Level, 1.5, 1.4, 0.0)])
def test_plans_are_close_to_the_optimum_and_never_better(
    cls: type[Planner], fragments: float, cardinality: float, size: float
) -> None:
    """The gaps of `lab.milp`, on fewer batches."""
    gaps = []
    for seed in range(25):
        counts, n_blocks = milp.batch(seed)
        gaps.append(milp.gap(milp.achieved(cls(n_blocks), counts), counts, n_blocks))
    assert min(min(gap) for gap in gaps) >= 0
    mean = np.mean(gaps, axis=0)
    assert mean[0] <= fragments
    assert mean[1] <= cardinality
    assert mean[2] <= size


def test_the_solver_on_prompts_example() -> None:
    """Figure 6c: ten fragments are the fewest there can be, and no plan with ten has fewer than 3 keys in a block."""
    assert milp.achieved(Prompt(4), FIGURE_5) == (10, 3, 97)
    assert milp.fewest_fragments(FIGURE_5, 4, 97) == 10
    assert milp.least_cardinality(FIGURE_5, 4, 97, 10) == 3
