"""Event times and lengths of time, both in microseconds."""

from __future__ import annotations

import re

from skewless.arguments import require

EARLIEST = -(2**62)  # the watermark before any row was seen

_UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"(\d+)\s*([a-z]+?)s?(?=[\s\d]|$)")


def duration(what: str, text: str, *, signed: bool = False) -> int:
    """Parses a length of time.

    what: what the length is for; begins the error message.
    text: such as "10 seconds" or "1 minute 30 seconds".
    signed: also accept a leading minus, such as "-5 seconds".

    >>> duration("a window's size", "1 minute 30 seconds")
    90000000
    """
    if signed and isinstance(text, str) and text.strip().startswith("-"):
        return -duration(what, text.strip()[1:])
    words = text.lower() if isinstance(text, str) else "?"
    parts = _PART.findall(words)
    is_valid = bool(parts) and not _PART.sub("", words).strip() and all(unit in _UNITS for _, unit in parts)
    require(is_valid, f'{what} is a length of time such as "10 seconds", not {text!r}; units are {", ".join(_UNITS)}')
    return sum(int(number) * _UNITS[unit] for number, unit in parts)


def in_milliseconds(watermark: int) -> int | None:
    """Returns a watermark for the record of a batch: in milliseconds, None before the first row."""
    return None if watermark == EARLIEST else watermark // 1000
