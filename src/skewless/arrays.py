"""Arrays at the border: key hashes, times and workers, checked; NamedTuples of arrays, copied and made bytes."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any, TypeAlias, TypeVar, get_type_hints
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
Times: TypeAlias = NDArray[np.int64]
Workers: TypeAlias = NDArray[np.int32]

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])  # a NamedTuple of arrays, or of such NamedTuples

MOST_WORKERS = 2**31 - 1
LATEST = 2**62  # times lie within plus and minus this, so that no window overflows
# Fields of a state that are parameters, by name: a snapshot fits only a partitioner that has the same.
FIXED = frozenset({"salt", "n_workers", "choices", "rule", "length"})


def require(claim: bool, otherwise: str) -> None:
    """Refuse bad input with a sentence that names what was given and what is allowed."""
    if not claim:
        raise ValueError(otherwise)


def whole(name: str, given: Any, least: int, most: int | None = None) -> int:
    """A whole number within bounds, or a sentence."""
    if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
        raise TypeError(f"{name} is a whole number, not {given!r}")
    allowed = f"at least {least}" if most is None else f"between {least} and {most}"
    number = int(given)
    require(least <= number and (most is None or number <= most), f"{name} is {allowed}, not {number}")
    return number


def checked(keys: Keys, times: Times | None = None) -> tuple[Keys, Times | None]:
    """Keys and times as the kernels want them: one dimension, the right type, contiguous and writeable."""
    keys = array_of("keys", keys, np.uint64, "skewless.streams.as_keys turns words and numbers into key hashes")
    if times is not None:
        times = array_of("times", times, np.int64, "round them to whole units of the window")
        require(times.size == keys.size, f"every key has a time: {keys.size} keys came with {times.size} times")
        within = times.size == 0 or (int(times.min()) > -LATEST and int(times.max()) < LATEST)
        require(within, "times lie between -2**62 and 2**62")
    return keys, times


def array_of(what: str, given: Any, dtype: type[np.generic], advice: str) -> NDArray[Any]:
    """A one-dimensional array of this type, or a sentence."""
    if not isinstance(given, np.ndarray) or given.dtype != dtype or given.ndim != 1:
        shown = f"{given.ndim}-dimensional {given.dtype}" if isinstance(given, np.ndarray) else type(given).__name__
        raise TypeError(f"{what} are a one-dimensional numpy array of {np.dtype(dtype)}, not {shown}: {advice}")
    # numba compiles every kernel anew for arrays that are read-only (Arrow's are): a copy costs half a ns a tuple.
    return given if given.flags.c_contiguous and given.flags.writeable else given.copy()


def copied(state: Arrays) -> Arrays:
    """A NamedTuple of arrays that shares no memory with the given one."""
    return type(state)(*(copied(field) if isinstance(field, tuple) else field.copy() for field in state))


def n_bytes(state: tuple[Any, ...]) -> int:
    return sum(array.nbytes for _, array in leaves(state))


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, NDArray[Any]]]:
    """The arrays of a NamedTuple, with their names: those of a NamedTuple within it come as field.name."""
    for name, field in zip(state._fields, state, strict=True):
        if isinstance(field, tuple):
            yield from leaves(field, f"{path}{name}.")
        else:
            yield path + name, field


def alike(state: Any, other: Any) -> bool:
    """Whether two NamedTuples are of one kind: the same arrays, of the same types, with the same parameters."""
    if type(state) is not type(other):
        return False
    ours, theirs = dict(leaves(state)), dict(leaves(other))
    return ours.keys() == theirs.keys() and all(
        mine.dtype == theirs[name].dtype
        and mine.ndim == theirs[name].ndim
        and (name.rpartition(".")[2] not in FIXED or np.array_equal(mine, theirs[name]))
        for name, mine in ours.items()
    )


def to_bytes(state: tuple[Any, ...]) -> bytes:
    """A snapshot or policy for a file or a message, as an uncompressed npz archive: no pickle."""
    buffer = BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(leaves(state)))
    return buffer.getvalue()


def from_bytes(kind: type[Arrays], data: bytes) -> Arrays:
    """The snapshot or policy of this kind that `to_bytes` wrote."""
    try:
        with np.load(BytesIO(data), allow_pickle=False) as archive:
            arrays = dict(archive)
    except (ValueError, OSError, BadZipFile, EOFError):
        raise ValueError(f"these bytes hold no {kind.__name__}: they are not what to_bytes writes") from None
    rebuilt = _rebuilt(kind, arrays, "")
    known = {name for name, _ in leaves(rebuilt)}
    require(known == arrays.keys(), f"these bytes hold no {kind.__name__}, but {', '.join(sorted(arrays))}")
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
