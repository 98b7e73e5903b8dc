"""Skewless keeps the keys of PySpark jobs evenly spread over their workers.

A map of the package, each part built on those above it:

    kernels/        compiled building blocks: hashing, hash table, sketches, windows
    partitioner     the contract: Partitioner, Window
    partitioners/   the algorithms, one tuple ALL
    metrics         how good a partitioning is, with the papers' equations
    streams         keys to try them on
    simulate        partitioner x stream x sources x windows -> records over time
    cluster         the same in virtual time: throughput, latency and memory of a cluster
    report          tables and pictures
    cli             the `skewless` command
    testing         the laws of the contract, for your own partitioners too
"""

from skewless import partitioners, streams
from skewless.metrics import Metrics, measure
from skewless.partitioner import Keys, Partitioner, Times, Window, Workers, from_bytes, to_bytes
from skewless.partitioners import partitioner
from skewless.simulate import Record, simulate

__version__ = "0.1.0"

__all__ = [
    "Keys",
    "Metrics",
    "Partitioner",
    "Record",
    "Times",
    "Window",
    "Workers",
    "from_bytes",
    "measure",
    "partitioner",
    "partitioners",
    "simulate",
    "streams",
    "to_bytes",
]
