"""Keys of any type as 64-bit hashes, computed by Spark itself: equal keys have equal hashes, as Spark groups them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, VariantType

from skewless.arrays import require


def fields_of(df: DataFrame, names: Sequence[str]) -> list[StructField]:
    """The columns that make up a key; refused with a sentence if one is missing, or cannot be grouped by."""
    require(len(names) >= 1, "a key has at least 1 column")
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    require(not repeated, f"a key has each column once, not {', '.join(repeated)} twice")
    # Spark tells names apart by case only if it is told to; we take a column by the name that it has.
    known = {field.name: field for field in df.schema.fields}
    for name in names:
        require(name in known, f"there is no column {name!r}; there are {', '.join(known)}")
        reason = _ungroupable(known[name].dataType)
        require(not reason, f"column {name!r} cannot be a key: {reason}")
    return [known[name] for name in names]


def _ungroupable(kind: DataType) -> str:
    """Why this type cannot be a key; empty if it can."""
    if isinstance(kind, VariantType):
        return "Spark does not group by variants"
    if isinstance(kind, StringType):
        # Spark's hash functions see bytes, but a collation may call different bytes equal.
        collation = getattr(kind, "collation", "UTF8_BINARY")
        plain = collation == "UTF8_BINARY"
        return "" if plain else f"its collation {collation} has no native hash; use collate(column, 'UTF8_BINARY')"
    if isinstance(kind, ArrayType):
        return _ungroupable(kind.elementType)
    if isinstance(kind, MapType):
        return _ungroupable(kind.keyType) or _ungroupable(kind.valueType)
    if isinstance(kind, StructType):
        return next((reason for field in kind.fields if (reason := _ungroupable(field.dataType))), "")
    return ""


def hashed(df: DataFrame, names: Sequence[str]) -> Column:
    """The hash of the key in these columns, as a bigint. NaN, -0.0 and NULL are treated as grouping does."""
    return F.xxhash64(*(_hashable(column(field.name), field.dataType) for field in fields_of(df, names)))


def any_null(names: Sequence[str]) -> Column:
    """Whether a column of the key is NULL."""
    found = F.lit(False)
    for name in names:
        found = found | column(name).isNull()
    return found


def column(name: str) -> Column:
    """The column of exactly this name, dots and all."""
    return F.col("`" + name.replace("`", "``") + "`")


def _hashable(value: Column, kind: DataType) -> Column:
    """The same value in a form that Spark hashes: it hashes everything but maps, which have no order."""
    if isinstance(kind, MapType):
        entries = F.map_entries(value)
        return F.array_sort(F.transform(entries, lambda e: F.struct(e["key"], _hashable(e["value"], kind.valueType))))
    if isinstance(kind, ArrayType) and _has_map(kind):
        return F.transform(value, lambda element: _hashable(element, kind.elementType))
    if isinstance(kind, StructType) and _has_map(kind):
        return F.struct(*(_hashable(value[field.name], field.dataType).alias(field.name) for field in kind.fields))
    return value


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType)


def unused(df: DataFrame, *wanted: str) -> list[str]:
    """Names for columns of our own that none of the user's has, whatever their case."""
    taken = {name.lower() for name in df.columns}
    found = []
    for name in wanted:
        free = name
        while free.lower() in taken:
            free += "_"
        taken.add(free.lower())
        found.append(free)
    return found
