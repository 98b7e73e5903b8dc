"""The laws of the contract hold for every partitioner."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skewless import partitioner
from skewless.partitioner import AnyPartitioner
from skewless.partitioners import ALL
from skewless.testing import LAWS, Law, Tuples, check_partitioner
from tests.variants import N_WORKERS, TUPLES, VARIANTS


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_law(law: Law, name: str, params: dict[str, Any]) -> None:
    # A new function for each case: in a shared one, hypothesis nests the settings once more with every test, in the
    # end too deep.
    @given(tuples=TUPLES, n_workers=N_WORKERS, seed=st.sampled_from([0, 7, 2**64 - 1]))
    def holds(tuples: Tuples, n_workers: int, seed: int) -> None:
        law(lambda n: partitioner(name, n, seed=seed, **params), n_workers, tuples)

    holds()


@pytest.mark.compiled
@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.name)
def test_check_partitioner_accepts_ours(cls: type[AnyPartitioner]) -> None:
    """As users call it, with default parameters; `test_law` has all variants."""
    check_partitioner(cls)
