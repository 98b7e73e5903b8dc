"""Streams of keys to try partitioners on: `synthetic`, made from a seed, and `recorded`, read from real data."""

from skewless.streams.recorded import SPARK_SEED, as_keys, texts, trace, words
from skewless.streams.synthetic import (
    Edges,
    alternating,
    drifting,
    graph_edges,
    lognormal,
    matched,
    several,
    sinusoidal,
    uniform,
    zipf,
)

__all__ = [
    "SPARK_SEED",
    "Edges",
    "alternating",
    "as_keys",
    "drifting",
    "graph_edges",
    "lognormal",
    "matched",
    "several",
    "sinusoidal",
    "texts",
    "trace",
    "uniform",
    "words",
    "zipf",
]
