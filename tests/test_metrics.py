"""Each measure against its equation, worked by hand or in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless import measure, partitioner, streams
from skewless.metrics import (
    REDUCERS,
    Measurement,
    Metrics,
    counted,
    estimated_measurement,
    exact_measurement,
    fragment_cost,
    hybrid_load,
    imbalance,
    imbalance_ratio,
    load_cost,
    metrics,
    normalized,
    reducer_cost,
)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), max_size=200))
def test_measure_counts_sets(tuples: list[tuple[int, int]]) -> None:
    keys = np.array([key for key, _ in tuples], np.uint64)
    workers = np.array([worker for _, worker in tuples], np.int32)
    m = measure(keys, workers, 5)
    assert m.load.tolist() == [sum(w == i for _, w in tuples) for i in range(5)]
    assert m.cardinality.tolist() == [len({k for k, w in tuples if w == i}) for i in range(5)]
    assert m.keys == len({k for k, _ in tuples})
    assert m.fragments == m.aggregation_cost == len(set(tuples))
    assert m.tuples == len(tuples)


M = Metrics(np.array([6, 2, 4, 0]), np.array([2, 1, 3, 0]), 4)


def test_imbalance_is_max_minus_mean() -> None:
    assert M.imbalance == 3  # PKG I(t), Holistic 1, Prompt 2 and 3, Dalton 1: 6 - 12 / 4
    assert M.imbalance_ratio == 2  # DR: 6 / 3
    assert M.cardinality_imbalance == 1.5  # Holistic 6, Prompt 4: 3 - 6 / 4


def test_key_split_ratio_is_fragments_per_key() -> None:
    assert M.key_split_ratio == 1.5  # Prompt 5: 6 / 4


def test_hybrid_load() -> None:
    assert normalized(M.load).tolist() == [1, 1 / 3, 2 / 3, 0]  # Holistic 7
    assert normalized(M.cardinality).tolist() == [2 / 3, 1 / 3, 1, 0]  # Holistic 8
    assert hybrid_load(M.load, M.cardinality, 0.25) == pytest.approx([0.75, 1 / 3, 11 / 12, 0])  # Holistic 9
    assert M.hybrid_imbalance(0.25) == pytest.approx(11 / 12 - 0.5)  # Holistic 10


def test_mpi_weighs_the_three() -> None:
    assert M.mpi() == pytest.approx((3 + 1.5 + 1.5) / 3)  # Prompt 6
    assert M.mpi(1, 0, 0) == M.imbalance
    assert M.mpi(0, 0, 1) == M.key_split_ratio


def test_dalton_costs() -> None:
    load = np.array([4, 1, 1])  # the new tuple is counted
    assert load_cost(load, 0) == 0.5  # Dalton 3: (4 - 2) / 4
    assert load_cost(load, 1) == -0.5  # (1 - 2) / 2
    assert fragment_cost(2, 8) == 0.25  # Dalton 4


def test_reducer_cost_is_the_busiest_reducers() -> None:
    keys = streams.zipf(5000, keys=200, exponent=1.0)
    workers = partitioner("pkg", 8).route(keys)
    reducers = partitioner("hash", 3, seed=REDUCERS).route(keys)
    pairs = set(zip(keys.tolist(), workers.tolist(), reducers.tolist(), strict=True))
    assert reducer_cost(keys, workers, 8, 3) == max(sum(r == i for *_, r in pairs) for i in range(3))  # Dalton 2


def test_an_empty_stream_counts_as_balanced() -> None:
    m = measure(np.empty(0, np.uint64), np.empty(0, np.int32), 3)
    assert (m.imbalance, m.imbalance_ratio, m.key_split_ratio, m.fragments) == (0, 1, 1, 0)
    assert imbalance(np.zeros(2)) == 0
    assert imbalance_ratio(np.zeros(2)) == 1
    assert normalized(np.ones(2)).tolist() == [0, 0]


def test_counting_in_pieces() -> None:
    keys = streams.zipf(20_000, keys=5000, exponent=0.8)
    workers = partitioner("pkg", 8).route(keys)
    exact: Measurement = exact_measurement(8)
    rough: Measurement = estimated_measurement(8)
    for piece in range(0, 20_000, 3000):
        exact = counted(exact, keys[piece : piece + 3000], workers[piece : piece + 3000])
        rough = counted(rough, keys[piece : piece + 3000], workers[piece : piece + 3000])
    whole, estimated = measure(keys, workers, 8), metrics(rough)
    assert metrics(exact).cardinality.tolist() == whole.cardinality.tolist()
    assert metrics(exact).keys == whole.keys
    assert estimated.load.tolist() == whole.load.tolist()
    assert estimated.keys == pytest.approx(whole.keys, rel=0.07)
    assert estimated.cardinality == pytest.approx(whole.cardinality, rel=0.07)


def test_bad_input_gets_a_sentence() -> None:
    one, two = np.zeros(1, np.uint64), np.zeros(2, np.int32)
    listed: Any = [0]
    with pytest.raises(ValueError, match="1 keys came with 2 workers"):
        measure(one, two, 4)
    with pytest.raises(ValueError, match="workers are numbered from 0 to 3"):
        measure(one, np.array([4], np.int32), 4)
    with pytest.raises(TypeError, match="workers are a one-dimensional numpy array of int32, not list"):
        measure(one, listed, 4)
    with pytest.raises(ValueError, match="n_workers is at least 1, not 0"):
        measure(one, np.zeros(1, np.int32), 0)


def test_merging_pays_while_it_costs_no_more_than_the_busiest_worker() -> None:
    assert M.merging_pays  # Holistic 3: 6 partial results, 6 tuples on the busiest worker
    assert not Metrics(np.array([5, 2, 4, 1]), np.array([2, 1, 3, 0]), 4).merging_pays
    assert Metrics(np.zeros(3, np.int64), np.zeros(3, np.int64), 0).merging_pays
    few, many = (streams.zipf(20_000, keys=keys, exponent=0.5) for keys in (40, 10_000))
    shuffled = [measure(keys, partitioner("shuffle", 8).route(keys), 8) for keys in (few, many)]
    assert [m.merging_pays for m in shuffled] == [True, False]
