"""The state variables of a StatefulProcessor, as in PySpark: a value, a list or a map for the current key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.types import ArrayType, DataType, MapType, Row, StructType

from skewless.arguments import require

_NAN = "NaN"  # stands for NaN in keys of maps, as NaN does not equal itself
_PLAIN_TYPES = frozenset({bool, int, float, str, bytes})


class Form(NamedTuple):
    """Functions that convert values of a type for the store, and back to what PySpark would return."""

    to_store: Callable[[Any], Any]
    to_user: Callable[[Any], Any]


class Variable:
    """The content of a variable for the current key, as stored; if it is None or empty, the key has no such state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_changed = False
        self._is_bound = False
        self._content: Any = None

    def bind(self, content: Any) -> None:
        """Sets the content for the next key."""
        self._content, self._is_bound, self.is_changed = content, True, False

    def release(self) -> Any:
        """Returns the content to store; ends the access to the key."""
        self._is_bound = False
        return self._content or None

    def exists(self) -> bool:
        """Returns whether the key has a state."""
        return bool(self._current())

    def clear(self) -> None:
        """Deletes the state of the key."""
        if self._current():
            self._change(None)

    def _current(self) -> Any:
        require(self._is_bound, f"state {self.name!r} can only be used while a key is handled")
        return self._content

    def _change(self, content: Any) -> None:
        self._content, self.is_changed = content, True


class ValueVariable(Variable, ValueState):
    def __init__(self, name: str, kind: StructType) -> None:
        super().__init__(name)
        self._form = _struct(kind)

    def get(self) -> tuple[Any, ...] | None:
        content = self._current()
        return tuple(self._form.to_user(content)) if content else None

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803
        self._current()
        self._change(self._form.to_store(newValue))


class ListVariable(Variable, ListState):
    def __init__(self, name: str, kind: ArrayType) -> None:
        super().__init__(name)
        self._form = _struct(kind.elementType)

    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter([tuple(self._form.to_user(value)) for value in self._current() or ()])

    def put(self, newState: list[tuple[Any, ...]]) -> None:  # noqa: N803
        self._current()
        self._change(self._stored(newState))

    def appendValue(self, newState: tuple[Any, ...]) -> None:  # noqa: N802, N803
        self._append([self._form.to_store(newState)])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:  # noqa: N802, N803
        self._append(self._stored(newState))

    def _stored(self, values: Iterable[tuple[Any, ...]]) -> list[Any]:
        stored = [self._form.to_store(value) for value in values]
        require(bool(stored), f"state {self.name!r} needs at least one value: use clear() to delete it")
        return stored

    def _append(self, values: list[Any]) -> None:
        content = self._current() or []
        content.extend(values)
        self._change(content)


class _StoredMap(dict[Any, tuple[Any, Any]]):
    """The keys and values of a map as stored, by hashable keys."""


class MapVariable(Variable, MapState):
    def __init__(self, name: str, kind: MapType) -> None:
        super().__init__(name)
        self._keys, self._values = _struct(kind.keyType), _struct(kind.valueType)

    def release(self) -> Any:
        content = super().release()
        return list(content.values()) if isinstance(content, _StoredMap) else content

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        _, value = self._entries().get(_hashable(self._keys.to_store(key)), (None, None))
        return None if value is None else self._values.to_user(value)

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802
        return _hashable(self._keys.to_store(key)) in self._entries()

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        entries, stored_key = self._entries(), self._keys.to_store(key)
        entries[_hashable(stored_key)] = stored_key, self._values.to_store(value)
        self._change(entries)

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        entries = self._entries()
        if entries.pop(_hashable(self._keys.to_store(key)), None) is not None:
            self._change(entries)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return zip(self.keys(), self.values(), strict=True)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter([tuple(self._keys.to_user(key)) for key, _ in self._entries().values()])

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter([tuple(self._values.to_user(value)) for _, value in self._entries().values()])

    def _entries(self) -> _StoredMap:
        content = self._current()
        if not isinstance(content, _StoredMap):
            content = self._content = _StoredMap((_hashable(key), (key, value)) for key, value in content or ())
        return content


def variable(name: str, kind: DataType) -> ValueVariable | ListVariable | MapVariable:
    """Returns the variable for a field of the state: a value for a struct, a list for an array, a map for a map."""
    if isinstance(kind, StructType):
        return ValueVariable(name, kind)
    return ListVariable(name, kind) if isinstance(kind, ArrayType) else MapVariable(name, cast(MapType, kind))


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple([_hashable(item) for item in value.values()])
    if isinstance(value, (list, tuple)):
        return tuple([_hashable(item) for item in value])
    return value if value == value else _NAN


def _form(kind: DataType) -> Form:
    if isinstance(kind, StructType):
        return _struct(kind)
    if isinstance(kind, ArrayType):
        to_store, to_user = _optional(_form(kind.elementType))
        return Form(
            lambda values: [to_store(value) for value in values], lambda values: [to_user(value) for value in values]
        )
    if isinstance(kind, MapType):
        keys, values = _form(kind.keyType), _optional(_form(kind.valueType))
        return Form(
            lambda pairs: [(keys.to_store(key), values.to_store(value)) for key, value in dict(pairs).items()],
            lambda pairs: {keys.to_user(key): values.to_user(value) for key, value in dict(pairs).items()},
        )
    if isinstance(kind, T.TimestampType):
        # The store has timestamps in UTC; PySpark returns them in the zone of the machine, without a tzinfo.
        return Form(
            lambda value: _plain(value).astimezone(dt.UTC), lambda value: value.astimezone().replace(tzinfo=None)
        )
    return Form(_plain, lambda value: value)


def _struct(kind: DataType) -> Form:
    struct = cast(StructType, kind)
    names, row = struct.names, Row(*struct.names)
    fields = [_optional(_form(field.dataType)) for field in struct.fields]
    expected = f"a tuple of {len(names)} fields ({', '.join(names)})"

    def to_store(value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            value = tuple(value.get(name) for name in names)
        is_tuple = isinstance(value, (tuple, list))
        given = f"{len(value)} fields" if is_tuple else type(value).__name__
        require(is_tuple and len(value) == len(names), f"a state must be {expected}, not {given}")
        return {name: form.to_store(item) for name, form, item in zip(names, fields, value, strict=True)}

    def to_user(value: dict[str, Any]) -> Row:
        return row(*[form.to_user(item) for form, item in zip(fields, value.values(), strict=True)])

    return Form(to_store, to_user)


def _optional(form: Form) -> Form:
    to_store, to_user = form
    return Form(
        lambda value: None if value is None else to_store(value),
        lambda value: None if value is None else to_user(value),
    )


def _plain(value: Any) -> Any:
    """Converts values of NumPy and pandas to Python values."""
    if type(value) in _PLAIN_TYPES:  # the common case
        return value
    if isinstance(value, np.generic):
        return value.item()
    for name in ("to_pydatetime", "to_pytimedelta"):
        if hasattr(value, name):
            return getattr(value, name)()
    return value
