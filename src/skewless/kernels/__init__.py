"""Compiled building blocks: functions that `kernel` compiles with numba, on states that are NamedTuples of arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., object])
Number = TypeVar("Number", np.int64, np.float64)  # of an array


def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Returns names, modification times and sizes of all source files, on which the cached machine code depends."""
    files = sorted(Path(__file__).parent.parent.rglob("*.py"))
    return tuple((path.name, (about := path.stat()).st_mtime_ns, about.st_size) for path in files)


_SOURCES = _stamp()


def kernel(function: F) -> F:
    """Compiles a function on first use and caches the machine code on disk; plain Python under NUMBA_DISABLE_JIT=1.

    Kernels never hold the GIL, never relax floating point (results must equal the oracle's bit for bit), never
    allocate and never close over variables (numba could not cache them). They are inlined into each other and compiled
    without reference counts: a state is a dozen arrays of seven words each, and passing and counting them would cost
    more than the work (pkg: 11 ns, inlined 5 ns; d_choices: 140 ns, uncounted 25 ns).
    """
    if numba.config.DISABLE_JIT:
        # uint64 arithmetic wraps around in compiled code; numpy scalars do the same, but warn.
        return np.errstate(over="ignore")(function)
    try:
        compiled = numba.njit(cache=True, nogil=True, forceinline=True, _nrt=False)(function)
    except RuntimeError:
        # No directory to cache in (a read-only installation without a home): compile in every process.
        return cast(F, numba.njit(nogil=True, forceinline=True, _nrt=False)(function))
    # numba checks only the file of the function itself, but kernels of other files are inlined into it: a change
    # anywhere in the package must invalidate the cache. As a part of the version, it is checked before the rest of the
    # index is unpickled, which would fail if a NamedTuple in it has another name now.
    index = compiled._cache._cache_file
    index._version = f"{index._version} {_SOURCES}"
    return cast(F, compiled)
