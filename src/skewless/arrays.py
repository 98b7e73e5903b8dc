"""Arrays at the API boundary: checks keys and times; copies, compares and serializes NamedTuples of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any, TypeAlias, TypeVar, get_type_hints
from zipfile import BadZipFile

import numpy as np
import xxhash
from numpy.typing import NDArray

from skewless.arguments import require

Keys: TypeAlias = NDArray[np.uint64]
Times: TypeAlias = NDArray[np.int64]
Workers: TypeAlias = NDArray[np.int32]

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])  # a NamedTuple of arrays, or of such NamedTuples

MOST_WORKERS = 2**31 - 1
NO_TIMES: Times = np.empty(0, np.int64)  # for compiled loops that do not read times
LATEST = 2**62  # times lie between -LATEST and LATEST, so that window arithmetic cannot overflow
# State fields that hold parameters: a snapshot can only be restored where they are equal.
FIXED = frozenset({"salt", "n_workers", "choices", "rule", "length"})


def checked(keys: Keys, times: Times | None = None) -> tuple[Keys, Times | None]:
    """Returns keys and times as the kernels need them: one-dimensional, of the right type, contiguous and writeable."""
    keys = array_of("keys", keys, np.uint64, "skewless.streams.as_keys turns words and numbers into key hashes")
    if times is not None:
        times = array_of("times", times, np.int64, "round them to whole units of the window")
        require(times.size == keys.size, f"every key has a time: {keys.size} keys came with {times.size} times")
        first, last = (int(times.min()), int(times.max())) if times.size else (0, 0)
        within = first > -LATEST and last < LATEST
        require(within, f"times lie between -2**62 and 2**62, not from {first} to {last}")
    return keys, times


def ticking(now: NDArray[np.int64], times: Times | None, n_tuples: int) -> Times:
    """Returns the times of tuples, by default one unit apart; advances now[0] to the time after the last tuple."""
    if times is None:
        times = np.arange(now[0], now[0] + n_tuples, dtype=np.int64)
    if n_tuples:
        now[0] = times[-1] + 1
    return times


def array_of(name: str, value: Any, dtype: type[np.generic], advice: str) -> NDArray[Any]:
    """Returns an array, copied if read-only or not contiguous; raises TypeError for another type or dimension.

    name: the plural that the error message begins with. advice: how to get such an array, for the end of the message.
    """
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1:
        shown = f"{value.ndim}-dimensional {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
        raise TypeError(f"{name} are a one-dimensional numpy array of {np.dtype(dtype)}, not {shown}: {advice}")
    # For read-only arrays (such as Arrow's) numba compiles every kernel again; a copy costs only half a ns a tuple.
    return value if value.flags.c_contiguous and value.flags.writeable else value.copy()


def check_numbers(what: str, numbers: NDArray[np.integer[Any]], n: int) -> None:
    """Raises unless all numbers of workers or sources are in [0, n)."""
    if numbers.size:
        least, most = int(numbers.min()), int(numbers.max())
        require(least >= 0 and most < n, f"{what} are numbered from 0 to {n - 1}, not from {least} to {most}")


def copied(state: Arrays) -> Arrays:
    """Returns a deep copy of a NamedTuple of arrays."""
    return type(state)(*(copied(field) if isinstance(field, tuple) else field.copy() for field in state))


def numbers_in(ascending: NDArray[Any], values: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns the index of each value in an ascending array, and whether the array has it; if not, ignore the index.

    >>> number, is_in = numbers_in(np.array([3, 5, 8]), np.array([8, 4, 3]))
    >>> number[is_in].tolist(), is_in.tolist()
    ([2, 0], [True, False, True])
    """
    number = np.searchsorted(ascending, values)
    is_in = number < ascending.size
    is_in[is_in] = ascending[number[is_in]] == values[is_in]
    return number, is_in


def n_bytes(state: tuple[Any, ...]) -> int:
    """Returns the bytes of all arrays in a NamedTuple."""
    return sum(array.nbytes for _, array in leaves(state))


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields the name and value of every array in a NamedTuple; those of nested NamedTuples are named `field.name`."""
    for name, field in zip(state._fields, state, strict=True):
        if isinstance(field, tuple):
            yield from leaves(field, f"{path}{name}.")
        else:
            yield path + name, field


def alike(state: Any, other: Any) -> bool:
    """Returns whether two NamedTuples have the same arrays, types and parameters, so that one can replace the other."""
    if type(state) is not type(other):
        return False
    ours, theirs = dict(leaves(state)), dict(leaves(other))
    return ours.keys() == theirs.keys() and all(
        mine.dtype == theirs[name].dtype
        and mine.ndim == theirs[name].ndim
        and (name.rpartition(".")[2] not in FIXED or np.array_equal(mine, theirs[name]))
        for name, mine in ours.items()
    )


def fingerprint(parameters: object) -> int:
    """Returns a hash of a class and its parameters, for states whose arrays alone do not tell them apart."""
    return int(np.uint64(xxhash.xxh64_intdigest(repr(parameters).encode())).astype(np.int64))


def precedence(policy: Any) -> tuple[int, list[bytes]]:
    """Returns a sort key: later versions are greater; equal versions, planned independently, compare by their bytes."""
    return int(policy.version[0]), [field.tobytes() for field in policy]


def to_bytes(state: tuple[Any, ...]) -> bytes:
    """Serializes a snapshot or policy as an uncompressed npz archive, without pickle.

    state: what `Partitioner.snapshot` or `Partitioner.merge` returned.

    >>> import numpy as np, skewless
    >>> p = skewless.partitioner("pkg", 4)
    >>> workers = p.route(np.arange(100, dtype=np.uint64))
    >>> snapshot = p.snapshot()
    >>> restored = skewless.from_bytes(type(snapshot), skewless.to_bytes(snapshot))
    >>> bool(np.all(restored.load == snapshot.load))
    True
    """
    buffer = BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(leaves(state)))
    return buffer.getvalue()


def from_bytes(kind: type[Arrays], data: bytes) -> Arrays:
    """Returns the snapshot or policy that `to_bytes` serialized.

    kind: its class, such as `type(partitioner.snapshot())`.
    data: the bytes.

    >>> import skewless
    >>> snapshot = skewless.partitioner("pkg", 4).snapshot()
    >>> from_bytes(type(snapshot), to_bytes(snapshot)).load.tolist()
    [0, 0, 0, 0]
    """
    try:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            arrays = dict(archive)
    except (ValueError, OSError, BadZipFile, EOFError):
        raise ValueError(f"these bytes hold no {kind.__name__}: they were not written by to_bytes") from None
    rebuilt = _rebuilt(kind, arrays, "")
    names = {name for name, _ in leaves(rebuilt)}
    require(names == arrays.keys(), f"these bytes hold no {kind.__name__}, but the arrays {', '.join(sorted(arrays))}")
    return rebuilt


def _rebuilt(kind: type[Arrays], arrays: dict[str, NDArray[Any]], path: str) -> Arrays:
    fields: list[Any] = []
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and issubclass(hint, tuple):
            fields.append(_rebuilt(hint, arrays, f"{path}{name}."))
        else:
            require(path + name in arrays, f"these bytes hold no {kind.__name__}: {path + name} is missing")
            fields.append(arrays[path + name])
    return kind(*fields)
