"""Converts rows of all Arrow types that Spark has to JSON and back: to compare keys, and for states in the hot copy."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from skewless.arguments import require

Values: TypeAlias = tuple[Any, ...]  # the fields of a row, as Python values
_EPOCH = dt.datetime(1970, 1, 1)
_DAY = dt.date(1970, 1, 1).toordinal()
_TICK = dt.timedelta(microseconds=1)
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
_SEPARATOR = ",\n"  # JSON never has a line feed within a value
_in_lines = json.JSONEncoder(ensure_ascii=False, separators=(_SEPARATOR, ":"), check_circular=False).encode


class _JsonForm(NamedTuple):
    """Functions that turn values of a type into JSON and back; None where values are JSON already."""

    out: Callable[[Any], Any] | None
    back: Callable[[Any], Any] | None


@dataclass(frozen=True)
class Codec:
    """Converts rows of a schema to JSON texts, one a row, and back.

    schema: the names and types of the fields.
    canonical: give keys that Spark groups together the same text: -0.0 becomes 0.0, and maps are sorted.
    """

    schema: pa.Schema
    canonical: bool = False

    @cached_property
    def _forms(self) -> list[_JsonForm]:
        return [_form(field.type, self.canonical) for field in self.schema]

    def texts(self, rows: pa.StructArray | pa.Table) -> list[str | None]:
        """Returns the text of each row; None where the whole row is NULL."""
        table = isinstance(rows, pa.Table)
        columns = rows.columns if table else rows.flatten()
        fields = [
            _texts(column, kind, form)
            for column, kind, form in zip(columns, self.schema.types, self._forms, strict=True)
        ]
        texts: list[str | None] = [f"[{','.join(row)}]" for row in zip(*fields, strict=True)]
        if table or rows.null_count == 0:
            return texts
        return [text if is_valid else None for text, is_valid in zip(texts, rows.is_valid().to_pylist(), strict=True)]

    def values(self, texts: Sequence[str]) -> list[Values]:
        """Returns the rows of these texts as tuples of Python values.

        Structs are dicts, and so are maps, unless their keys are nested: those are lists of pairs.
        """
        rows = json.loads(f"[{','.join(texts)}]")
        backs = [form.back for form in self._forms]
        if not any(backs):
            return [tuple(row) for row in rows]
        pairs = [(number, back) for number, back in enumerate(backs) if back is not None]
        for row in rows:
            for number, back in pairs:
                if row[number] is not None:
                    row[number] = back(row[number])
        return [tuple(row) for row in rows]

    def array(self, rows: Sequence[Values | None]) -> pa.StructArray:
        """Returns rows of Python values as Arrow; None becomes NULL."""
        width = len(self.schema)
        blank = (None,) * width
        columns = zip(*(blank if row is None else row for row in rows), strict=True) if rows else [()] * width
        arrays = [_array(column, field) for column, field in zip(columns, self.schema, strict=True)]
        mask = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self.schema), mask=mask)


def differs_from_last(keys: Sequence[pa.Array], same_position: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Returns which rows with the position of the row before seem to have another key.

    May report a difference where there is none, as for nested types and NaN: callers then compare the texts of keys.

    keys: the columns of the keys.
    same_position: which rows have the position of the row before.
    """
    differs = np.zeros(same_position.size, np.bool_)
    for column in keys:
        if pa.types.is_nested(column.type):
            return same_position
        this, last = column.slice(1), column.slice(0, max(same_position.size - 1, 0))
        is_equal = pc.or_(pc.fill_null(pc.equal(this, last), False), pc.and_(pc.is_null(this), pc.is_null(last)))
        differs[1:] |= ~np.asarray(is_equal)
    return differs & same_position


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise TypeError(f"field {field.name!r} must be of type {field.type}: {error}") from error


def _texts(column: pa.Array, kind: pa.DataType, form: _JsonForm) -> list[str]:
    """Returns the text of each value."""
    values = column.to_pylist()
    if form.out is not None:
        values = [_or_none(form.out, value) for value in values]
    if pa.types.is_nested(kind):
        return [_encoded(value) for value in values]
    # One call for all values is several times faster than one call a value.
    return _in_lines(values)[1:-1].split(_SEPARATOR) if values else []


def _or_none(function: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else function(value)


def _form(kind: pa.DataType, canonical: bool) -> _JsonForm:
    types = pa.types
    if types.is_floating(kind):
        is_float16 = types.is_float16(kind)
        require(not is_float16, "states and keys cannot have halffloat fields, as Spark has no such type: use float")
        return _JsonForm((lambda value: value + 0.0) if canonical else None, None)
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind):
        return _JsonForm(None, None)
    if types.is_string(kind) or types.is_large_string(kind):
        return _JsonForm(None, None)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _JsonForm(lambda value: value.decode("latin-1"), lambda value: value.encode("latin-1"))
    if types.is_decimal(kind):
        return _JsonForm(str, Decimal)
    if types.is_date32(kind):
        return _JsonForm(lambda value: value.toordinal() - _DAY, lambda value: dt.date.fromordinal(value + _DAY))
    if types.is_timestamp(kind) and kind.unit == "us":
        return _timestamp(kind)
    if types.is_duration(kind) and kind.unit == "us":
        return _JsonForm(lambda value: value // _TICK, lambda value: value * _TICK)
    if types.is_list(kind) or types.is_large_list(kind):
        return _list(_form(kind.value_type, canonical))
    if types.is_map(kind):
        return _map(kind, canonical)
    if types.is_struct(kind):
        return _struct(kind, canonical)
    raise ValueError(f"states and keys cannot have fields of type {kind}, as Spark has no such type")


def _timestamp(kind: pa.DataType) -> _JsonForm:
    zone = None if kind.tz is None else dt.UTC
    epoch = _EPOCH.replace(tzinfo=zone)
    require(kind.tz in (None, "UTC"), f"states and keys have timestamps in UTC or without a zone, not in {kind.tz}")
    return _JsonForm(lambda value: (value - epoch) // _TICK, lambda value: epoch + value * _TICK)


def _list(element: _JsonForm) -> _JsonForm:
    out, back = element
    return _JsonForm(
        None if out is None else lambda values: [_or_none(out, value) for value in values],
        None if back is None else lambda values: [_or_none(back, value) for value in values],
    )


def _map(kind: pa.DataType, canonical: bool) -> _JsonForm:
    keys, items = _form(kind.key_type, canonical), _form(kind.item_type, canonical)
    key_out, item_out = keys.out or _same, items.out or _same
    key_back, item_back = keys.back or _same, items.back or _same
    as_dict = not pa.types.is_nested(kind.key_type)

    def out(pairs: Any) -> list[Any]:
        plain = [(key_out(key), _or_none(item_out, item)) for key, item in pairs]
        return sorted(plain, key=_encoded) if canonical else plain

    def back(pairs: Any) -> Any:
        values = [(key_back(key), _or_none(item_back, item)) for key, item in pairs]
        return dict(values) if as_dict else values

    return _JsonForm(out, back)


def _struct(kind: pa.DataType, canonical: bool) -> _JsonForm:
    fields = [(field.name, *_form(field.type, canonical)) for field in kind]

    def out(value: Any) -> list[Any]:
        return [_or_none(form_out or _same, value[name]) for name, form_out, _ in fields]

    def back(values: Any) -> dict[str, Any]:
        return {
            name: _or_none(form_back or _same, value)
            for (name, _, form_back), value in zip(fields, values, strict=True)
        }

    return _JsonForm(out, back)


def _same(value: Any) -> Any:
    return value
