"""Changes of one table as rows to be staged: texts as PostgreSQL wrote them, until there are enough of them.

A `Buffer` is what waits in memory for one table; `staged_table` converts it, all values of a column in one go. A row
with a value that does not fit is a fault in its place (`evertide.sources.staged`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from evertide.sources.contract import DELETE, SAME, TRUNCATE, UPSERT
from evertide.sources.fit import Fitted, Ops, Reason, faulty_rows, rows_schema
from evertide.sources.kinds import sql_name
from evertide.sources.postgres.catalog import RemoteColumn, Target
from evertide.sources.postgres.messages import UNCHANGED, Change, Value
from evertide.sources.postgres.types import converted, texts_of
from evertide.sources.staged import FAULT, fault_text

__all__ = ["XID", "Buffer", "Layout", "staged_table"]

XID = "__xid"
"""The subtransaction that a row belongs to, in fragments of streamed transactions: it may be taken back."""

_ROW_BYTES = 64
"""About what a row costs beside its values."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a relation, as the stream describes it, has the columns of a table."""

    target: Target
    places: tuple[int, ...]
    """By declared column; -1: the relation does not have it yet."""


class Buffer:
    def __init__(self, target: Target) -> None:
        self.target = target
        self.bytes = 0
        self._columns: list[list[bytes | None]] = [[] for _ in target.columns]
        self._ops: list[int] = []
        self._same: dict[int, str] = {}
        self._xids: list[int] = []
        self._appends: list[Callable[[Any], None]] = [column.append for column in self._columns]
        self._key = [at for at, column in enumerate(target.columns) if column.is_key]

    def __len__(self) -> int:
        return len(self._ops)

    @property
    def xids(self) -> frozenset[int]:
        return frozenset(self._xids)

    def cut(self, length: int) -> None:
        """Forget all but the first rows."""
        for values in (*self._columns, self._ops, self._xids):
            del values[length:]  # type: ignore[attr-defined]
        self._same = {row: mark for row, mark in self._same.items() if row < length}

    def truncate(self, xid: int) -> None:
        self._add(TRUNCATE, [None] * len(self._columns), xid)

    def upsert(self, layout: Layout, values: Sequence[Value], size: int, xid: int) -> None:
        """A row of which nothing is left out."""
        for append, place in zip(self._appends, layout.places, strict=True):
            append(None if place < 0 else values[place])
        self._ops.append(UPSERT)
        self._xids.append(xid)
        self.bytes += _ROW_BYTES + size

    def change(self, layout: Layout, change: Change) -> bool:
        """False if it does not say which row it means: the replica identity is not what it has to be."""
        old = None if change.old is None else [_at(change.old, place) for place in layout.places]
        is_old_enough = old is not None and (bool(self._key) or change.is_old_whole)
        if change.new is None:
            if old is None or not is_old_enough:
                return False
            self._delete(old, change.xid)
            return True
        new = [_at(change.new, place) for place in layout.places]
        if old is not None and (change.is_old_whole or self._key):
            filled = range(len(new)) if change.is_old_whole else self._key
            for at in filled:
                new[at] = old[at] if new[at] is UNCHANGED else new[at]
        left = [at for at, value in enumerate(new) if value is UNCHANGED]
        if any(at in self._key for at in left) or (left and not self._key):
            return False
        is_moved = False
        if old is not None and is_old_enough:
            is_moved = not self._key or any(old[at] != new[at] for at in self._key)
            if is_moved:
                self._delete(old, change.xid)
        if left:
            names = [self.target.columns[at].name for at in left]
            self._same[len(self)] = msgspec.json.encode({"moved": names} if is_moved else names).decode()
        self._add(UPSERT, new, change.xid)
        return True

    def _delete(self, old: Sequence[Value], xid: int) -> None:
        is_told = [not self._key or at in self._key for at in range(len(old))]
        self._add(DELETE, [value if told else None for value, told in zip(old, is_told, strict=True)], xid)

    def _add(self, op: int, values: Sequence[Value], xid: int) -> None:
        size = _ROW_BYTES
        for column, value in zip(self._columns, values, strict=True):
            if isinstance(value, bytes):
                column.append(value)
                size += len(value)
            else:
                column.append(None)
        self._ops.append(op)
        self._xids.append(xid)
        self.bytes += size

    def table(self, without: Collection[int]) -> pa.Table:
        """All rows but those of some subtransactions."""
        texts, bad = zip(*(texts_of(column) for column in self._columns), strict=True)
        made = staged_table(
            self.target, texts, np.array(self._ops, np.int8), self._same, dict(enumerate(bad)), "the stream"
        )
        if any(self._xids):
            made = made.append_column(XID, pa.array(self._xids, pa.int64()))
        if without:
            made = made.filter(pa.array([xid not in without for xid in self._xids]))
        return made


