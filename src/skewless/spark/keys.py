"""Keys of any type as 64-bit hashes, computed by Spark itself: equal keys have equal hashes, as Spark groups them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


def hashing(df: DataFrame, names: Sequence[str]) -> str:
    """The hash of the key in these columns, as a bigint, in SQL: NaN, -0.0 and NULL are treated as grouping does.

    Expressions that are large are made as text. To make them of Columns, Python would ask the JVM for each part.
    """
    fields = fields_of(df, names)
    return f"xxhash64({', '.join(_without_maps(quoted(each.name), each.dataType, 'array_sort') for each in fields)})"


def hashed(df: DataFrame, names: Sequence[str]) -> Column:
    """The same as a column."""
    return F.expr(hashing(df, names))


def ordered(df: DataFrame, names: Sequence[str]) -> list[Column]:
    """The columns of a key in a form that Spark can sort. Maps are equal if their entries are, one by one.

    So it is in Spark's grouped Python functions; for its hashes and aggregates, the order of entries does not matter.
    """
    fields = fields_of(df, names)
    return [F.expr(_without_maps(quoted(field.name), field.dataType, "")) for field in fields]


def any_null(names: Sequence[str]) -> str:
    """Whether a column of the key is NULL, in SQL."""
    return " OR ".join(f"{quoted(name)} IS NULL" for name in names)


def quoted(name: str) -> str:
    """The name of a column in SQL, dots and all; also for what takes names: it costs less than a column."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    """The column of exactly this name."""
    return F.col(quoted(name))


def _without_maps(value: str, kind: DataType, arranged: str, depth: int = 0) -> str:
    """The same value with arrays of entries for maps, which Spark neither hashes nor sorts.

    arranged: the function that arranges entries, if any.
    """
    each = f"each{depth}"
    if isinstance(kind, MapType):
        entry = f"struct({each}.key, {_without_maps(f'{each}.value', kind.valueType, arranged, depth + 1)})"
        return f"{arranged}(transform(map_entries({value}), {each} -> {entry}))"
    if isinstance(kind, ArrayType) and _has_map(kind):
        return f"transform({value}, {each} -> {_without_maps(each, kind.elementType, arranged, depth + 1)})"
    if isinstance(kind, StructType) and _has_map(kind):
        named = [(f"{value}.{quoted(field.name)}", field.dataType) for field in kind.fields]
        return f"struct({', '.join(_without_maps(*field, arranged, depth + 1) for field in named)})"
    return value


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType)


def unused(df: DataFrame, *wanted: str, besides: Iterable[str] = ()) -> list[str]:
    """Names for columns of our own that none of the user's has, whatever their case; besides: others of the user's."""
    taken = {name.lower() for name in (*df.columns, *besides)}
    found = []
    for name in wanted:
        free = name
        while free.lower() in taken:
            free += "_"
        taken.add(free.lower())
        found.append(free)
    return found
