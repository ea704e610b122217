"""Convert a push to rows of a table: all of it, or nothing.

`convert_push` accepts a list of mappings, Arrow data or a data frame (`evertide.rows.frames`). It returns the
table's columns and `__op`. A value that does not fit refuses the whole push; the error names the table, row and column,
and what was expected. `evertide.sources.values.values` and `evertide.sources.values.fit` define what fits.

1. Deletes are applied before rows, so that one push can delete the old row and add the new one.
2. A delete is a mapping with the key's columns, or the key itself if it is a single column; in a table without a key it
   is a whole row. It may also be Arrow data.
3. Column names are case-insensitive, as in SQL. An unknown column is refused.
4. Arrow columns of the right type are used unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.rows.frames import from_frame
from evertide.sources.contract import DELETE, UPSERT, Rows, TableDeclaration
from evertide.sources.values.columns import ConvertedColumn, from_arrow, from_values
from evertide.sources.values.fit import FittedRows, fit, make_rows_schema
from evertide.sources.values.values import read_default, show_value


def convert_push(declaration: TableDeclaration, rows: Any = (), deletes: Any = ()) -> Rows:
    """Raises `InvalidInput` if a row does not fit."""
    converted = [_convert(declaration, deletes, DELETE), _convert(declaration, rows, UPSERT)]
    tables = [table for table in converted if table.num_rows]
    return Rows(declaration.name, pa.concat_tables(tables) if tables else make_rows_schema(declaration).empty_table())


def _convert(declaration: TableDeclaration, user_rows: Any, op: int) -> pa.Table:
    what = "delete" if op == DELETE else "row"
    user_rows = from_frame(user_rows, f"table {declaration.name!r}")
    if isinstance(user_rows, pa.Table):
        columns, count = _arrow_columns(declaration, user_rows), user_rows.num_rows
    else:
        mappings = _mappings(declaration, user_rows, what, is_delete=op == DELETE)
        columns, count = _columns(declaration, mappings, what), len(mappings)
    fitted = fit(declaration, columns, np.full(count, op, np.int8))
    if fitted.reasons:
        raise _refusal(declaration, fitted, what)
    return fitted.rows


def _refusal(declaration: TableDeclaration, fitted: FittedRows, what: str) -> InvalidInput:
    row = min(fitted.reasons)
    reason, others = fitted.reasons[row], len(fitted.reasons) - 1
    more = f" ({others} other rows of {fitted.rows.num_rows} do not fit either)" if others else ""
    where = f"table {declaration.name!r}, {what} {row + 1}"
    return InvalidInput(
        where=f"{where}, column {reason.column!r}" if reason.column else where, why=f"{reason.why}{more}"
    )


def _arrow_columns(declaration: TableDeclaration, user_table: pa.Table) -> dict[str, ConvertedColumn]:
    names = _match_names(declaration, user_table.schema.names, f"table {declaration.name!r}")
    kinds = declaration.schema
    return {
        name: from_arrow(column, kinds.field(name).type) for name, column in zip(names, user_table.columns, strict=True)
    }


def _match_names(declaration: TableDeclaration, user_names: Sequence[Any], where: str) -> list[str]:
    """The given names as the table spells them."""
    known = {name.lower(): name for name in declaration.schema.names}
    matched: list[str] = []
    for name in user_names:
        own = known.get(name.lower()) if isinstance(name, str) else None
        if own is None:
            listed = ", ".join(map(repr, declaration.schema.names))
            raise InvalidInput(where=where, why=f"the table has no column {show_value(name)}; it has {listed}")
        if own in matched:
            raise InvalidInput(where=where, why=f"column {own!r} is given twice")
        matched.append(own)
    return matched


def _mappings(declaration: TableDeclaration, user_rows: Any, what: str, *, is_delete: bool) -> list[Mapping[str, Any]]:
    where = f"table {declaration.name!r}"
    if isinstance(user_rows, Mapping | str | bytes) or not isinstance(user_rows, Iterable):
        why = (
            f"{show_value(user_rows)} is not a list of {what}s; expected a list of mappings, Arrow data or a data frame"
        )
        raise InvalidInput(where=where, why=why)
    rows = list(user_rows)
    is_bare = is_delete and len(declaration.key) == 1
    for at, row in enumerate(rows):
        if isinstance(row, Mapping):
            continue
        if not is_bare:
            columns = ", ".join(
                map(repr, declaration.key if is_delete and declaration.key else declaration.schema.names)
            )
            why = f"{show_value(row)} is not a mapping; expected a mapping with the columns {columns}"
            raise InvalidInput(where=f"{where}, {what} {at + 1}", why=why)
        rows[at] = {declaration.key[0]: row}
    return rows


def _columns(declaration: TableDeclaration, rows: list[Mapping[str, Any]], what: str) -> dict[str, ConvertedColumn]:
    rows = _rename_columns(declaration, rows, what)
    given = set().union(*rows)
    return {
        field.name: from_values(_values(declaration, rows, field.name), field.type)
        for field in declaration.schema
        if field.name in given
    }


def _rename_columns(declaration: TableDeclaration, rows: list[Mapping[str, Any]], what: str) -> list[Mapping[str, Any]]:
    """Rows that spell all names as the table does, as nearly all do, are returned unchanged."""
    own = frozenset(declaration.schema.names)
    if own.issuperset(set().union(*rows)):
        return rows
    renamed: list[Mapping[str, Any]] = []
    for at, row in enumerate(rows, 1):
        names = _match_names(declaration, list(row), f"table {declaration.name!r}, {what} {at}")
        renamed.append(dict(zip(names, row.values(), strict=True)))
    return renamed


def _values(declaration: TableDeclaration, rows: list[Mapping[str, Any]], name: str) -> list[Any]:
    """The values of a column, with its default in rows that omit it."""
    default = read_default(declaration, name)
    return [row.get(name, default) for row in rows]
