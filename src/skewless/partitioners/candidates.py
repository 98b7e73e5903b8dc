"""The partitioners that `auto` can choose among."""

from __future__ import annotations

from typing import Any

from skewless.partitioner import Partitioner
from skewless.partitioners.baselines import Hash
from skewless.partitioners.choices import DChoices, WChoices
from skewless.partitioners.kip import Kip
from skewless.partitioners.level import Level
from skewless.partitioners.mixed import Mixed
from skewless.partitioners.pkg import Pkg
from skewless.partitioners.prompt import Prompt

CANDIDATES: dict[str, type[Partitioner[Any, Any]]] = {
    cls.name: cls for cls in (Hash, Pkg, DChoices, WChoices, Prompt, Mixed, Kip, Level)
}