def _at(values: Sequence[Value], place: int) -> Value:
    return None if place < 0 else values[place]


def staged_table(  # noqa: PLR0917
    target: Target,
    texts: Sequence[Any],
    ops: Ops,
    same: Mapping[int, str],
    bad: Mapping[int, Mapping[int, str]],
    place: str,
) -> pa.Table:
    """Of one array of strings per column. `bad` says by column and row what could not even be read as text."""
    declaration = target.declaration
    reasons: dict[int, Reason] = {}
    arrays = []
    for at, column in enumerate(target.columns):
        made = converted(texts[at], column.type, column.kind)
        arrays.append(made.array)
        counts = _counts(target, column, ops)
        for row, why in {**made.misfits, **bad.get(at, {})}.items():
            if counts[row]:
                reasons.setdefault(row, Reason(why, column.name))
        if not column.is_nullable and made.array.null_count:
            _check_nulls(column, np.asarray(made.array.is_null()) & counts, same, reasons)
    for row, mark in same.items():
        if mark.startswith("{") and row - 1 in reasons:
            reasons.setdefault(row, Reason("values are as they were, but the key before could not be read"))
    rows = pa.Table.from_arrays([*arrays, pa.array(ops)], schema=rows_schema(declaration))
    if same:
        rows = rows.append_column(SAME, pa.array([same.get(row) for row in range(len(ops))], pa.string()))
    return _with_faults(target, rows, reasons, texts, place) if reasons else rows


def _counts(target: Target, column: RemoteColumn, ops: Ops) -> Any:
    """The rows in which a column says something: a delete says the key only."""
    if column.is_key or not target.declaration.key:
        return ops != TRUNCATE
    return ops == UPSERT


def _check_nulls(column: RemoteColumn, missing: Any, same: Mapping[int, str], reasons: dict[int, Reason]) -> None:
    what = "part of the key" if column.is_key else f"{sql_name(column.kind)} NOT NULL"
    for row in np.flatnonzero(missing).tolist():
        mark = msgspec.json.decode(same[row]) if row in same else []
        if column.name not in (mark["moved"] if isinstance(mark, dict) else mark):
            reasons.setdefault(row, Reason(f"NULL, but it is {what}", column.name))


def _with_faults(
    target: Target, rows: pa.Table, reasons: dict[int, Reason], texts: Sequence[Any], place: str
) -> pa.Table:
    def raw(row: int) -> str:
        said = {column.remote: texts[at][row].as_py() for at, column in enumerate(target.columns)}
        return msgspec.json.encode(said).decode()

    where = f"{target.name}, {place}"
    plain = rows.drop_columns([SAME]) if SAME in rows.schema.names else rows
    found = faulty_rows(target.declaration, Fitted(plain, reasons), where, lambda row: row + 1, raw)
    said: list[str | None] = [None] * rows.num_rows
    for row, fault in zip(sorted(reasons), found.faults, strict=True):
        said[row] = fault_text(fault.place, fault.line, fault.reason, fault.raw, fault.key)
    return rows.append_column(FAULT, pa.array(said, pa.string()))
