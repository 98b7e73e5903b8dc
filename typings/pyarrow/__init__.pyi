"""pyarrow ships no types: its values are Any to us, checked where they enter."""

from typing import Any

Array = Any
ChunkedArray = Any

def __getattr__(name: str) -> Any: ...
