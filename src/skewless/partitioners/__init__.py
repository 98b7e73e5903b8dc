"""The registry of partitioners: each algorithm is a file of its own and an entry in `ALL`."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from importlib import import_module
from typing import Any

from skewless.arguments import require
from skewless.migration import Moving
from skewless.partitioner import Partitioner, Window
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
    """Returns the class with this name.

    name: the name of a class in `ALL`.

    >>> named("hash").__name__
    'Hash'
    """
    for cls in ALL:
        if cls.name == name:
            return cls
    raise ValueError(f"there is no partitioner {name!r}; there are {', '.join(cls.name for cls in ALL)}")


def summary(cls: type[Partitioner[Any, Any]]) -> str:
    """Returns the first line of a class's docstring.

    >>> summary(Potc)[:27]
    'Static power of two choices'
    """
    return (cls.__doc__ or "").strip().splitlines()[0]


def parameters(cls: type[Partitioner[Any, Any]]) -> dict[str, Any]:
    """Returns the parameters of a class besides n_workers and seed, with their defaults.

    >>> parameters(Pkg)
    {'choices': 2}
    """
    return {
        field.name: field.default for field in fields(cls) if field.init and field.name not in ("n_workers", "seed")
    }


def partitioner(name: str, n_workers: int, *, seed: int = 0, **params: Any) -> Partitioner[Any, Any]:
    """Returns a new partitioner by its name.

    name: the name of a class in `ALL`.
    n_workers: the number of workers.
    seed: determines its hash functions and random choices.
    params: parameters of the class; its docstring explains them.

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


def configured(name: str, n_workers: int, **settings: Any) -> Partitioner[Any, Any]:
    """Returns a new partitioner by its name, and ignores settings that its class does not have.

    Engines pass all that they know of a job, such as whether keys may be split; a partitioner takes what it can use.

    name, n_workers: as for `partitioner`.
    settings: values of parameters by name.

    >>> configured("level", 4, split=False, costs=(1.0, 1.0, 0.0)).split
    False
    >>> configured("pkg", 4, split=False)
    Pkg(n_workers=4, seed=0, choices=2)
    """
    cls = named(name)
    allowed = parameters(cls)
    return cls(n_workers, **{setting: value for setting, value in settings.items() if setting in allowed})


_PARAMETERS = {cls.__name__: cls for cls in (Window, Moving)}  # classes that parameters may have


def described(partitioner: Partitioner[Any, Any]) -> str:
    """Returns class and parameters of a partitioner as JSON, without what it has learned (see `snapshot`).

    partitioner: an instance of a class in `ALL`, or of your own class, which other processes must be able to import.

    >>> described(partitioner("cm", 4, window=Window(100, 10)))[:57]
    '{"class": "cm", "n_workers": 4, "seed": 0, "choices": 2, '
    """
    cls = type(partitioner)
    name = cls.name if cls in ALL else f"{cls.__module__}:{cls.__qualname__}"
    require(
        "<locals>" not in name and "__main__" not in name,
        f"{cls.__name__} is built anew in other processes: define it in a module that they can import",
    )
    params = {field.name: getattr(partitioner, field.name) for field in fields(partitioner) if field.init}
    return json.dumps({"class": name, **params}, default=_plain)


def rebuilt(description: str) -> Partitioner[Any, Any]:
    """Returns a new partitioner with the class and parameters that `described` wrote.

    description: what `described` returned.

    >>> rebuilt(described(partitioner("pkg", 4)))
    Pkg(n_workers=4, seed=0, choices=2)
    """
    params = {name: _built(value) for name, value in json.loads(description).items()}
    module, _, name = params.pop("class").rpartition(":")
    made: Partitioner[Any, Any] = (_imported(module, name) if module else named(name))(**params)
    return made


def _imported(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        error.add_note(
            f"{module}:{name} is a partitioner of your own, which this process must be able to import, too. On Spark, "
            'install it on the workers or send its file there: spark.addArtifacts("path/to/module.py", pyfile=True)'
        )
        raise


def _plain(value: Any) -> Any:
    allowed = is_dataclass(value) and type(value).__name__ in _PARAMETERS
    require(allowed, f"a parameter is text, numbers, a Window or a Moving, not {value!r}")
    return {type(value).__name__: asdict(value)}


def _built(value: Any) -> Any:
    if isinstance(value, dict):
        ((name, params),) = value.items()
        return _PARAMETERS[name](**params)
    return tuple(value) if isinstance(value, list) else value
