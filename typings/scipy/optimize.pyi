from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

class Bounds:
    def __init__(self, lb: ArrayLike = ..., ub: ArrayLike = ...) -> None: ...

class LinearConstraint:
    def __init__(self, A: ArrayLike, lb: ArrayLike = ..., ub: ArrayLike = ...) -> None: ...  # noqa: N803

class _Result:
    success: bool
    message: str
    fun: float
    x: NDArray[np.float64]

def milp(
    c: ArrayLike, *, integrality: ArrayLike = ..., bounds: Bounds = ..., constraints: Sequence[LinearConstraint] = ...
) -> _Result: ...
