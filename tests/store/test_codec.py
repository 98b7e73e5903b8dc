"""Rows of any Spark type become text and come back exactly."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skewless.store import (
    Codec,
    Values,
)

EXACT = st.floats(width=32).map(float)
FIELDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), st.integers(-128, 127)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), EXACT),
    "boolean": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=5)),
    "binary": (pa.binary(), st.binary(max_size=5)),
    "decimal": (pa.decimal128(20, 2), st.integers(-(10**19), 10**19).map(lambda n: Decimal(n).scaleb(-2))),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "local": (pa.timestamp("us"), st.datetimes()),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999))),
    "list": (pa.list_(pa.float64()), st.lists(st.none() | st.floats(), max_size=3)),
    "map": (
        pa.map_(pa.string(), pa.binary()),
        st.dictionaries(st.text(max_size=2), st.none() | st.binary(max_size=2), max_size=2),
    ),
    "nested": (
        pa.struct({"a": pa.list_(pa.struct({"b": pa.date32(), "c": pa.string()})), "d": pa.int32()}),
        st.fixed_dictionaries(
            {
                "a": st.none()
                | st.lists(
                    st.fixed_dictionaries({"b": st.none() | st.dates(), "c": st.none() | st.text(max_size=2)}),
                    max_size=2,
                ),
                "d": st.none() | st.integers(-5, 5),
            }
        ),
    ),
}


def exact(value: Any) -> Any:
    """Returns a value in a form in which NaN equals itself, and -0.0 is not 0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {name: exact(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [exact(each) for each in value]
    return value


@settings(max_examples=100)
@given(rows=st.lists(st.none() | st.tuples(*(st.none() | values for _, values in FIELDS.values())), max_size=4))
def test_rows_of_any_type_become_text_and_come_back_exactly(rows: list[Values | None]) -> None:
    codec = Codec(pa.schema({name: kind for name, (kind, _) in FIELDS.items()}))
    texts = codec.texts(codec.array(rows))
    assert [text is None for text in texts] == [row is None for row in rows]
    back = iter(codec.values([text for text in texts if text is not None]))
    assert exact([None if text is None else next(back) for text in texts]) == exact(rows)
    again = codec.texts(codec.array(codec.values([text for text in texts if text is not None])))
    assert again == [text for text in texts if text is not None]


def test_keys_that_spark_groups_together_have_one_text() -> None:
    kinds = {"x": pa.float64(), "m": pa.map_(pa.int32(), pa.list_(pa.float32()))}
    codec = Codec(pa.schema(kinds), canonical=True)
    rows = [(0.0, [(1, [0.0]), (2, [])]), (-0.0, [(2, []), (1, [-0.0])])]
    assert len(set(codec.texts(codec.array(rows)))) == 1


def test_types_that_spark_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot have fields of type time32"):
        Codec(pa.schema({"t": pa.time32("s")})).texts(pa.table({"t": pa.array([], pa.time32("s"))}))
