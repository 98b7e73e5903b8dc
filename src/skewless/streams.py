"""Streams of keys to try partitioners on: synthetic and seeded, or read from real data."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from skewless.arrays import Keys, Workers, checked, require, whole
from skewless.kernels import kernel
from skewless.kernels.alias import settle
from skewless.kernels.hash import below, mix64

if TYPE_CHECKING:
    import pyarrow as pa

SPARK_SEED = 42  # of Spark's xxhash64: a key hashed here and in Spark is the same key

# Streams with a `start` are functions of (parameters, seed, position): a piece that begins there is the same whether or
# not the rest is made, so that a long stream can be made in pieces. In `zipf` and `matched`, key 0 is the hottest.


def uniform(n: int, keys: int, *, seed: int = 0, start: int = 0) -> Keys:
    """n tuples, all keys equally likely.

    >>> uniform(5, keys=10).tolist()
    [3, 3, 2, 7, 5]
    """
    _sizes(n, keys)
    out = np.empty(n, np.uint64)
    _uniform(np.uint64(keys), _salt(seed), start, out)
    return out


def zipf(n: int, keys: int, exponent: float, *, seed: int = 0, start: int = 0) -> Keys:
    """n tuples; the i-th most frequent of `keys` keys has a share proportional to i ** -exponent.

    >>> zipf(10, keys=100, exponent=1.5).tolist()
    [0, 0, 0, 1, 0, 2, 7, 1, 2, 3]
    """
    _sizes(n, keys)
    return _draw(_zipf_shares(keys, exponent), n, seed, start)


def matched(n: int, keys: int, p1: float, *, seed: int = 0, start: int = 0) -> Keys:
    """A Zipf stream whose exponent is solved for, so that the most frequent key has the share p1.

    It stands in for data sets that cannot be had, such as PKG's Wikipedia log: matched(22M, 2.9M keys, 9.32 %).
    """
    _sizes(n, keys)
    return _draw(_zipf_shares(keys, _exponent(keys, p1)), n, seed, start)


def lognormal(n: int, mu: float, sigma: float, *, seed: int = 0) -> Keys:
    """n tuples with key = round(exp(N(mu, sigma))): PKG's LN1 is (1.789, 2.366), its LN2 (2.245, 1.133)."""
    whole("the number of tuples", n, 0)
    keys = np.rint(np.exp(np.random.default_rng(seed).normal(mu, sigma, n)))
    require(bool(np.all(keys < 2**63)), f"lognormal({mu}, {sigma}) gives keys beyond 2**63: take less")
    return keys.astype(np.uint64)


def drifting(n: int, keys: int, exponent: float, *, every: int, seed: int = 0) -> Keys:
    """A Zipf stream in which other keys become the hot ones, all at once, after every `every` tuples."""
    whole("every", every, 1)
    ranks = zipf(n, keys, exponent, seed=seed)
    epochs = np.arange(n, dtype=np.uint64) // np.uint64(every)
    return _renamed(ranks, epochs, keys, seed)


