"""The value of a column that a row omits: the constant after DEFAULT, or NULL."""

from __future__ import annotations

import re
from typing import Any

from evertide.errors import InvalidInput
from evertide.sources.contract import TableDeclaration
from evertide.sources.values.values import Misfit, parse_value

__all__ = ["read_default"]

_QUOTED = re.compile(r"(?:(?:DATE|TIMESTAMP|TIMESTAMP_NTZ|TIME)\s*)?'((?:[^'\\]|'')*)'", re.IGNORECASE)
_BARE = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?|true|false", re.IGNORECASE)


def read_default(declaration: TableDeclaration, column: str) -> Any:
    """Parse the column's DEFAULT, which must be a constant: an expression would need Spark for every row."""
    sql = declaration.defaults.get(column, "").strip()
    if not sql or sql.upper() == "NULL":
        return None
    quoted = _QUOTED.fullmatch(sql)
    text = quoted[1].replace("''", "'") if quoted else sql if _BARE.fullmatch(sql) else None
    where = f"{declaration.place}, column {column!r}"
    if text is None:
        why = f"DEFAULT {sql} is not a constant; use a constant, or give the value in each row"
        raise InvalidInput(where=where, why=why)
    try:
        return parse_value(text, declaration.schema.field(column).type)
    except Misfit as error:
        raise InvalidInput(where=where, why=f"DEFAULT {sql}: {error}") from error
