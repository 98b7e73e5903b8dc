"""The contract: a partitioner turns key hashes into worker numbers, in order, and can say what it has learned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from io import BytesIO
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
Times: TypeAlias = NDArray[np.int64]
Workers: TypeAlias = NDArray[np.int32]

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])  # a NamedTuple of arrays, or of such NamedTuples
S = TypeVar("S", bound=tuple[Any, ...])  # a partitioner's state
P = TypeVar("P")  # the policy that sources share

MOST_WORKERS = 2**31 - 1
MOST_SLIDES = 4096


def require(claim: bool, otherwise: str) -> None:
    """Refuse bad input with a sentence that names what was given and what is allowed."""
    if not claim:
        raise ValueError(otherwise)


@dataclass(frozen=True)
class Window:
    """How long a tuple counts, in the unit of `times` (without times: in tuples).

    `slide` is how often the window moves on; left out, the window tumbles.
    """

    size: int
    slide: int = 0

    def __post_init__(self) -> None:
        require(self.size >= 1, f"a window's size is at least 1, not {self.size}")
        if self.slide == 0:
            object.__setattr__(self, "slide", self.size)
        require(
            1 <= self.slide <= self.size, f"a slide is between 1 and the window's size {self.size}, not {self.slide}"
        )
        require(
            self.slides <= MOST_SLIDES,
            f"a window of {self.size} with a slide of {self.slide} has {self.slides} slides; at most {MOST_SLIDES} "
            "are kept: take a longer slide",
        )

    @property
    def slides(self) -> int:
        return -(-self.size // self.slide)


@dataclass(eq=False)
class Partitioner(ABC, Generic[S, P]):
    """Decides, tuple by tuple, which worker gets a key.

    A subclass is a dataclass whose fields are its parameters, with two methods: `fresh` gives an empty state and
    `assign` fills in the workers of some keys while the state carries on. It may share what it knows with others of
    its kind (`merge`, `adopt`). The state is a NamedTuple of arrays and the only thing that changes.

    `skewless.testing.check_partitioner` holds a class to the laws of this contract.
    """

    name: ClassVar[str]  # in the registry, the command line, plots and docs
    splits_keys: ClassVar[bool]  # may one key reach several workers under one policy?
    plans_ahead: ClassVar[bool] = False  # must it see a batch (observe, merge, adopt) before it routes?

    n_workers: int
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        for field, given in (("n_workers", self.n_workers), ("seed", self.seed)):
            if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
                raise TypeError(f"{field} is a whole number, not {given!r}")
        self.n_workers, self.seed = int(self.n_workers), int(self.seed)
        require(1 <= self.n_workers <= MOST_WORKERS, f"n_workers is between 1 and {MOST_WORKERS}, not {self.n_workers}")
        require(0 <= self.seed < 2**64, f"seed is between 0 and 2**64 - 1, not {self.seed}")
        self._state = self.fresh()

    @abstractmethod
    def fresh(self) -> S:
        """The state of a partitioner that has seen nothing."""

    @abstractmethod
    def assign(self, keys: Keys, times: Times | None, workers: Workers) -> None:
        """Write the worker of keys[i] to workers[i], in order, and carry the state on. Input is checked already."""

    def route(self, keys: Keys, times: Times | None = None) -> Workers:
        """The worker of each key. Sequential: the state carries on from call to call."""
        keys, times = checked(keys, times)
        workers = np.empty(keys.size, np.int32)
        self.assign(keys, times, workers)
        return workers

    def observe(self, keys: Keys, times: Times | None = None) -> None:
        """Learn without deciding: as if the keys had been routed. Planners count them instead."""
        self.route(keys, times)

    def snapshot(self) -> S:
        """All that it has learned, as arrays of its own."""
        return copied(self._state)

    def restore(self, snapshot: S) -> Self:
        """Carry on from a snapshot of a partitioner with the same parameters."""
        require(
            _layout(snapshot) == _layout(self._state),
            f"this snapshot is of another kind than those of {self.name} with these parameters",
        )
        self._state = copied(snapshot)
        return self

    def merge(self, snapshots: Sequence[S]) -> P | None:
        """What several sources know together, in any order; None where sources have nothing to tell each other."""
        return None

    def adopt(self, policy: P) -> None:
        """Decide by this policy from now on. Doing so twice is doing so once."""
        raise TypeError(f"{self.name} has no policy to adopt: its sources need not talk")

    def candidates(self, keys: Keys) -> NDArray[np.int32]:
        """The workers that each key may go to, first choice first; only for those that choose among a few."""
        raise TypeError(f"{self.name} does not choose among a few candidates per key")

    def memory_bound(self, n_keys: int) -> int:
        """The most bytes its state may take after n_keys different keys. Unless said otherwise, it does not grow."""
        return n_bytes(self.fresh())

    def run(
        self, loop: Callable[[S, Keys, Times, Workers, int], int], keys: Keys, times: Times, workers: Workers
    ) -> None:
        """Drive a compiled loop, which stops before the tuple that its state has no room for; then the state grows."""
        done = loop(self._state, keys, times, workers, 0)
        while done < keys.size:
            self._state = self.grown(self._state)
            done = loop(self._state, keys, times, workers, done)

    def grown(self, state: S) -> S:
        """The same state with more room, for a loop that stopped."""
        raise NotImplementedError(f"the state of {self.name} does not grow")


NO_TIMES: Times = np.empty(0, np.int64)


def ticking(clock: NDArray[np.int64], times: Times | None, n_tuples: int) -> Times:
    """The times of tuples: as given, or one unit after the tuple before. clock[0] is the time after the last one."""
    if times is None:
        times = np.arange(clock[0], clock[0] + n_tuples, dtype=np.int64)
    if n_tuples:
        clock[0] = times[-1] + 1
    return times


def checked(keys: Keys, times: Times | None) -> tuple[Keys, Times | None]:
    """Keys and times as the kernels want them: one dimension, the right type, contiguous and writeable."""
    keys = _array("keys", keys, np.uint64, "skewless.streams.as_keys turns words and numbers into key hashes")
    if times is not None:
        times = _array("times", times, np.int64, "round them to whole units of the window")
        require(times.size == keys.size, f"every key has a time: {keys.size} keys came with {times.size} times")
    return keys, times


def _array(what: str, given: NDArray[Any], dtype: type[np.generic], advice: str) -> NDArray[Any]:
    if not isinstance(given, np.ndarray) or given.dtype != dtype or given.ndim != 1:
        shown = f"{given.ndim}-dimensional {given.dtype}" if isinstance(given, np.ndarray) else type(given).__name__
        raise TypeError(f"{what} are a one-dimensional numpy array of {np.dtype(dtype)}, not {shown}: {advice}")
    # numba compiles every kernel anew for arrays that are read-only (Arrow's are): a copy costs half a ns a tuple.
    return given if given.flags.c_contiguous and given.flags.writeable else given.copy()


def copied(state: Arrays) -> Arrays:
    """A NamedTuple of arrays that shares no memory with the given one."""
    return type(state)(*(copied(field) if isinstance(field, tuple) else field.copy() for field in state))


def n_bytes(state: tuple[Any, ...]) -> int:
    return sum(n_bytes(field) if isinstance(field, tuple) else field.nbytes for field in state)


def _layout(state: object) -> object:
    if isinstance(state, tuple):
        return type(state), *(_layout(field) for field in state)
    return (state.dtype, state.ndim) if isinstance(state, np.ndarray) else type(state)


def to_bytes(state: tuple[Any, ...]) -> bytes:
    """A snapshot or policy for a file or a message, as an uncompressed npz archive: no pickle."""
    buffer = BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(_leaves(state, "")))
    return buffer.getvalue()


def from_bytes(kind: type[Arrays], data: bytes) -> Arrays:
    """The snapshot or policy of this kind that `to_bytes` wrote."""
    with np.load(BytesIO(data), allow_pickle=False) as archive:
        return _rebuilt(kind, dict(archive), "")


def _leaves(state: tuple[Any, ...], path: str) -> list[tuple[str, NDArray[Any]]]:
    leaves: list[tuple[str, NDArray[Any]]] = []
    for name, field in zip(type(state)._fields, state, strict=True):  # type: ignore[attr-defined]
        leaves += _leaves(field, f"{path}{name}.") if isinstance(field, tuple) else [(path + name, field)]
    return leaves


def _rebuilt(kind: type[Arrays], archive: dict[str, NDArray[Any]], path: str) -> Arrays:
    fields: list[Any] = []
    for name, hint in get_type_hints(kind).items():
        if isinstance(hint, type) and issubclass(hint, tuple):
            fields.append(_rebuilt(hint, archive, f"{path}{name}."))
        else:
            require(path + name in archive, f"these bytes hold no {kind.__name__}: {path + name} is missing")
            fields.append(archive[path + name])
    return kind(*fields)
