"""What we use of numba, which ships no types."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., object])

class _Config:
    DISABLE_JIT: int

config: _Config

# What comes back is a dispatcher, which is called like the function and has attributes of its own.
def njit(*, cache: bool = ..., nogil: bool = ..., forceinline: bool = ..., _nrt: bool = ...) -> Callable[[F], Any]: ...
