"""The key of a row: which columns make it up, and its 64-bit hash, computed by Spark; equal keys have equal hashes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, VariantType

from skewless.arguments import require
from skewless.spark.settings import is_on

Key: TypeAlias = str | Column | Sequence[str | Column]  # what PySpark's groupBy takes


class Keyed(NamedTuple):
    """Rows with their key in columns of its own.

    A key that is a plain column is that column. A nested field or an expression is added to the rows as a new column,
    so that the rest of the code works with names of columns only.
    """

    df: DataFrame
    names: tuple[str, ...]  # the key's columns in df
    source: DataFrame  # the rows as the user gave them: without added columns
    by: tuple[str | Column, ...]  # the key as Spark's groupBy takes it on `source`
    shown: tuple[str, ...]  # the key's columns in a result, named as Spark names them

    @property
    def added(self) -> list[str]:
        """The columns of `df` that `source` lacks."""
        return [name for name in self.names if name not in self.source.columns]

    def renamed(self, result: DataFrame) -> DataFrame:
        """Returns a result with the key's columns under the names that Spark gives them."""
        return renamed(result, dict(zip(self.names, self.shown, strict=True)))


def keyed(df: DataFrame, keys: Sequence[Key]) -> Keyed:
    """Finds the columns of a key, given as PySpark's groupBy takes it.

    keys: names of columns in any case, nested fields such as "a.b", names with the alias of a DataFrame such as "t.a",
        Columns, or lists of these. A name that is exactly that of a column is that column, even if it has a dot.
    """
    flat: list[str | Column] = []
    for key in keys:
        flat += [key] if isinstance(key, (str, Column)) else _listed(key)
    columns = df.columns
    plain = [_plain_column(df, columns, key) for key in flat]
    if all(name is not None for name in plain):
        names = tuple(name for name in plain if name is not None)
        fields_of(df, names)
        shown = tuple(_unquoted(str(key)) for key in flat)
        return Keyed(df, names, df, tuple(map(quoted, shown)), shown)
    by = [key if name is None else quoted(_unquoted(str(key))) for key, name in zip(flat, plain, strict=True)]
    values = [F.col(key) if isinstance(key, str) else key for key in by]
    try:
        shown = tuple(df.select(*values).columns)
    except AnalysisException as error:
        missing = [key for key, name in zip(flat, plain, strict=True) if name is None and _is_missing(columns, key)]
        require(not missing, f"there is no column {', '.join(map(repr, missing))}; there are {', '.join(columns)}")
        raise ValueError(f"Spark cannot group by {', '.join(map(str, flat))}: {error}") from error
    fresh = unused(df, *(f"key {number + 1}" for number in range(len(flat))))
    names = tuple(new if name is None else name for name, new in zip(plain, fresh, strict=True))
    extra = [value.alias(new) for value, name, new in zip(values, plain, fresh, strict=True) if name is None]
    rows = df.select("*", *extra)
    fields_of(rows, names)
    return Keyed(rows, names, df, tuple(by), shown)


