"""Counts that a run with faults must reach or stay below, and their verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A count of a run, with its lower or upper bound."""

    what: str
    count: float
    at_most: float | None = None
    at_least: float | None = None
    besides: str = ""

    @property
    def holds(self) -> bool:
        return (self.at_most is None or self.count <= self.at_most) and self.count >= (self.at_least or 0)

    def __str__(self) -> str:
        bound = f"at least {self.at_least:g}" if self.at_most is None else f"at most {self.at_most:g}"
        return f"  {self.what}: {self.count:,g} ({bound}) {'ok' if self.holds else 'BROKEN'} {self.besides}"


def judged(title: str, claims: Sequence[Claim]) -> bool:
    """Prints the claims; returns whether all of them hold."""
    print(title, *claims, sep="\n", flush=True)
    return all(claim.holds for claim in claims)
