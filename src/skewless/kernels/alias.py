"""Walker's alias method in Vose's form: draws from any distribution with two array reads."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from skewless.kernels import Number, kernel


@kernel
def settle(accept: NDArray[Number], alias: NDArray[np.int64], whole: float, stacks: NDArray[np.int64]) -> None:
    """Builds the columns of the alias method.

    On entry accept[i] is the mass of item i, scaled so that `whole` is the mean, and alias[i] is i. Afterwards column i
    gives item i to coins below accept[i], out of `whole`, and item alias[i] to the others. Whole numbers stay exact.

    stacks: two rows of scratch space, each as long as accept.
    """
    small, large = stacks[0], stacks[1]
    n_small, n_large = 0, 0
    for i in range(accept.size):
        if accept[i] < whole:
            small[n_small] = i
            n_small += 1
        else:
            large[n_large] = i
            n_large += 1
    while n_small > 0 and n_large > 0:
        n_small -= 1
        poor, rich = small[n_small], large[n_large - 1]
        alias[poor] = rich
        accept[rich] -= whole - accept[poor]
        if accept[rich] < whole:
            n_large -= 1
            small[n_small] = rich
            n_small += 1
