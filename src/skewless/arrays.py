"""Arrays at the border: key hashes, times and workers, checked; NamedTuples of arrays, copied and made bytes."""

from __future__ import annotations

from io import BytesIO
from typing import Any, TypeAlias, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
Times: TypeAlias = NDArray[np.int64]
Workers: TypeAlias = NDArray[np.int32]

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])  # a NamedTuple of arrays, or of such NamedTuples

MOST_WORKERS = 2**31 - 1


def require(claim: bool, otherwise: str) -> None:
    """Refuse bad input with a sentence that names what was given and what is allowed."""
    if not claim:
        raise ValueError(otherwise)


def checked(keys: Keys, times: Times | None) -> tuple[Keys, Times | None]:
    """Keys and times as the kernels want them: one dimension, the right type, contiguous and writeable."""
    keys = _array("keys", keys, np.uint64, "skewless.streams.as_keys turns words and numbers into key hashes")
    if times is not None:
        times = _array("times", times, np.int64, "round them to whole units of the window")
        require(times.size == keys.size, f"every key has a time: {keys.size} keys came with {times.size} times")
    return keys, times


def _array(what: str, given: NDArray[Any], dtype: type[np.generic], advice: str) -> NDArray[Any]:
    if not isinstance(given, np.ndarray) or given.dtype != dtype or given.ndim != 1:
        shown = f"{given.ndim}-dimensional {given.dtype}" if isinstance(given, np.ndarray) else type(given).__name__
        raise TypeError(f"{what} are a one-dimensional numpy array of {np.dtype(dtype)}, not {shown}: {advice}")
    # numba compiles every kernel anew for arrays that are read-only (Arrow's are): a copy costs half a ns a tuple.
    return given if given.flags.c_contiguous and given.flags.writeable else given.copy()


def copied(state: Arrays) -> Arrays:
    """A NamedTuple of arrays that shares no memory with the given one."""
    return type(state)(*(copied(field) if isinstance(field, tuple) else field.copy() for field in state))


def n_bytes(state: tuple[Any, ...]) -> int:
    return sum(n_bytes(field) if isinstance(field, tuple) else field.nbytes for field in state)


def layout(state: object) -> object:
    if isinstance(state, tuple):
        return type(state), *(layout(field) for field in state)
    return (state.dtype, state.ndim) if isinstance(state, np.ndarray) else type(state)


def to_bytes(state: tuple[Any, ...]) -> bytes:
    """A snapshot or policy for a file or a message, as an uncompressed npz archive: no pickle."""
    buffer = BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(_leaves(state, "")))
    return buffer.getvalue()


def from_bytes(kind: type[Arrays], data: bytes) -> Arrays:
    """The snapshot or policy of this kind that `to_bytes` wrote."""
    with np.load(BytesIO(data), allow_pickle=False) as archive:
        return _rebuilt(kind, dict(archive), "")


def _leaves(state: tuple[Any, ...], path: str) -> list[tuple[str, NDArray[Any]]]:
    leaves: list[tuple[str, NDArray[Any]]] = []
    for name, field in zip(type(state)._fields, state, strict=True):  # type: ignore[attr-defined]
        leaves += _leaves(field, f"{path}{name}.") if isinstance(field, tuple) else [(path + name, field)]
    return leaves


def _rebuilt(kind: type[Arrays], archive: dict[str, NDArray[Any]], path: str) -> Arrays:
    fields: list[Any] = []
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and issubclass(hint, tuple):
            fields.append(_rebuilt(hint, archive, f"{path}{name}."))
        else:
            require(path + name in archive, f"these bytes hold no {kind.__name__}: {path + name} is missing")
            fields.append(archive[path + name])
    return kind(*fields)
