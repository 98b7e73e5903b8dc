"""Every partitioner decides like its slow oracle, tuple by tuple."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skewless import Keys, partitioner, streams
from skewless.coordinate import exchange
from skewless.partitioners import ALL
from tests.oracles import ORACLES, decide
from tests.variants import KEYS, N_WORKERS, VARIANTS


def route(name: str, keys: Keys, n_workers: int, seed: int, params: dict[str, Any]) -> list[int]:
    p = partitioner(name, n_workers, seed=seed, **params)
    if p.plans_ahead:
        p.observe(keys)
        exchange([p])
    return [int(worker) for worker in p.route(keys)]


def test_every_algorithm_has_an_oracle() -> None:
    assert {cls.name for cls in ALL} == set(ORACLES)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@given(keys=KEYS, n_workers=N_WORKERS, seed=st.sampled_from([0, 7]))
@settings(max_examples=5)
def test_any_keys(name: str, params: dict[str, Any], keys: Keys, n_workers: int, seed: int) -> None:
    keys = keys[:150]
    assert route(name, keys, n_workers, seed, params) == decide(name, keys.tolist(), n_workers, seed, params)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@pytest.mark.parametrize("n_workers", [4, 12])
@pytest.mark.parametrize(
    "keys",
    [
        streams.zipf(600, keys=400, exponent=0.6),
        streams.zipf(600, keys=200, exponent=1.5),
        streams.drifting(600, keys=40, exponent=2.0, every=200),
    ],
    ids=["mild", "skewed", "drifting"],
)
def test_skewed_streams(name: str, params: dict[str, Any], keys: Keys, n_workers: int) -> None:
    keys = keys[:200] if params.get("cardinality") == "hll" else keys
    assert route(name, keys, n_workers, 1, params) == decide(name, keys.tolist(), n_workers, 1, params)


def test_a_long_stream_of_few_workers_reaches_every_part_of_d_choices() -> None:
    keys = np.concatenate((streams.zipf(1200, keys=30, exponent=1.0), streams.zipf(600, keys=30, exponent=3.0)))
    assert route("d_choices", keys, 6, 0, {}) == decide("d_choices", keys.tolist(), 6, 0, {})
