"""Columns put together to rows of a table; what a row lacks to be one is told by row and column.

`fit` is where NOT NULL and the key are enforced, for pushed rows and for those of files alike:

1. A NOT NULL column and a column of the key must have a value.
2. A delete needs the key only: the other columns do not count, and do not have to fit. Without a key it is a whole row.
3. A column that is not given is its default, or NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evertide.sources.contract import DELETE, OP, SAME, UPSERT, Fault, Rows, TableDeclaration
from evertide.sources.values.columns import Column, from_values, nothing
from evertide.sources.values.defaults import default_of
from evertide.sources.values.kinds import sql_name

__all__ = ["Fitted", "Ops", "Reason", "Same", "faulty_rows", "fit", "key_of", "rows_schema", "upserts"]

Ops = npt.NDArray[np.int8]

_RAW_MAX = 200


@dataclass(frozen=True, slots=True)
class Reason:
    why: str
    column: str = ""

    def __str__(self) -> str:
        return f"column {self.column!r}: {self.why}" if self.column else self.why


@dataclass(frozen=True, slots=True)
class Same:
    """What an upsert leaves as it was (`evertide.sources.contract.SAME`)."""

    columns: tuple[str, ...]
    is_moved: bool = False
    """Under the key that the row just before it deletes."""

    @property
    def mark(self) -> str:
        names = list(self.columns)
        return msgspec.json.encode({"moved": names} if self.is_moved else names).decode()


@dataclass(frozen=True, slots=True)
class Fitted:
    """All rows, the bad ones too: they are in `reasons`, with their number from 0 on."""

    rows: pa.Table
    reasons: dict[int, Reason]


def rows_schema(declaration: TableDeclaration) -> pa.Schema:
    """The table's columns, all nullable, and `__op`."""
    fields = [field.with_nullable(True) for field in declaration.schema]  # noqa: FBT003 - Arrow's own way
    return pa.schema([*fields, pa.field(OP, pa.int8())])


def upserts(count: int) -> Ops:
    return np.full(count, UPSERT, np.int8)


def fit(
    declaration: TableDeclaration,
    columns: Mapping[str, Column],
    ops: Ops,
    reasons: Mapping[int, Reason] | None = None,
    same: Mapping[int, Same] | None = None,
) -> Fitted:
    """`reasons` are those of rows that are bad already. Of several reasons, a row has the first."""
    found, left = dict(reasons or {}), same or {}
    is_upsert = ops != DELETE
    made = []
    for field in declaration.schema:
        column = columns.get(field.name) or _default(declaration, field, ops)
        made.append(column.array)
        is_key = field.name in declaration.key
        counts = np.ones(len(ops), np.bool_) if is_key or not declaration.key else is_upsert
        for row, why in column.misfits.items():
            if counts[row]:
                found.setdefault(row, Reason(why, field.name))
        if (is_key or not field.nullable) and column.array.null_count:
            why = f"NULL, but it is {'part of the key' if is_key else f'{sql_name(field.type)} NOT NULL'}"
            for row in np.flatnonzero(np.asarray(column.array.is_null()) & counts).tolist():
                if row not in left or field.name not in left[row].columns:
                    found.setdefault(row, Reason(why, field.name))
    for row, one in left.items():
        if one.is_moved and row - 1 in found:
            found.setdefault(row, Reason("values are as they were, but the key before could not be read"))
    table = pa.Table.from_arrays([*made, pa.array(ops)], schema=rows_schema(declaration))
    if left:
        marks = [left[row].mark if row in left else None for row in range(len(ops))]
        table = table.append_column(SAME, pa.array(marks, pa.string()))
    return Fitted(table, found)


def _default(declaration: TableDeclaration, field: Any, ops: Ops) -> Column:
    value = default_of(declaration, field.name)
    if value is None:
        return nothing(len(ops), field.type)
    values = [None if declaration.key and op == DELETE else value for op in ops.tolist()]
    return from_values(values, field.type)


def faulty_rows(
    declaration: TableDeclaration,
    fitted: Fitted,
    place: str,
    line_of: Callable[[int], int],
    raw_of: Callable[[int], str],
) -> Rows:
    """The good rows, and a `Fault` for each of the others, in order."""
    if not fitted.reasons:
        return Rows(declaration.name, fitted.rows)
    bad = sorted(fitted.reasons)
    is_good = np.ones(fitted.rows.num_rows, np.bool_)
    is_good[bad] = False
    faults = [
        Fault(
            table=declaration.name,
            place=place,
            line=line_of(row),
            reason=str(fitted.reasons[row]),
            raw=_short(raw_of(row)),
            key=key_of(fitted.rows, declaration.key, row),
            after=row - before,
        )
        for before, row in enumerate(bad)
    ]
    return Rows(declaration.name, fitted.rows.filter(pa.array(is_good)), faults)


def _short(raw: str) -> str:
    return raw if len(raw) <= _RAW_MAX else f"{raw[:_RAW_MAX]}..."


def key_of(rows: pa.Table, columns: Sequence[str], row: int) -> pa.Table | None:
    """The key of a row, for a `Fault`; None if a column of it is NULL, which one that could not be read is too."""
    if not columns:
        return None
    key = rows.select(list(columns)).take(pa.array([row]))  # a slice would keep, and pickle, all rows
    return None if any(column.null_count for column in key.columns) else key
