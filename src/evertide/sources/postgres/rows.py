"""Collect the changes of one table as texts, and convert them to rows to stage.

A `Buffer` holds the changes of one table in memory; `make_staged_table` converts it, column by column. A row with a
value that does not fit is a fault in its place (`evertide.sources.staged`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from evertide.rows.columns import Longs
from evertide.sources.contract import DELETE, SAME, TRUNCATE, UPSERT
from evertide.sources.postgres.batches import NewRows
from evertide.sources.postgres.catalog import RemoteColumn, UpstreamTable
from evertide.sources.postgres.messages import UNCHANGED, RelationMessage, RowChange, Value
from evertide.sources.postgres.server import READ_AGAIN, SourceAddress
from evertide.sources.postgres.types import convert_texts, decode_texts
from evertide.sources.staged import FAULT, encode_fault
from evertide.sources.values.fit import (
    FittedRows,
    KeptColumns,
    Ops,
    Reason,
    fit_declared_type,
    make_rows_schema,
    make_upserts,
    split_faults,
)
from evertide.sources.values.kinds import sql_name

XID = "__xid"
"""The subtransaction of a row in fragments of streamed transactions, as it may be rolled back."""

_ROW_BYTES = 64
"""Estimated bytes of a row in addition to its values."""


@dataclass(frozen=True, slots=True)
class RelationLayout:
    """The places of a table's columns in a relation of the stream."""

    upstream: UpstreamTable
    places: tuple[int, ...]
    """By declared column; -1 if the relation does not have the column yet."""


def match_layout(
    address: SourceAddress, relation: RelationMessage, upstream: UpstreamTable, known: Mapping[str, str] | None
) -> tuple[RelationLayout, dict[str, str]]:
    """Return the layout, and the columns' current types. `known` has the previous types; None if unknown."""
    there = {column.name: (place, column) for place, column in enumerate(relation.columns)}
    where = f"table {upstream.name}"
    places, found = [], dict(known or {})
    for column in upstream.columns:
        if column.remote not in there:
            if known is not None and (column.remote in known or not column.is_nullable):
                why = f"{where}: column {column.remote!r} was dropped or renamed upstream"
                raise address.failure(f"{why}; undo that, or {READ_AGAIN}")
            places.append(-1)  # added upstream later: no value yet
            continue
        place, given = there[column.remote]
        signature = f"{given.type_oid}:{given.type_modifier}"
        if (known or {}).get(column.remote, column.signature) != signature:
            why = f"{where}: the type of column {column.remote!r} was changed upstream"
            raise address.failure(f"{why}; undo that, or {READ_AGAIN}")
        if column.is_key and not (given.is_identity or relation.identity == "f"):
            why = f"{where}: the replica identity lacks the key column {column.remote!r}"
            raise address.failure(f"{why}; run ALTER TABLE {upstream.name} REPLICA IDENTITY FULL")
        places.append(place)
        found[column.remote] = signature
    if not upstream.declaration.key and relation.identity != "f":
        why = f"{where} is declared without a key, and its replica identity is not full"
        raise address.failure(f"{why}; run ALTER TABLE {upstream.name} REPLICA IDENTITY FULL")
    return RelationLayout(upstream, tuple(places)), found


@dataclass(slots=True)
class _ArraySlice:
    """Rows [first, last) of shared arrays."""

    origin: tuple[RelationLayout, NewRows] | None
    """None for rows that were added one by one."""
    columns: tuple[Any, ...]
    """Binary arrays by declared column; None if the relation does not have the column yet."""
    ops: Ops | None
    """None if all rows are upserts."""
    xids: Longs
    first: int
    last: int


