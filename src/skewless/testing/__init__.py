"""Checks that a partitioner keeps the `laws` of its contract; the tests of Skewless use the same checks."""

from __future__ import annotations

from typing import Any

import numpy as np

from skewless import streams
from skewless.partitioner import AnyPartitioner
from skewless.testing.laws import LAWS, Law, LawBroken, New, Tuples

__all__ = ["LAWS", "AnyPartitioner", "Law", "LawBroken", "New", "Tuples", "check_partitioner"]


def check_partitioner(cls: type[AnyPartitioner], **params: Any) -> None:
    """Checks every law in `LAWS` on several streams and numbers of workers; raises `LawBroken` at the first breach.

    cls: a subclass of `skewless.partitioner.Partitioner`, of your own or built in.
    params: parameters for its constructor, besides the number of workers.

    >>> from skewless.partitioners.pkg import Pkg
    >>> check_partitioner(Pkg, choices=3)
    """
    times = np.array([-5, 3, 0, 400, 399, 10_000], np.int64).repeat(50)
    cases = (
        (4, Tuples(np.empty(0, np.uint64))),
        (3, Tuples(np.array([2**64 - 1], np.uint64))),
        (5, Tuples(streams.uniform(500, keys=100))),
        (16, Tuples(streams.zipf(1500, keys=300, exponent=1.2))),
        (64, Tuples(streams.drifting(1500, keys=200, exponent=1.5, every=400))),
        (7, Tuples(np.zeros(300, np.uint64))),
        (6, Tuples(streams.zipf(300, keys=50, exponent=1.0), times)),
    )
    for law in LAWS:
        for n_workers, tuples in cases:
            try:
                law(lambda n: cls(n, **params), n_workers, tuples)
            except LawBroken as broken:
                case = f"{law.__name__}: {cls.__name__}, {n_workers} workers, {tuples.keys.size} tuples"
                raise LawBroken(f"{case}: {broken}") from None
