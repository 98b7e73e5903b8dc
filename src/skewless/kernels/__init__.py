"""Compiled building blocks: `kernel` is njit with our flags, written once; state is a NamedTuple of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba
import numpy as np

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile on first use and keep the machine code on disk; plain Python under NUMBA_DISABLE_JIT=1.

    Kernels never hold the GIL, never relax floating point (results must equal the oracle's bit for bit) and never
    close over variables (numba could not cache them). They are inlined into each other: a call that passes a state,
    a dozen arrays of seven words each, costs more than the work of most scalar kernels (pkg: 11 ns, inlined 5 ns).
    """
    if numba.config.DISABLE_JIT:
        # uint64 arithmetic wraps around in compiled code; numpy's scalars do the same, but warn.
        return np.errstate(over="ignore")(function)
    try:
        return numba.njit(cache=True, nogil=True, forceinline=True, _nrt=False)(function)
    except RuntimeError:
        # No directory to cache in (a read-only installation without a home): compile in every process.
        return numba.njit(nogil=True, forceinline=True, _nrt=False)(function)