class Buffer:
    """The changes of one table in order, added one by one or many at once (`NewRows`)."""

    def __init__(self, upstream: UpstreamTable) -> None:
        self.upstream = upstream
        self.bytes = 0
        self._slices: list[_ArraySlice] = []
        self._slices_rows = 0
        self._columns: list[list[bytes | None]] = [[] for _ in upstream.columns]
        self._ops: list[int] = []
        self._same: dict[int, str] = {}
        self._xids: list[int] = []
        self._appends: list[Callable[[Any], None]] = [column.append for column in self._columns]
        self._key = [at for at, column in enumerate(upstream.columns) if column.is_key]

    def __len__(self) -> int:
        return self._slices_rows + len(self._ops)

    @property
    def xids(self) -> frozenset[int]:
        self._close()
        return frozenset(np.unique(self._all_xids()).tolist())

    def cut(self, length: int) -> None:
        """Keep only the first `length` rows."""
        self._close()
        while self._slices_rows > length:
            array_slice = self._slices[-1]
            surplus = min(self._slices_rows - length, array_slice.last - array_slice.first)
            array_slice.last -= surplus
            self._slices_rows -= surplus
            if array_slice.first == array_slice.last:
                self._slices.pop()
        self._same = {row: mark for row, mark in self._same.items() if row < length}

    def add_truncate(self, xid: int) -> None:
        self._add(TRUNCATE, [None] * len(self._columns), xid)

    def add_row(self, layout: RelationLayout, values: Sequence[Value], size: int, xid: int) -> None:
        """Add a row with all its values."""
        for append, place in zip(self._appends, layout.places, strict=True):
            append(None if place < 0 else values[place])
        self._ops.append(UPSERT)
        self._xids.append(xid)
        self.bytes += _ROW_BYTES + size

    def add_rows(self, layout: RelationLayout, rows: NewRows, first: int, last: int) -> None:
        """Add the rows [first, last)."""
        before = self._slices[-1] if self._slices and not self._ops else None
        origin = None if before is None else before.origin
        if (
            before is not None
            and origin is not None
            and origin[0] is layout
            and origin[1] is rows
            and before.last == first
        ):
            before.last = last
        else:
            self._close()
            columns = tuple(None if place < 0 else rows.columns[place] for place in layout.places)
            self._slices.append(_ArraySlice((layout, rows), columns, None, rows.xids, first, last))
        self._slices_rows += last - first
        self.bytes += _ROW_BYTES * (last - first) + rows.sizes[last] - rows.sizes[first]

    def add_change(self, layout: RelationLayout, change: RowChange) -> bool:
        """Add a change. False if it does not identify its row, because the replica identity is not sufficient."""
        old = None if change.old is None else [_value_at(change.old, place) for place in layout.places]
        is_old_enough = old is not None and (bool(self._key) or change.is_old_whole)
        if change.new is None:
            if old is None or not is_old_enough:
                return False
            self._delete(old, change.xid)
            return True
        new = [_value_at(change.new, place) for place in layout.places]
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
            names = tuple(self.upstream.columns[at].name for at in left)
            self._same[len(self)] = KeptColumns(names, is_moved).encoded
        self._add(UPSERT, new, change.xid)
        return True

    def _delete(self, old: Sequence[Value], xid: int) -> None:
        is_sent = [not self._key or at in self._key for at in range(len(old))]
        self._add(DELETE, [value if sent else None for value, sent in zip(old, is_sent, strict=True)], xid)

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

    def _close(self) -> None:
        """Turn the rows that were added one by one into a slice."""
        if self._ops:
            columns = tuple(pa.array(column, pa.binary()) for column in self._columns)
            ops, xids = np.array(self._ops, np.int8), np.array(self._xids, np.int64)
            self._slices.append(_ArraySlice(None, columns, ops, xids, 0, len(ops)))
            self._slices_rows += len(ops)
            for values in (*self._columns, self._ops, self._xids):
                values.clear()  # type: ignore[attr-defined]

    def _all_xids(self) -> Longs:
        return np.concatenate([np.zeros(0, np.int64), *(one.xids[one.first : one.last] for one in self._slices)])

    def _all_ops(self) -> Ops:
        given = [
            make_upserts(one.last - one.first) if one.ops is None else one.ops[one.first : one.last]
            for one in self._slices
        ]
        return np.concatenate([make_upserts(0), *given])

    def _whole(self, at: int) -> Any:
        """One column of all rows."""
        chunks = []
        for one in self._slices:
            column, count = one.columns[at], one.last - one.first
            chunks.append(pa.nulls(count, pa.binary()) if column is None else column.slice(one.first, count))
        return pa.chunked_array(chunks, pa.binary()).combine_chunks()

    def table(self, without: Collection[int]) -> pa.Table:
        """All rows except those of the subtransactions `without`."""
        self._close()
        texts, bad = zip(*(decode_texts(self._whole(at)) for at in range(len(self._columns))), strict=True)
        made = make_staged_table(
            self.upstream, texts, self._all_ops(), self._same, dict(enumerate(bad)), "replication stream"
        )
        xids = self._all_xids()
        if xids.any():
            made = made.append_column(XID, pa.array(xids))
        if without:
            made = made.filter(pa.array(~np.isin(xids, sorted(without))))
        return made