def renamed(df: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """Returns the same rows with new names for some columns."""
    if all(name == new for name, new in names.items()):
        return df
    return df.select(*(column(name).alias(names.get(name, name)) for name in df.columns))


def _listed(key: object) -> list[str | Column]:
    if isinstance(key, (list, tuple)) and all(isinstance(part, (str, Column)) for part in key):
        return list(key)
    raise TypeError(f"a key must be the name of a column, a Column, or a list of these, not {key!r}")


def _is_missing(columns: Sequence[str], key: str | Column) -> bool:
    """Returns whether a name is neither that of a column nor of a field in one."""
    first = key.partition(".")[0].strip("`").lower() if isinstance(key, str) else None
    return first is not None and first not in {name.lower() for name in columns}


def _plain_column(df: DataFrame, columns: Sequence[str], key: str | Column) -> str | None:
    """Returns the name of the column that a key is; None if it must be computed."""
    if not isinstance(key, str):
        return None
    if key in columns:
        return key
    wanted = _unquoted(key)
    if is_on(df.sparkSession, "spark.sql.caseSensitive", "false"):
        return wanted if wanted in columns else None
    alike = [name for name in columns if name.lower() == wanted.lower()]
    return alike[0] if len(alike) == 1 else None


def fields_of(df: DataFrame, names: Sequence[str]) -> list[StructField]:
    """Returns the fields of a key's columns; refuses columns that are missing or cannot be grouped by."""
    require(len(names) >= 1, "a key has at least 1 column")
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    require(not repeated, f"a key has each column once, not {', '.join(repeated)} twice")
    fields = {field.name: field for field in df.schema.fields}
    for name in names:
        require(name in fields, f"there is no column {name!r}; there are {', '.join(fields)}")
        reason = _ungroupable(fields[name].dataType)
        require(not reason, f"column {name!r} cannot be a key: {reason}")
    return [fields[name] for name in names]


def _ungroupable(kind: DataType) -> str:
    """Returns why a type cannot be a key; empty if it can."""
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
    """Returns SQL for the hash of a key, a bigint; NaN, -0.0 and NULL are treated as in grouping.

    Large expressions are built as text: as Columns, each part would be a call from Python to the JVM.
    """
    fields = fields_of(df, names)
    return f"xxhash64({', '.join(_without_maps(quoted(field.name), field.dataType, 'array_sort') for field in fields)})"


def hashed(df: DataFrame, names: Sequence[str]) -> Column:
    """Returns the hash of a key as a Column."""
    return F.expr(hashing(df, names))


def partition_of(df: DataFrame, names: Sequence[str], n_partitions: int) -> str:
    """Returns SQL for the partition of a row in a shuffle of plain Spark; NULL for keys that Spark cannot hash."""
    if any(_has_map(field.dataType) for field in fields_of(df, names)):
        return "CAST(NULL AS INT)"
    return f"pmod(hash({', '.join(map(quoted, names))}), {n_partitions})"


def ordered(df: DataFrame, names: Sequence[str]) -> list[Column]:
    """Returns the columns of a key in a form that Spark can sort.

    Maps are compared entry by entry, in order, as Spark's grouped Python functions do; in hashes and aggregates the
    order of a map's entries does not matter.
    """
    fields = fields_of(df, names)
    return [F.expr(_without_maps(quoted(field.name), field.dataType, "")) for field in fields]


def any_null(names: Sequence[str]) -> str:
    """Returns SQL for whether a column of the key is NULL."""
    return " OR ".join(f"{quoted(name)} IS NULL" for name in names)


def quoted(name: str) -> str:
    """Quotes the name of a column for SQL and for methods that take names, where it is cheaper than a Column."""
    return "`" + name.replace("`", "``") + "`"


def _unquoted(key: str) -> str:
    """Returns a name without the backticks around it, if it is a single name in backticks."""
    inner = key[1:-1].replace("``", "")
    is_quoted = len(key) > 2 and key[0] == key[-1] == "`" and "`" not in inner
    return key[1:-1].replace("``", "`") if is_quoted else key


def column(name: str) -> Column:
    """Returns the column of exactly this name, even if it has a dot."""
    return F.col(quoted(name))


def _without_maps(value: str, kind: DataType, sort: str, depth: int = 0) -> str:
    """Returns SQL for a value with its maps as arrays of entries, since Spark neither hashes nor sorts maps.

    sort: the SQL function that sorts the entries, or nothing.
    """
    item = f"item{depth}"
    if isinstance(kind, MapType):
        entry = f"struct({item}.key, {_without_maps(f'{item}.value', kind.valueType, sort, depth + 1)})"
        return f"{sort}(transform(map_entries({value}), {item} -> {entry}))"
    if isinstance(kind, ArrayType) and _has_map(kind):
        return f"transform({value}, {item} -> {_without_maps(item, kind.elementType, sort, depth + 1)})"
    if isinstance(kind, StructType) and _has_map(kind):
        named = [(f"{value}.{quoted(field.name)}", field.dataType) for field in kind.fields]
        return f"struct({', '.join(_without_maps(*field, sort, depth + 1) for field in named)})"
    return value


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType)


def unused(df: DataFrame, *wanted: str, besides: Iterable[str] = ()) -> list[str]:
    """Returns names for new columns that differ from all of the user's, ignoring case.

    wanted: the names, to which underscores are added where they are in use.
    besides: further names in use.
    """
    taken = {name.lower() for name in (*df.columns, *besides)}
    names = []
    for name in wanted:
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        names.append(name)
    return names
