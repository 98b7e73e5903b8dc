"""`prompt` meets the objectives of its paper."""

from __future__ import annotations

import numpy as np
import pytest

from skewless import partitioner, streams
from skewless.cooperation.protocol import exchange
from skewless.metrics import imbalance_ratio
from skewless.partitioners.prompt import Prompt, allocate
from skewless.planning.planner import table_of
from tests.plans import planned

pytestmark = pytest.mark.compiled


def test_prompts_example() -> None:
    """Figures 5 and 6c: 385 tuples of 8 keys in 4 blocks of equal size, nearly as many keys, only K1 and K2 split."""
    counts = [102, 87, 87, 59, 20, 15, 8, 7]
    keys = np.repeat(np.arange(1, 9, dtype=np.uint64), counts)
    p = Prompt(4)
    p.observe(keys)
    exchange([p])
    table = table_of(p.snapshot().policy, 4)
    blocks_of_key = {key: table.shares(key) for key in range(1, 9)}
    sizes = [sum(counts[key - 1] * at.get(block, 0.0) for key, at in blocks_of_key.items()) for block in range(4)]
    assert sum(counts) == 385
    assert sizes == pytest.approx([97, 97, 95, 96], abs=1e-6)
    assert [key for key, at in blocks_of_key.items() if len(at) > 1] == [1, 2]
    assert [sum(block in at for at in blocks_of_key.values()) for block in range(4)] == [3, 2, 2, 3]


@pytest.mark.parametrize("n_workers", [16, 64, 256])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_prompt_meets_its_three_objectives(exponent: float, n_workers: int) -> None:
    """Section 3.2: equal sizes, equal numbers of keys, and few fragments more than keys."""
    m = planned(Prompt(n_workers), streams.zipf(500_000, 50_000, exponent))
    assert m.imbalance_ratio < 1.01
    assert m.cardinality_imbalance < 3 + 0.01 * m.cardinality.mean()
    assert m.fragments < m.keys + 1.5 * n_workers


def test_reduce_buckets_are_even_in_size_and_number_and_agree_on_split_keys() -> None:
    """Section 5: two map tasks decide alone; keys that both have must meet in one bucket."""
    keys = streams.as_keys(np.arange(500))
    sizes = 1000.0 / np.arange(20, 520)  # no cluster outweighs a bucket: the batch partitioner sees to that
    split = np.arange(500) % 10 == 5
    buckets = allocate(keys, sizes, split, 8)
    again = allocate(keys[::-1].copy(), sizes[::-1].copy(), split[::-1].copy(), 8)[::-1]
    assert np.array_equal(buckets[split], again[split])
    own = np.bincount(buckets[~split], minlength=8)
    assert own.max() - own.min() <= 1
    assert imbalance_ratio(np.bincount(buckets, sizes, minlength=8)) < 1.05
    assert imbalance_ratio(np.bincount(partitioner("hash", 8).route(keys), sizes, minlength=8)) > 1.2
