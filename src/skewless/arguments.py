"""Checks of arguments: each raises an error that says what was given and what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np


def require(condition: bool, message: str) -> None:
    """Raises ValueError with this message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Returns the value as an int; raises unless it is a whole number from `least` to `most`.

    name: what the value is called in the error message.
    least, most: the bounds, which are allowed themselves; most=None: no upper bound.

    >>> whole("n_workers", np.int64(4), 1)
    4
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is a whole number, not {value!r}")
    allowed = f"at least {least}" if most is None else f"between {least} and {most}"
    number = int(value)
    require(least <= number and (most is None or number <= most), f"{name} is {allowed}, not {number}")
    return number


def require_format(what: str, found: Any, supported: int) -> None:
    """Raises ValueError unless a saved file or text has the format that this version of skewless reads.

    what: the file or text, for the error message. found: its format. supported: the format that is read.
    """
    require(found == supported, f"{what} has format {found}; this version of skewless reads {supported}")