def alternating(n: int, keys: int, exponent: float, *, every: int, seed: int = 0) -> Keys:
    """Uniform and Zipf keys in turn, for `every` tuples each (Dalton figure 9)."""
    whole("every", every, 1)
    skewed = (np.arange(n) // every) % 2 == 1
    return np.where(skewed, zipf(n, keys, exponent, seed=seed), uniform(n, keys, seed=seed + 1))


class Edges(NamedTuple):
    """A directed graph, edge by edge."""

    source: Keys
    destination: Keys


def graph_edges(n: int, vertices: int, exponent: float, *, seed: int = 0) -> Edges:
    """n edges of a graph with skewed out-degrees and skewed in-degrees, independent of each other (PKG Q3).

    Deal the tuples to sources by one end and route them by the other:
    simulate(p, edges.destination, sources=5, split=partitioner("hash", 5).route(edges.source)).
    """
    source = zipf(n, vertices, exponent, seed=seed)
    # Who points at many is not who many point at: the in-degrees rank the vertices in another order.
    ranks = zipf(n, vertices, exponent, seed=seed + 1)
    return Edges(source, _renamed(ranks, np.ones(n, np.uint64), vertices, seed))


def several(streams: Sequence[Keys], *, seed: int = 0) -> tuple[Keys, Workers]:
    """Sources with distributions of their own, interleaved at random; the keys, and the source of each.

    >>> keys, source = several([uniform(2, keys=9), 100 + uniform(3, keys=9)])
    >>> keys.tolist(), source.tolist()
    ([102, 102, 102, 2, 2], [1, 1, 1, 0, 0])
    """
    require(len(streams) >= 1, "several sources are 1 or more, not 0")
    source = np.repeat(np.arange(len(streams), dtype=np.int32), [stream.size for stream in streams])
    source = np.random.default_rng(seed).permutation(source)
    out = np.empty(source.size, np.uint64)
    for number, stream in enumerate(streams):
        out[source == number] = checked(stream)[0]
    return out, source


def words(limit: int | None = None) -> Keys:
    """The words of the Python standard library's own source files, in order: real, Zipf-like, on every machine."""
    return as_keys(texts(limit))


def texts(limit: int | None = None) -> list[bytes]:
    """The same words, as they are written."""
    if limit is not None:
        whole("the number of words", limit, 1)
    found: list[bytes] = []
    root = Path(sysconfig.get_paths()["stdlib"])
    tests = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    for path in sorted(root.rglob("*.py")):
        if not tests & set(path.relative_to(root).parts):
            found += path.read_bytes().translate(_TO_WORDS).split()
        if limit is not None and len(found) >= limit:
            break
    require(len(found) > 0, f"no source files of the standard library in {root} (Python {sys.version.split()[0]})")
    return found[:limit]


_TO_WORDS = bytes(c if chr(c).isascii() and (chr(c).isalnum() or c == ord("_")) else 32 for c in range(256))


def trace(path: str | Path, column: str | None = None) -> Keys:
    """The keys of a real data set, in order: a column of a Parquet or CSV file, or the words of a text file.

    Compressed CSV and text files (.gz and the like) are read as they are. Without `column`, the first one.
    """
    import pyarrow.csv
    import pyarrow.parquet

    path = Path(path)
    require(path.is_file(), f"there is no file {path}")
    kinds = path.suffixes
    if ".parquet" in kinds:
        names = pyarrow.parquet.read_schema(path).names
        return as_keys(pyarrow.parquet.read_table(path, columns=[_column(column, names, path)]).column(0))
    if ".csv" in kinds:
        content = pyarrow.csv.read_csv(path)
        return as_keys(content.column(_column(column, content.column_names, path)))
    require(
        column is None, f"{path} is read as text and has no column {column!r}; .parquet and .csv files have columns"
    )
    with pyarrow.input_stream(str(path)) as stream:
        return as_keys(stream.read().split())


def _column(wanted: str | None, names: list[str], path: Path) -> str:
    require(wanted is None or wanted in names, f"{path} has no column {wanted!r}; it has {', '.join(names)}")
    return names[0] if wanted is None else wanted


def as_keys(values: Sequence[Any] | NDArray[Any] | pa.Array | pa.ChunkedArray) -> Keys:
    """Key hashes of words or whole numbers, equal to Spark's xxhash64 of a string, int or bigint column.

    Like there, the hash of a missing value is the seed.

    >>> as_keys(["a", "b", "a"]).tolist()
    [9864288744972464332, 12054797757861652435, 9864288744972464332]
    """
    import pyarrow as pa

    column = values if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values)
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = encoded if isinstance(encoded, pa.DictionaryArray) else encoded.dictionary_encode()
    distinct = encoded.dictionary
    kind = distinct.type
    if pa.types.is_null(kind):
        raw: list[bytes] = []
    elif any(is_kind(kind) for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        raw = distinct.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    elif any(is_kind(kind) for is_kind in (pa.types.is_binary, pa.types.is_large_binary)):
        raw = distinct.to_pylist()
    elif pa.types.is_signed_integer(kind):
        width = 8 if kind.bit_width == 64 else 4  # Spark widens bytes and shorts to ints
        raw = [int(value).to_bytes(width, "little", signed=True) for value in distinct.to_pylist()]
    else:
        raise TypeError(f"keys are words or signed whole numbers, as Spark has them, not {kind}: cast them first")
    table = np.array([*(xxhash.xxh64_intdigest(value, SPARK_SEED) for value in raw), SPARK_SEED], np.uint64)
    number: NDArray[np.int64] = encoded.indices.fill_null(len(raw)).to_numpy(zero_copy_only=False)
    return table[number]


def _sizes(n: int, keys: int) -> None:
    whole("the number of tuples", n, 0)
    whole("the number of keys", keys, 1, 2**32 - 1)


def _salt(seed: int) -> np.uint64:
    return np.uint64(mix64(np.uint64(seed % 2**64) ^ np.uint64(0xD1B54A32D192ED03)))  # compiled, it gives an int


def _zipf_shares(keys: int, exponent: float) -> NDArray[np.float64]:
    require(0 <= exponent <= 64, f"a Zipf exponent is between 0 and 64, not {exponent}")
    shares = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    return np.asarray(shares / shares.sum())


def _exponent(keys: int, p1: float) -> float:
    """The exponent at which the first of `keys` keys has the share p1, by bisection."""
    require(
        1 / keys <= p1 < 1, f"the share of the hottest of {keys} keys is at least {1 / keys:g} and below 1, not {p1:g}"
    )
    ranks = np.log(np.arange(1, keys + 1, dtype=np.float64))
    low, high = 0.0, 64.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 / np.exp(-middle * ranks).sum() < p1 else (low, middle)
    return low


def _draw(shares: NDArray[np.float64], n: int, seed: int, start: int) -> Keys:
    accept, alias = shares * shares.size, np.arange(shares.size)
    settle(accept, alias, 1.0, np.empty((2, shares.size), np.int64))
    out = np.empty(n, np.uint64)
    _sample(accept, alias, _salt(seed), start, out)
    return out


@kernel
def _sample(
    accept: NDArray[np.float64], alias: NDArray[np.int64], salt: np.uint64, start: int, out: NDArray[np.uint64]
) -> None:
    for i in range(out.size):
        x = mix64(salt + np.uint64(start + i))
        column = below(x, np.uint64(accept.size))
        coin = (mix64(x) >> np.uint64(11)) * 2.0**-53
        out[i] = column if coin < accept[column] else np.uint64(alias[column])


@kernel
def _uniform(keys: np.uint64, salt: np.uint64, start: int, out: NDArray[np.uint64]) -> None:
    for i in range(out.size):
        out[i] = below(mix64(salt + np.uint64(start + i)), keys)


def _renamed(ranks: Keys, epochs: Keys, keys: int, seed: int) -> Keys:
    """Another key for each rank in each epoch: all are turned round by a random amount."""
    out = np.empty(ranks.size, np.uint64)
    _turned(ranks, epochs, np.uint64(keys), _salt(seed), out)
    return out


@kernel
def _turned(ranks: Keys, epochs: Keys, keys: np.uint64, salt: np.uint64, out: Keys) -> None:
    for i in range(ranks.size):
        key = ranks[i] + below(mix64(epochs[i] ^ salt), keys)
        out[i] = min(key, key - keys)
