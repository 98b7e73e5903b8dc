"""Skewless balances the load of PySpark jobs whose keys are skewed.

The parts of the package, each built on those above it:

    kernels/        compiled building blocks: hashing, hash table, sketches, windows
    arguments       checks of what users give
    arrays          checks of keys, times and workers; snapshots as bytes
    filesystem      paths, URIs and atomic writes
    division        divides hosts and hot keys among workers
    table           RoutingTable: what a partitioner has learned, as Spark evaluates it
    histogram       key counts, which plans are made from
    migration       moves between two tables, and whether they are worth their cost
    partitioner     the contract: Partitioner, Window
    planning/       what planners share: key counters and their base class
    partitioners/   the algorithms; `ALL` lists them
    metrics         quality measures, with the papers' equations
    streams         generated and recorded streams of keys
    cooperation/    how sources share what they learned, also over an unreliable network
    ingest/         records from sockets: log, micro-batches, balanced blocks
    store/          keyed state that moves: durable files by host and hot key, a hot copy for each worker
    elastic         how many tasks the next batch should have
    simulate        runs a partitioner on a stream with several sources and windows
    cluster         the same in virtual time: throughput, latency and memory of a cluster
    testing/        the laws of the contract, to test your own partitioners
    spark/          the verbs for Spark: the only package that imports pyspark
    report          tables and pictures
    cli             the `skewless` command
"""

from skewless import partitioners, streams
from skewless.arrays import Keys, Times, Workers, from_bytes, to_bytes
from skewless.metrics import Metrics, measure
from skewless.partitioner import Partitioner, Window
from skewless.partitioners import partitioner
from skewless.simulate import Record, simulate
from skewless.table import RoutingTable

__version__ = "0.1.0"

__all__ = [
    "Keys",
    "Metrics",
    "Partitioner",
    "Record",
    "RoutingTable",
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
