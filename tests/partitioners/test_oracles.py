"""Every partitioner decides like its slow oracle, tuple by tuple."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skewless import Times, partitioner, streams
from skewless.cooperation.protocol import exchange
from skewless.partitioners import ALL
from skewless.testing import Tuples
from tests.oracles import ORACLES, decide, level_after
from tests.variants import N_WORKERS, TUPLES, VARIANTS


def route(name: str, tuples: Tuples, n_workers: int, seed: int, params: dict[str, Any]) -> list[int]:
    p = partitioner(name, n_workers, seed=seed, **params)
    if p.plans_ahead:
        p.observe(tuples.keys)
        exchange([p])
    return [int(worker) for worker in p.route(tuples.keys, tuples.times)]


def test_every_algorithm_has_an_oracle() -> None:
    assert {cls.name for cls in ALL} == set(ORACLES)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@given(tuples=TUPLES, n_workers=N_WORKERS, seed=st.sampled_from([0, 7]))
@settings(max_examples=10)
def test_any_tuples(name: str, params: dict[str, Any], tuples: Tuples, n_workers: int, seed: int) -> None:
    tuples = tuples.part(slice(150))
    assert route(name, tuples, n_workers, seed, params) == decide(name, tuples, n_workers, seed, params)


STREAMS = {
    "mild": streams.zipf(600, keys=400, exponent=0.6),
    "skewed": streams.zipf(600, keys=200, exponent=1.5),
    "drifting": streams.drifting(600, keys=40, exponent=2.0, every=200),
}
# Times advance slowly; some tuples are late, and there is one long silence.
TIMES = np.arange(600, dtype=np.int64) // 2 - 7 * (np.arange(600) % 11 == 3) + 5000 * (np.arange(600) > 450)


def heeds_times(name: Any, params: Any) -> bool:
    return "window" in params or name == "dalton"


TIMED = [variant for variant in VARIANTS if heeds_times(*variant.values)]


def check_stream(name: str, params: dict[str, Any], stream: str, times: Times | None, n_workers: int) -> None:
    tuples = Tuples(STREAMS[stream], times).part(slice(200 if params.get("cardinality") == "hll" else 600))
    assert route(name, tuples, n_workers, 1, params) == decide(name, tuples, n_workers, 1, params)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@pytest.mark.parametrize("n_workers", [4, 12])
@pytest.mark.parametrize("stream", STREAMS)
def test_skewed_streams(name: str, params: dict[str, Any], stream: str, n_workers: int) -> None:
    check_stream(name, params, stream, None, n_workers)


@pytest.mark.parametrize(("name", "params"), TIMED)
@pytest.mark.parametrize("n_workers", [4, 12])
@pytest.mark.parametrize("stream", STREAMS)
def test_skewed_streams_with_times(name: str, params: dict[str, Any], stream: str, n_workers: int) -> None:
    check_stream(name, params, stream, TIMES, n_workers)


def test_a_long_stream_of_few_workers_reaches_every_part_of_d_choices() -> None:
    keys = np.concatenate((streams.zipf(1200, keys=30, exponent=1.0), streams.zipf(600, keys=30, exponent=3.0)))
    assert route("d_choices", Tuples(keys), 6, 0, {}) == decide("d_choices", Tuples(keys), 6, 0, {})


@pytest.mark.parametrize("n_workers", [1, 4, 12, 64])
@pytest.mark.parametrize("exponent", [0.0, 0.8, 2.0])
def test_level_after_the_batch_it_planned(exponent: float, n_workers: int) -> None:
    """Other frequencies, more tuples than planned, and those in pieces: some workers have no room left."""
    keys = streams.zipf(300, keys=60, exponent=1.0)
    known = np.unique(keys)
    more = known[streams.zipf(1000, keys=known.size, exponent=exponent, seed=1).astype(np.int64)]
    p = partitioner("level", n_workers)
    p.observe(keys)
    exchange([p])
    found = [int(worker) for piece in np.split(more, [7, 300, 301]) for worker in p.route(piece)]
    assert found == level_after(keys.tolist(), n_workers, more.tolist())