def _value_at(values: Sequence[Value], place: int) -> Value:
    return None if place < 0 else values[place]


def make_staged_table(  # noqa: PLR0917
    upstream: UpstreamTable,
    texts: Sequence[Any],
    ops: Ops,
    same: Mapping[int, str],
    bad: Mapping[int, Mapping[int, str]],
    place: str,
) -> pa.Table:
    """Convert one array of strings per column. `bad` has, by column and row, why a value could not be read as text."""
    declaration = upstream.declaration
    reasons: dict[int, Reason] = {}
    arrays = []
    for at, column in enumerate(upstream.columns):
        made = convert_texts(texts[at], column.type, column.kind)
        made = fit_declared_type(declaration.schema.field(column.name), made)
        arrays.append(made.array)
        counts = _is_relevant(upstream, column, ops)
        for row, why in {**made.misfits, **bad.get(at, {})}.items():
            if counts[row]:
                reasons.setdefault(row, Reason(why, column.name))
        if not column.is_nullable and made.array.null_count:
            _check_nulls(column, np.asarray(made.array.is_null()) & counts, same, reasons)
    for row, mark in same.items():
        if mark.startswith("{") and row - 1 in reasons:
            why = "the update changes the key and omits unchanged columns, but the previous key cannot be read"
            reasons.setdefault(row, Reason(why))
    rows = pa.Table.from_arrays([*arrays, pa.array(ops)], schema=make_rows_schema(declaration))
    if same:
        rows = rows.append_column(SAME, pa.array([same.get(row) for row in range(len(ops))], pa.string()))
    return _add_faults(upstream, rows, reasons, texts, place) if reasons else rows


def _is_relevant(upstream: UpstreamTable, column: RemoteColumn, ops: Ops) -> Any:
    """The rows in which the column has a meaning: a delete has only the key."""
    if column.is_key or not upstream.declaration.key:
        return ops != TRUNCATE
    return ops == UPSERT


def _check_nulls(column: RemoteColumn, missing: Any, same: Mapping[int, str], reasons: dict[int, Reason]) -> None:
    what = "in the key" if column.is_key else f"{sql_name(column.kind)} NOT NULL"
    for row in np.flatnonzero(missing).tolist():
        mark = msgspec.json.decode(same[row]) if row in same else []
        if column.name not in (mark["moved"] if isinstance(mark, dict) else mark):
            reasons.setdefault(row, Reason(f"NULL is not allowed: the column is {what}", column.name))


def _add_faults(
    upstream: UpstreamTable, rows: pa.Table, reasons: dict[int, Reason], texts: Sequence[Any], place: str
) -> pa.Table:
    def raw(row: int) -> str:
        texts_by_name = {column.remote: texts[at][row].as_py() for at, column in enumerate(upstream.columns)}
        return msgspec.json.encode(texts_by_name).decode()

    where = f"{upstream.name}, {place}"
    plain = rows.drop_columns([SAME]) if SAME in rows.schema.names else rows
    found = split_faults(upstream.declaration, FittedRows(plain, reasons), where, lambda row: row + 1, raw)
    fault_texts: list[str | None] = [None] * rows.num_rows
    for row, fault in zip(sorted(reasons), found.faults, strict=True):
        fault_texts[row] = encode_fault(fault.place, fault.line, fault.reason, fault.raw, fault.key)
    return rows.append_column(FAULT, pa.array(fault_texts, pa.string()))
