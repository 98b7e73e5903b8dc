"""Schemas of Spark, given in words or as types, and the Arrow schemas of the same rows."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField, StructType

from skewless.arrays import require


def nullable(schema: StructType) -> StructType:
    """The same fields, any of which may be NULL, and anything in them."""
    return StructType([StructField(field.name, _nullable(field.dataType)) for field in schema.fields])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, T.StructType):
        return nullable(kind)
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def schema_of(given: StructType | str) -> StructType:
    """A schema as given, or in words such as 'n long'."""
    schema = StructType.fromDDL(given) if isinstance(given, str) else given
    require(isinstance(schema, StructType), f"a schema names its fields, such as 'n long', not {given!r}")
    return cast(StructType, schema)


_ROWS: dict[str, Any] = {}  # Arrow schemas of rows, by Spark's


def rows_schema(df: DataFrame) -> pa.Schema:
    """Of the rows as Spark hands them to Python, for a table without any."""
    known = df.schema.json()
    if known not in _ROWS:
        _ROWS[known] = df.sparkSession.createDataFrame([], df.schema).toArrow().schema
    return _ROWS[known]


_PLAIN: dict[type[DataType], Any] = {
    T.NullType: pa.null(),
    T.BooleanType: pa.bool_(),
    T.ByteType: pa.int8(),
    T.ShortType: pa.int16(),
    T.IntegerType: pa.int32(),
    T.LongType: pa.int64(),
    T.FloatType: pa.float32(),
    T.DoubleType: pa.float64(),
    T.StringType: pa.string(),
    T.BinaryType: pa.binary(),
    T.DateType: pa.date32(),
    T.TimestampType: pa.timestamp("us", "UTC"),
    T.TimestampNTZType: pa.timestamp("us"),
    T.DayTimeIntervalType: pa.duration("us"),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Of the same rows in Arrow. Times are in UTC, whatever the session's zone, for they are kept."""
    return pa.schema([pa.field(field.name, _arrow(field.dataType)) for field in schema.fields])


def _arrow(kind: DataType) -> pa.DataType:
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(field.name, _arrow(field.dataType)) for field in kind.fields])
    if isinstance(kind, T.ArrayType):
        return pa.list_(_arrow(kind.elementType))
    if isinstance(kind, T.MapType):
        return pa.map_(_arrow(kind.keyType), _arrow(kind.valueType))
    if isinstance(kind, T.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    known = _PLAIN.get(type(kind))
    require(
        known is not None,
        f"states and results have no fields of type {kind.simpleString()}",
    )
    return known
