"""The registry: one tuple. An algorithm is one file, one entry here and one oracle in the tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from skewless.partitioner import Partitioner
from skewless.partitioners.auto import Auto
from skewless.partitioners.baselines import Hash, OffGreedy, OnGreedy, Potc, Shuffle
from skewless.partitioners.cardinality import Am, Cam, Cm, Lm
from skewless.partitioners.choices import DChoices, WChoices
from skewless.partitioners.dagreedy import DaGreedy
from skewless.partitioners.dalton import Dalton
from skewless.partitioners.gedik import Readj, Redist, Scan
from skewless.partitioners.kip import Kip
from skewless.partitioners.level import Level
from skewless.partitioners.mixed import Mixed
from skewless.partitioners.pkg import Pkg
from skewless.partitioners.prompt import Prompt

ALL: tuple[type[Partitioner[Any, Any]], ...] = (
    Hash,
    Shuffle,
    Potc,
    OnGreedy,
    OffGreedy,
    Pkg,
    DChoices,
    WChoices,
    Cm,
    Am,
    Cam,
    Lm,
    DaGreedy,
    Dalton,
    Prompt,
    Scan,
    Redist,
    Readj,
    Mixed,
    Kip,
    Level,
    Auto,
)


def named(name: str) -> type[Partitioner[Any, Any]]:
    """The class that goes by this name."""
    for cls in ALL:
        if cls.name == name:
            return cls
    raise ValueError(f"there is no partitioner {name!r}; there are {', '.join(cls.name for cls in ALL)}")


def summary(cls: type[Partitioner[Any, Any]]) -> str:
    """The first line of a class's documentation."""
    return (cls.__doc__ or "").strip().splitlines()[0]


def parameters(cls: type[Partitioner[Any, Any]]) -> dict[str, Any]:
    """The parameters of a class besides n_workers and seed, with their defaults."""
    return {
        field.name: field.default for field in fields(cls) if field.init and field.name not in ("n_workers", "seed")
    }


def partitioner(name: str, n_workers: int, *, seed: int = 0, **params: Any) -> Partitioner[Any, Any]:
    """A new partitioner by its name.

    >>> partitioner("pkg", 16, choices=3)
    Pkg(n_workers=16, seed=0, choices=3)
    """
    cls = named(name)
    allowed = parameters(cls)
    for param in params:
        if param not in allowed:
            takes = ", ".join(allowed) if allowed else "no parameters"
            raise TypeError(f"{name} takes {takes} besides n_workers and seed, not {param}")
    return cls(n_workers, seed=seed, **params)
