"""Rows of any Arrow types as JSON and back, exactly: how keys are told apart, and how states lie in the hot copy."""

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

from skewless.arrays import require

Values: TypeAlias = tuple[Any, ...]  # the fields of a row, as Python values
_EPOCH = dt.datetime(1970, 1, 1)
_DAY = dt.date(1970, 1, 1).toordinal()
_TICK = dt.timedelta(microseconds=1)
_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
_SEPARATOR = ",\n"  # JSON never has a line feed within a value
_in_lines = json.JSONEncoder(ensure_ascii=False, separators=(_SEPARATOR, ":"), check_circular=False).encode


class _Form(NamedTuple):
    """How values of a type become JSON and come back; None where they are JSON already."""

    out: Callable[[Any], Any] | None
    back: Callable[[Any], Any] | None


@dataclass(frozen=True)
class Codec:
    """Rows by a schema <-> JSON texts, one a row.

    canonical: equal keys, as Spark groups them, get equal texts: -0.0 is 0.0, and a map has no order.
    """

    schema: pa.Schema
    canonical: bool = False

    @cached_property
    def _forms(self) -> list[_Form]:
        return [_form(field.type, self.canonical) for field in self.schema]

    def texts(self, rows: pa.StructArray | pa.Table) -> list[str | None]:
        """The text of each row; None where the row as a whole is NULL."""
        table = isinstance(rows, pa.Table)
        columns = rows.columns if table else rows.flatten()
        fields = [_texts(*each) for each in zip(columns, self.schema.types, self._forms, strict=True)]
        texts: list[str | None] = [f"[{','.join(row)}]" for row in zip(*fields, strict=True)]
        if table or rows.null_count == 0:
            return texts
        return [text if there else None for text, there in zip(texts, rows.is_valid().to_pylist(), strict=True)]

    def values(self, texts: Sequence[str]) -> list[Values]:
        """The rows of these texts, as tuples of Python values: a struct is a dict, and so is a map if it can be."""
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
        """Rows of Python values as Arrow; None is NULL."""
        width = len(self.schema)
        blank = (None,) * width
        columns = zip(*(blank if row is None else row for row in rows), strict=True) if rows else [()] * width
        arrays = [_array(column, field) for column, field in zip(columns, self.schema, strict=True)]
        mask = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self.schema), mask=mask)


def changing(columns: Sequence[pa.Array], again: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of the rows that should have the key of the row before do not seem to; their texts decide."""
    found = np.zeros(again.size, np.bool_)
    for column in columns:
        if pa.types.is_nested(column.type):
            return again
        this, last = column.slice(1), column.slice(0, max(again.size - 1, 0))
        same = pc.or_(pc.fill_null(pc.equal(this, last), False), pc.and_(pc.is_null(this), pc.is_null(last)))
        found[1:] |= ~np.asarray(same)
    return found & again


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise TypeError(f"field {field.name!r} is of type {field.type}: {error}") from error


def _texts(column: pa.Array, kind: pa.DataType, form: _Form) -> list[str]:
    """The text of each value."""
    values = column.to_pylist()
    if form.out is not None:
        values = [_or_none(form.out, value) for value in values]
    if pa.types.is_nested(kind):
        return [_encoded(value) for value in values]
    # One call for all is several times faster than a call for each.
    return _in_lines(values)[1:-1].split(_SEPARATOR) if values else []


def _or_none(function: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else function(value)


def _form(kind: pa.DataType, canonical: bool) -> _Form:
    types = pa.types
    if types.is_floating(kind):
        require(not types.is_float16(kind), "a state or key has no halffloat fields: Spark has none")
        return _Form((lambda value: value + 0.0) if canonical else None, None)
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind):
        return _Form(None, None)
    if types.is_string(kind) or types.is_large_string(kind):
        return _Form(None, None)
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _Form(lambda value: value.decode("latin-1"), lambda value: value.encode("latin-1"))
    if types.is_decimal(kind):
        return _Form(str, Decimal)
    if types.is_date32(kind):
        return _Form(lambda value: value.toordinal() - _DAY, lambda value: dt.date.fromordinal(value + _DAY))
    if types.is_timestamp(kind) and kind.unit == "us":
        return _timestamp(kind)
    if types.is_duration(kind) and kind.unit == "us":
        return _Form(lambda value: value // _TICK, lambda value: value * _TICK)
    if types.is_list(kind) or types.is_large_list(kind):
        return _list(_form(kind.value_type, canonical))
    if types.is_map(kind):
        return _map(kind, canonical)
    if types.is_struct(kind):
        return _struct(kind, canonical)
    raise ValueError(f"a state or key has no fields of type {kind}: Spark gives none such")


def _timestamp(kind: pa.DataType) -> _Form:
    zone = None if kind.tz is None else dt.UTC
    epoch = _EPOCH.replace(tzinfo=zone)
    require(kind.tz in (None, "UTC"), f"timestamps are in UTC or without a zone, not in {kind.tz}")
    return _Form(lambda value: (value - epoch) // _TICK, lambda value: epoch + value * _TICK)


def _list(element: _Form) -> _Form:
    out, back = element
    return _Form(
        None if out is None else lambda values: [_or_none(out, value) for value in values],
        None if back is None else lambda values: [_or_none(back, value) for value in values],
    )


def _map(kind: pa.DataType, canonical: bool) -> _Form:
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

    return _Form(out, back)


def _struct(kind: pa.DataType, canonical: bool) -> _Form:
    fields = [(field.name, *_form(field.type, canonical)) for field in kind]

    def out(value: Any) -> list[Any]:
        return [_or_none(form_out or _same, value[name]) for name, form_out, _ in fields]

    def back(values: Any) -> dict[str, Any]:
        return {
            name: _or_none(form_back or _same, value)
            for (name, _, form_back), value in zip(fields, values, strict=True)
        }

    return _Form(out, back)


def _same(value: Any) -> Any:
    return value
