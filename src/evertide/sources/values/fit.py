"""Assemble converted columns into rows of a table, and report the rows that do not fit.

`fit` enforces NOT NULL and the key, for pushed rows and for rows of every source:

1. A NOT NULL column and a column of the key must have a value.
2. A delete needs only the key; its other columns are ignored. In a table without a key, a delete is a whole row.
3. A missing column takes its default, or NULL.
4. A CHAR or VARCHAR has its declared length (`evertide.rows.char_types`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from evertide.rows.char_types import fit_char_types, read_declared_type
from evertide.sources.contract import DELETE, OP, SAME, UPSERT, Fault, Rows, TableDeclaration
from evertide.sources.values.columns import ConvertedColumn, from_values, make_null_column
from evertide.sources.values.kinds import sql_name
from evertide.sources.values.values import read_default

Ops = npt.NDArray[np.int8]

_RAW_MAX = 200


@dataclass(frozen=True, slots=True)
class Reason:
    why: str
    column: str = ""

    def __str__(self) -> str:
        return f"column {self.column!r}: {self.why}" if self.column else self.why


@dataclass(frozen=True, slots=True)
class KeptColumns:
    """The columns whose values an upsert keeps (`evertide.sources.contract.SAME`)."""

    columns: tuple[str, ...]
    is_moved: bool = False
    """The values are those of the key that the previous row deletes."""

    @property
    def encoded(self) -> str:
        names = list(self.columns)
        return msgspec.json.encode({"moved": names} if self.is_moved else names).decode()


@dataclass(frozen=True, slots=True)
class FittedRows:
    """All rows. `reasons` has the rows that do not fit, by their index."""

    rows: pa.Table
    reasons: dict[int, Reason]


def make_rows_schema(declaration: TableDeclaration) -> pa.Schema:
    """The table's columns, all nullable, and `__op`."""
    fields = [field.remove_metadata().with_nullable(True) for field in declaration.schema]  # noqa: FBT003 - Arrow's own way
    return pa.schema([*fields, pa.field(OP, pa.int8())])


def make_upserts(count: int) -> Ops:
    return np.full(count, UPSERT, np.int8)


def fit(
    declaration: TableDeclaration,
    columns: Mapping[str, ConvertedColumn],
    ops: Ops,
    reasons: Mapping[int, Reason] | None = None,
    same: Mapping[int, KeptColumns] | None = None,
) -> FittedRows:
    """`reasons` has the rows that are already known not to fit. A row keeps its first reason."""
    found, kept = dict(reasons or {}), same or {}
    is_upsert = ops != DELETE
    made = []
    for field in declaration.schema:
        column = columns.get(field.name) or _make_default_column(declaration, field, ops)
        column = fit_declared_type(field, column)
        made.append(column.array)
        is_key = field.name in declaration.key
        counts = np.ones(len(ops), np.bool_) if is_key or not declaration.key else is_upsert
        for row, why in column.misfits.items():
            if counts[row]:
                found.setdefault(row, Reason(why, field.name))
        if (is_key or not field.nullable) and column.array.null_count:
            why = f"NULL is not allowed: the column is {'in the key' if is_key else f'{sql_name(field.type)} NOT NULL'}"
            for row in np.flatnonzero(np.asarray(column.array.is_null()) & counts).tolist():
                if row not in kept or field.name not in kept[row].columns:
                    found.setdefault(row, Reason(why, field.name))
    for row, one in kept.items():
        if one.is_moved and row - 1 in found:
            why = "the update changes the key and omits unchanged columns, but the previous key cannot be read"
            found.setdefault(row, Reason(why))
    table = pa.Table.from_arrays([*made, pa.array(ops)], schema=make_rows_schema(declaration))
    if kept:
        marks = [kept[row].encoded if row in kept else None for row in range(len(ops))]
        table = table.append_column(SAME, pa.array(marks, pa.string()))
    return FittedRows(table, found)


def fit_declared_type(field: Any, column: ConvertedColumn) -> ConvertedColumn:
    """Pad, cut or refuse the texts of a CHAR or VARCHAR column."""
    declared = read_declared_type(field)
    if declared is None:
        return column
    array, misfits = fit_char_types(column.array, declared)
    return ConvertedColumn(array, {**misfits, **column.misfits})


def _make_default_column(declaration: TableDeclaration, field: Any, ops: Ops) -> ConvertedColumn:
    value = read_default(declaration, field.name)
    if value is None:
        return make_null_column(len(ops), field.type)
    values = [None if declaration.key and op == DELETE else value for op in ops.tolist()]
    return from_values(values, field.type)


def split_faults(
    declaration: TableDeclaration,
    fitted: FittedRows,
    place: str,
    line_of: Callable[[int], int],
    raw_of: Callable[[int], str],
) -> Rows:
    """Return the rows that fit, and a `Fault` for each of the others, in order."""
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
            raw=_shorten(raw_of(row)),
            key=extract_key(fitted.rows, declaration.key, row),
            after=row - before,
        )
        for before, row in enumerate(bad)
    ]
    return Rows(declaration.name, fitted.rows.filter(pa.array(is_good)), faults)


def _shorten(raw: str) -> str:
    return raw if len(raw) <= _RAW_MAX else f"{raw[:_RAW_MAX]}..."


def extract_key(rows: pa.Table, columns: Sequence[str], row: int) -> pa.Table | None:
    """The key of a row, for a `Fault`; None if one of its columns is NULL or could not be read."""
    if not columns:
        return None
    key = rows.select(list(columns)).take(pa.array([row]))  # a slice would keep, and pickle, all rows
    return None if any(column.null_count for column in key.columns) else key
