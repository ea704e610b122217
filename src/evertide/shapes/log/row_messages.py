"""Write the messages that clients receive about rows, as JSON.

1. Values are texts as PostgreSQL writes them, or null; the header `electric-schema` has their types.
2. The key of a row is the collection's name and the texts of its key columns. Slashes in them are doubled, so that keys
   are unique. The second copy of a row without a key ends in `/+2`, the third in `/+3`. After a text that is not valid
   UTF-8, which loses bytes, `/#` and a hash of the value follow.
3. An update contains the key and the changed columns; with `replica=full`, the whole row and the old values of the
   changed columns. A delete contains the key; with `replica=full`, or without a key, the whole row.
4. A snapshot ends with `snapshot-end`, which says which transactions it contains: some clients wait for one of them.
   Recent pushes in a pipeline with an upstream database are listed there one by one, in `txids`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from evertide.pgexpr.types.texts import write_column
from evertide.rows.digest import hash_rows
from evertide.rows.utf8 import find_invalid_rows
from evertide.shapes.log.numbers import VisibleNumbers
from evertide.shapes.log.shape_definition import SCHEMA, ShapeDefinition
from evertide.shapes.protocol.offsets import Offset

_encode = msgspec.json.Encoder().encode
Value = dict[str, str | None]


def write_up_to_date(transaction: int) -> bytes:
    return _encode({"headers": {"control": "up-to-date", "global_last_seen_lsn": str(transaction)}})


def write_snapshot_end(visible: VisibleNumbers, pushed: Sequence[int] = ()) -> bytes:
    named = {"txids": pushed} if pushed else {}
    return _encode({"headers": {"control": "snapshot-end", **visible.json_fields, **named}})


class RowTexts:
    """The texts of rows, rendered lazily by column and shared by all shapes that send these rows."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._texts: dict[str, list[str | None]] = {}
        self._keys: list[str] = []
        self._values: dict[tuple[str, ...], tuple[list[tuple[str, list[str | None]]], dict[int, Value]]] = {}

    def column(self, name: str) -> list[str | None]:
        column = self._texts.get(name)
        if column is None:
            column = self._texts[name] = write_column(self._rows.column(name))
        return column

    def keys(self, prefix: str, identity: Sequence[str], rows: Sequence[int]) -> list[str]:
        """All callers are shapes of one collection, with the same keys."""
        if not self._keys:
            columns = [self._key_parts(name) for name in identity]
            self._keys = [prefix + "".join(parts) for parts in zip(*columns, strict=True)]
        keys = self._keys
        return [keys[row] for row in rows]

    def _key_parts(self, name: str) -> list[str]:
        parts = [_part(text) for text in self.column(name)]
        stored = self._rows.select([name])
        rows = find_invalid_rows(stored)
        high, low = hash_rows(stored.take(pa.array(rows)))
        for at, row in enumerate(rows.tolist()):
            parts[row] += f"/#{high[at]:016x}{low[at]:016x}"
        return parts

    def values(self, names: tuple[str, ...], rows: Sequence[int]) -> list[Value]:
        cached = self._values.get(names)
        if cached is None:
            cached = self._values[names] = [(name, self.column(name)) for name in names], {}
        columns, known = cached
        for row in rows:
            if row not in known:
                known[row] = {name: column[row] for name, column in columns}
        return [known[row] for row in rows]


class MessageWriter:
    def __init__(self, definition: ShapeDefinition) -> None:
        subject = definition.subject
        self._columns = definition.columns
        self._key = tuple(name for name in subject.key)
        self._identity = subject.identity
        self._is_full = definition.is_full
        self.has_own_positions = bool(definition.restriction)
        """Whether positions count the shape's own changes: those of the collection would reveal how many are hidden."""
        self.form = (definition.columns, definition.is_full)
        """Shapes of a collection with equal forms have identical messages for a row."""
        self._relation = [SCHEMA, subject.name]
        self._prefix = ".".join(f'"{part.replace("/", "//").replace(".", "..")}"' for part in self._relation)

    def keys(self, rendered: RowTexts, rows: Sequence[int]) -> list[str]:
        return rendered.keys(self._prefix, self._identity, rows)

    def values(self, rendered: RowTexts, rows: Sequence[int]) -> list[Value]:
        return rendered.values(self._columns, rows)

    def write_snapshot_row(self, key: str, value: Value, mark: int | None = None) -> bytes:
        headers: dict[str, Any] = {"operation": "insert", "relation": self._relation}
        if mark is not None:
            headers["snapshot_mark"] = mark
        return _encode({"key": key, "value": value, "headers": headers})

    def write_insert(self, key: str, value: Value, at: Offset, txids: Sequence[int], *, is_last: bool) -> bytes:
        return _encode({"key": key, "value": value, "headers": self._headers("insert", at, txids, is_last=is_last)})

    def write_delete(self, key: str, value: Value, at: Offset, txids: Sequence[int], *, is_last: bool) -> bytes:
        sent = value if self._is_full or not self._key else {name: value[name] for name in self._key}
        return _encode({"key": key, "value": sent, "headers": self._headers("delete", at, txids, is_last=is_last)})

    def find_changed_columns(self, old: Value, new: Value) -> list[str]:
        return [name for name in self._columns if old[name] != new[name]]

    def write_update(
        self, key: str, old: Value, new: Value, at: Offset, txids: Sequence[int], *, is_last: bool
    ) -> bytes:
        changed = self.find_changed_columns(old, new)
        headers = self._headers("update", at, txids, is_last=is_last)
        if self._is_full:
            return _encode(
                {"key": key, "value": new, "old_value": {name: old[name] for name in changed}, "headers": headers}
            )
        sent = {name: new[name] for name in self._columns if name in self._key or name in changed}
        return _encode({"key": key, "value": sent, "headers": headers})

    def _headers(self, operation: str, at: Offset, txids: Sequence[int], *, is_last: bool) -> dict[str, Any]:
        headers: dict[str, Any] = {
            "operation": operation,
            "relation": self._relation,
            "txids": txids,
            "lsn": str(at.transaction),
            "op_position": at.operation,
        }
        if is_last:
            headers["last"] = True
        return headers


def _part(text: str | None) -> str:
    return "/_" if text is None else f'/"{text.replace("/", "//")}"'
