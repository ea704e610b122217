"""The value of a column that a row does not mention: the constant after DEFAULT, or NULL."""

from __future__ import annotations

import re
from typing import Any

from evertide.errors import InvalidInput
from evertide.sources.contract import TableDeclaration
from evertide.sources.values.values import Misfit, parsed

__all__ = ["default_of"]

_QUOTED = re.compile(r"(?:(?:DATE|TIMESTAMP|TIMESTAMP_NTZ|TIME)\s*)?'((?:[^'\\]|'')*)'", re.IGNORECASE)
_BARE = re.compile(r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?|true|false", re.IGNORECASE)


def default_of(declaration: TableDeclaration, column: str) -> Any:
    """Only constants: an expression would need a query to run before its row is there."""
    sql = declaration.defaults.get(column, "").strip()
    if not sql or sql.upper() == "NULL":
        return None
    quoted = _QUOTED.fullmatch(sql)
    text = quoted[1].replace("''", "'") if quoted else sql if _BARE.fullmatch(sql) else None
    where = f"{declaration.where}, table {declaration.name!r}, column {column!r}"
    if text is None:
        raise InvalidInput(
            where=where, why=f"DEFAULT {sql}: only constants can be filled in; give the value in each row"
        )
    try:
        return parsed(text, declaration.schema.field(column).type)
    except Misfit as error:
        raise InvalidInput(where=where, why=f"DEFAULT {sql}: {error}") from error
