"""Converts rows between Arrow and the data frames of pandas, polars and Spark.

1. pandas and polars are optional: a conversion imports the library when it is called, and says how to install it.
2. No value is rounded. In pandas, a column of integers or booleans that has NULL gets a nullable type instead of floats
   or objects. A date that Python lacks is a text (`evertide.rows.python_rows`).
3. In a pandas frame NaN means a missing value, so a NaN that is pushed from pandas becomes NULL.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from evertide.errors import InvalidInput
from evertide.extras import import_extra
from evertide.rows.python_rows import to_python_rows
from evertide.rows.utf8 import replace_invalid_utf8


def from_frame(given: Any, where: str) -> Any:
    """A data frame of any library, or an Arrow batch or reader, as an Arrow table; anything else unchanged."""
    if isinstance(given, pa.Table):
        return given
    if hasattr(given, "toArrow"):  # Spark
        return given.toArrow()
    if type(given).__module__.partition(".")[0] == "pandas":
        return _from_pandas(given, where)
    if hasattr(given, "collect_schema") and hasattr(given, "collect"):  # a lazy frame of polars
        given = given.collect()
    return pa.table(given) if hasattr(given, "__arrow_c_stream__") or isinstance(given, pa.RecordBatch) else given


def _from_pandas(frame: Any, where: str) -> Any:
    """A named index becomes columns; one without names only numbers the rows."""
    if not hasattr(frame, "columns"):
        raise InvalidInput(where=where, why=f"expected a DataFrame of pandas, not a {type(frame).__name__}")
    if all(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError):  # Arrow infers types, and the table's own may fit
        return frame.astype(object).where(frame.notna(), None).to_dict("records")


def to_pandas(rows: pa.Table) -> Any:
    pandas = import_extra("pandas", "pandas", "a data frame of pandas")
    rows = replace_invalid_utf8(rows)
    frame = pandas.DataFrame({at: _to_series(column, pandas) for at, column in enumerate(rows.columns)})
    frame.columns = rows.schema.names
    return frame


def _to_series(column: Any, pandas: Any) -> Any:
    kind = column.type
    if column.null_count and (kinds.is_integer(kind) or kinds.is_boolean(kind)):
        name = "boolean" if kinds.is_boolean(kind) else f"{'U' * kinds.is_unsigned_integer(kind)}Int{kind.bit_width}"
        return column.to_pandas(types_mapper={kind: pandas.api.types.pandas_dtype(name)}.get)
    try:
        if not kinds.is_nested(kind):  # pandas would make floats of integers beside NULL in a list
            return column.to_pandas()
    except (pa.ArrowException, OverflowError, ValueError):
        pass
    values = [row["value"] for row in to_python_rows(pa.table({"value": column}))]
    return pandas.Series(values, dtype=object)


def to_polars(rows: pa.Table) -> Any:
    polars = import_extra("polars", "polars", "a data frame of polars")
    return polars.from_arrow(make_names_unique(replace_invalid_utf8(rows)))


def make_names_unique(rows: pa.Table) -> pa.Table:
    """A query may return columns with equal names, which JSON and polars lack: the second `a` becomes `a_2`."""
    names: dict[str, None] = {}
    counts: dict[str, int] = {}
    for name in rows.schema.names:
        unique = name
        while unique in names:
            counts[name] = counts.get(name, 1) + 1
            unique = f"{name}_{counts[name]}"
        names[unique] = None
    return rows.rename_columns([*names])
