"""The state variables of a StatefulProcessor: a value, a list and a map, as PySpark has them, of the key at hand."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType

from skewless.arrays import require

_NAN = "NaN"  # one that equals itself
_PLAIN = frozenset({bool, int, float, str, bytes})


class Form(NamedTuple):
    """How values of a type are kept in the store, and how they are given back: as PySpark does."""

    kept: Callable[[Any], Any]
    given: Callable[[Any], Any]


class Variable:
    """What a variable holds of the key at hand, as the store has it; None, or nothing in it: there is no state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_changed = False
        self._is_bound = False
        self._content: Any = None

    def bind(self, content: Any) -> None:
        """Hold this from now on."""
        self._content, self._is_bound, self.is_changed = content, True, False

    def release(self) -> Any:
        """What is to be kept; there is no key at hand any more."""
        self._is_bound = False
        return self._content or None

    def exists(self) -> bool:
        return bool(self._known())

    def clear(self) -> None:
        if self._known():
            self._change(None)

    def _known(self) -> Any:
        require(self._is_bound, f"state {self.name!r} is that of a key: it is there while one is handled")
        return self._content

    def _change(self, content: Any) -> None:
        self._content, self.is_changed = content, True


class Value(Variable, ValueState):
    def __init__(self, name: str, kind: StructType) -> None:
        super().__init__(name)
        self._form = _struct(kind)

    def get(self) -> tuple[Any, ...] | None:
        known = self._known()
        return tuple(self._form.given(known)) if known else None

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803
        self._known()
        self._change(self._form.kept(newValue))


class Listed(Variable, ListState):
    def __init__(self, name: str, kind: ArrayType) -> None:
        super().__init__(name)
        self._form = _struct(kind.elementType)

    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter([tuple(self._form.given(each)) for each in self._known() or ()])

    def put(self, newState: list[tuple[Any, ...]]) -> None:  # noqa: N803
        self._known()
        self._change(self._several(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:  # noqa: N802, N803
        self._append([self._form.kept(newState)])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:  # noqa: N802, N803
        self._append(self._several(newState))

    def _several(self, given: Iterable[tuple[Any, ...]]) -> list[Any]:
        found = [self._form.kept(each) for each in given]
        require(bool(found), f"state {self.name!r} is given at least one value: clear() is for none")
        return found

    def _append(self, values: list[Any]) -> None:
        known = self._known() or []
        known.extend(values)
        self._change(known)


class _Entries(dict[Any, tuple[Any, Any]]):
    """The keys and values of a map as they are kept, by something to find them by."""


class Mapped(Variable, MapState):
    def __init__(self, name: str, kind: MapType) -> None:
        super().__init__(name)
        self._keys, self._values = _struct(kind.keyType), _struct(kind.valueType)

    def release(self) -> Any:
        content = super().release()
        return list(content.values()) if isinstance(content, _Entries) else content

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        found = self._entries().get(_hashable(self._keys.kept(key)))
        return None if found is None else self._values.given(found[1])

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802
        return _hashable(self._keys.kept(key)) in self._entries()

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        entries, kept = self._entries(), self._keys.kept(key)
        entries[_hashable(kept)] = kept, self._values.kept(value)
        self._change(entries)

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        entries = self._entries()
        if entries.pop(_hashable(self._keys.kept(key)), None) is not None:
            self._change(entries)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return zip(self.keys(), self.values(), strict=True)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter([tuple(self._keys.given(key)) for key, _ in self._entries().values()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([tuple(self._values.given(value)) for _, value in self._entries().values()])

    def _entries(self) -> _Entries:
        known = self._known()
        if not isinstance(known, _Entries):
            known = self._content = _Entries((_hashable(key), (key, value)) for key, value in known or ())
        return known


def variable(name: str, kind: DataType) -> Value | Listed | Mapped:
    """What a field of a state is to a processor: a struct is a value, an array a list, a map a map."""
    if isinstance(kind, StructType):
        return Value(name, kind)
    return Listed(name, kind) if isinstance(kind, ArrayType) else Mapped(name, cast(MapType, kind))


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple([_hashable(each) for each in value.values()])
    if isinstance(value, (list, tuple)):
        return tuple([_hashable(each) for each in value])
    return value if value == value else _NAN


def _form(kind: DataType) -> Form:
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        kept, given = _optional(_form(kind.elementType))
        return Form(lambda values: [kept(each) for each in values], lambda values: [given(each) for each in values])
    if isinstance(kind, MapType):
        keys, values = _form(kind.keyType), _optional(_form(kind.valueType))
        return Form(
            lambda pairs: [(keys.kept(key), values.kept(value)) for key, value in dict(pairs).items()],
            lambda pairs: {keys.given(key): values.given(value) for key, value in dict(pairs).items()},
        )
    if isinstance(kind, T.TimestampType):
        # The store has times in UTC; PySpark has them in the zone of the machine, without saying so.
        return Form(
            lambda value: _plain(value).astimezone(dt.UTC), lambda value: value.astimezone().replace(tzinfo=None)
        )
    return Form(_plain, lambda value: value)


def _struct(kind: DataType) -> Form:
    struct = cast(StructType, kind)
    names, row = struct.names, Row(*struct.names)
    fields = [_optional(_form(field.dataType)) for field in struct.fields]
    wanted = f"a tuple of {len(names)} fields ({', '.join(names)})"

    def kept(value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            value = tuple(value.get(name) for name in names)
        is_tuple = isinstance(value, (tuple, list))
        found = f"{len(value)} fields" if is_tuple else type(value).__name__
        require(is_tuple and len(value) == len(names), f"a state is {wanted}, not {found}")
        return {name: form.kept(each) for name, form, each in zip(names, fields, value, strict=True)}

    def given(value: dict[str, Any]) -> Row:
        return row(*[form.given(each) for form, each in zip(fields, value.values(), strict=True)])

    return Form(kept, given)


def _optional(form: Form) -> Form:
    kept, given = form
    return Form(
        lambda value: None if value is None else kept(value), lambda value: None if value is None else given(value)
    )


def _plain(value: Any) -> Any:
    """What NumPy and pandas have put in its place is a value of Python again."""
    if type(value) in _PLAIN:  # as most are
        return value
    if isinstance(value, np.generic):
        return value.item()
    for name in ("to_pydatetime", "to_pytimedelta"):
        if hasattr(value, name):
            return getattr(value, name)()
    return value
