"""Spark schemas and the Arrow schemas of the same rows. No Spark is started."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from skewless.spark.schema import arrow_schema, nullable

pytestmark = pytest.mark.compiled


def test_all_levels_of_a_schema_become_nullable() -> None:
    inner = StructType([StructField("x", T.LongType(), False)])
    kinds = (inner, T.ArrayType(inner, False), T.MapType(T.StringType(), inner, False))
    found = nullable(StructType([StructField(f"c{number}", kind, False) for number, kind in enumerate(kinds)]))
    assert "false" not in found.json()


def test_nested_types_and_times_have_their_arrow_types() -> None:
    schema = StructType(
        [
            StructField("at", T.TimestampType()),
            StructField("local", T.TimestampNTZType()),
            StructField("price", T.DecimalType(20, 2)),
            StructField("counts", T.MapType(T.StringType(), T.ArrayType(T.LongType()))),
            StructField("point", StructType([StructField("x", T.DoubleType())])),
        ]
    )
    assert arrow_schema(schema) == pa.schema(
        {
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
            "price": pa.decimal128(20, 2),
            "counts": pa.map_(pa.string(), pa.list_(pa.int64())),
            "point": pa.struct({"x": pa.float64()}),
        }
    )


def test_types_that_states_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot have fields of type interval year"):
        arrow_schema(StructType([StructField("y", T.YearMonthIntervalType(0, 0))]))
