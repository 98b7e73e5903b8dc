"""pandas ships no types: its values are Any to us."""

from typing import Any

def __getattr__(name: str) -> Any: ...
