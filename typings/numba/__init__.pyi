"""What we use of numba, which ships no types."""

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

class _Config:
    DISABLE_JIT: int

config: _Config

def njit(*, cache: bool = ..., nogil: bool = ..., forceinline: bool = ..., _nrt: bool = ...) -> Callable[[F], F]: ...
