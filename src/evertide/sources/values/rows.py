"""What a user pushes, as rows of a table: all of it, or nothing.

`rows_of` takes a list of mappings, or an Arrow table or batch, and gives the table's columns and `__op`. The first
value that does not fit refuses the whole push, with its table, row, column, and what was expected. What fits is told
by `evertide.sources.values.values` and `evertide.sources.values.fit`.

1. Deletes come before rows: who replaces a row by hand deletes the old one and gives the new one in one push.
2. A delete is a mapping with the key's columns, or the key itself if it is a single column; without a key it is a
   whole row. It may come as Arrow, too.
3. Names of columns are found whatever their case, as in SQL. A column that nobody knows is refused.
4. Arrow columns of the right type are taken as they are, without a look at each value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from evertide.errors import InvalidInput
from evertide.sources.contract import DELETE, UPSERT, Rows, TableDeclaration
from evertide.sources.values.columns import Column, from_arrow, from_values
from evertide.sources.values.defaults import default_of
from evertide.sources.values.fit import Fitted, fit, rows_schema
from evertide.sources.values.values import shown

__all__ = ["rows_of"]


def rows_of(declaration: TableDeclaration, rows: Any = (), deletes: Any = ()) -> Rows:
    """`InvalidInput` if any of it does not fit."""
    taken = [_taken(declaration, deletes, DELETE), _taken(declaration, rows, UPSERT)]
    tables = [table for table in taken if table.num_rows]
    return Rows(declaration.name, pa.concat_tables(tables) if tables else rows_schema(declaration).empty_table())


def _taken(declaration: TableDeclaration, given: Any, op: int) -> pa.Table:
    what = "delete" if op == DELETE else "row"
    if isinstance(given, pa.Table | pa.RecordBatch):
        columns, count = _arrow_columns(declaration, given), given.num_rows
    else:
        mappings = _mappings(declaration, given, what, is_delete=op == DELETE)
        columns, count = _columns(declaration, mappings, what), len(mappings)
    fitted = fit(declaration, columns, np.full(count, op, np.int8))
    if fitted.reasons:
        raise _refusal(declaration, fitted, what)
    return fitted.rows


def _refusal(declaration: TableDeclaration, fitted: Fitted, what: str) -> InvalidInput:
    row = min(fitted.reasons)
    reason, others = fitted.reasons[row], len(fitted.reasons) - 1
    more = f" ({others} more of {fitted.rows.num_rows} do not fit either)" if others else ""
    where = f"table {declaration.name!r}, {what} {row + 1}"
    return InvalidInput(
        where=f"{where}, column {reason.column!r}" if reason.column else where, why=f"{reason.why}{more}"
    )


def _arrow_columns(declaration: TableDeclaration, given: pa.Table | pa.RecordBatch) -> dict[str, Column]:
    names = _names(declaration, given.schema.names, f"table {declaration.name!r}")
    kinds = declaration.schema
    return {name: from_arrow(column, kinds.field(name).type) for name, column in zip(names, given.columns, strict=True)}


def _names(declaration: TableDeclaration, given: Sequence[Any], where: str) -> list[str]:
    """The table's own names for those given."""
    known = {name.lower(): name for name in declaration.schema.names}
    found: list[str] = []
    for name in given:
        own = known.get(name.lower()) if isinstance(name, str) else None
        if own is None:
            listed = ", ".join(map(repr, declaration.schema.names))
            raise InvalidInput(where=where, why=f"{shown(name)} is no column of the table; its columns are {listed}")
        if own in found:
            raise InvalidInput(where=where, why=f"the column {own!r} is given twice")
        found.append(own)
    return found


def _mappings(declaration: TableDeclaration, given: Any, what: str, *, is_delete: bool) -> list[Mapping[str, Any]]:
    where = f"table {declaration.name!r}"
    if isinstance(given, Mapping | str | bytes) or not isinstance(given, Iterable):
        why = f"{shown(given)} is no list of {what}s: expected a list of mappings, or an Arrow table"
        raise InvalidInput(where=where, why=why)
    rows = list(given)
    is_bare = is_delete and len(declaration.key) == 1
    for at, row in enumerate(rows):
        if isinstance(row, Mapping):
            continue
        if not is_bare:
            columns = ", ".join(
                map(repr, declaration.key if is_delete and declaration.key else declaration.schema.names)
            )
            why = f"{shown(row)} is no mapping: expected one with the columns {columns}"
            raise InvalidInput(where=f"{where}, {what} {at + 1}", why=why)
        rows[at] = {declaration.key[0]: row}
    return rows


def _columns(declaration: TableDeclaration, rows: list[Mapping[str, Any]], what: str) -> dict[str, Column]:
    rows = _renamed(declaration, rows, what)
    given = set().union(*rows)
    return {
        field.name: from_values(_values(declaration, rows, field.name), field.type)
        for field in declaration.schema
        if field.name in given
    }


def _renamed(declaration: TableDeclaration, rows: list[Mapping[str, Any]], what: str) -> list[Mapping[str, Any]]:
    """Rows whose names are the table's own are left alone: that is nearly all of them."""
    own = frozenset(declaration.schema.names)
    if own.issuperset(set().union(*rows)):
        return rows
    made: list[Mapping[str, Any]] = []
    for at, row in enumerate(rows, 1):
        names = _names(declaration, list(row), f"table {declaration.name!r}, {what} {at}")
        made.append(dict(zip(names, row.values(), strict=True)))
    return made


def _values(declaration: TableDeclaration, rows: list[Mapping[str, Any]], name: str) -> list[Any]:
    """A column that only some rows lack is its default there."""
    default = default_of(declaration, name)
    return [row.get(name, default) for row in rows]
