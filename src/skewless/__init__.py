"""Skewless keeps the keys of PySpark jobs evenly spread over their workers.

A map of the package, each part built on those above it:

    kernels/        compiled building blocks: hashing, hash table, sketches, windows
    arrays          key hashes, times and workers at the border
    table           RoutingTable: what a partitioner has learned, as Spark will run it
    histogram       how often keys occur: what plans are made from
    moves           what changes from one table to another, and whether it is worth it
    partitioner     the contract: Partitioner, Window
    partitioners/   the algorithms, one tuple ALL
    metrics         how good a partitioning is, with the papers' equations
    streams         keys to try them on
    coordinate      how sources come to know what the others know, over messages
    network         the same where messages are late, lost and out of order
    accumulator     a micro-batch counted and kept about sorted while it comes in
    store/          keyed state that moves: durable files by host and hot key, a hot copy for each worker
    journal         a log on disk that survives any crash; `records`, what is in it
    receiver        records from sockets, logged, in batches of balanced blocks; and `sender`, their other end
    elastic         how many tasks the next batch should have
    simulate        partitioner x stream x sources x windows -> records over time
    cluster         the same in virtual time: throughput, latency and memory of a cluster
    spark/          the verbs for Spark: the only package that imports pyspark
    report          tables and pictures
    cli             the `skewless` command
    testing         the laws of the contract, for your own partitioners too
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
