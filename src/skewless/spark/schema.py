"""Spark schemas, from DDL strings or types, and the Arrow schemas of the same rows."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.types import DataType, StructField, StructType

from skewless.arguments import require
from skewless.spark.plans import Session


def nullable(schema: StructType) -> StructType:
    """Returns the same fields, nullable at every level."""
    return StructType([StructField(field.name, _nullable(field.dataType)) for field in schema.fields])


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, T.StructType):
        return nullable(kind)
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def schema_of(schema: StructType | str) -> StructType:
    """Returns a schema that is given as a StructType or as a DDL string such as 'n long'."""
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    is_struct = isinstance(parsed, StructType)
    require(is_struct, f"a schema must be a StructType or a DDL string such as 'n long', not {schema!r}")
    return cast(StructType, parsed)


def rows_schema(df: DataFrame) -> pa.Schema:
    """Returns the Arrow schema of a frame's rows as Spark passes them to Python."""
    return _rows_schema(Session.of(df.sparkSession), df.schema.json())


@lru_cache(maxsize=64)
def _rows_schema(session: Session, schema: str) -> pa.Schema:
    return session.spark.createDataFrame([], StructType.fromJson(json.loads(schema))).toArrow().schema


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
    """Returns the Arrow schema of the same rows. Timestamps are in UTC, since files outlive the session."""
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
    plain = _PLAIN.get(type(kind))
    refusal = f"states and results cannot have fields of type {kind.simpleString()}"
    require(plain is not None, f"{refusal}: use another type, such as string")
    return plain
