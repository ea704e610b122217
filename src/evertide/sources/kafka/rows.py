"""Convert the records of a partition to rows of the table, by envelope.

| envelope | meaning of a record |
|---|---|
| append | a row |
| upsert | the new row of its key; a record without a value deletes the row |
| debezium | a change of a row in a database: before, after, and the operation |

1. The columns of the table's key are read from the record's key if it has a format (`key_format`), else from the value.
2. A record that cannot be read is a fault at its offset. If its key could be read, the fault has the key (U6).
3. Values are converted column by column; column names are case-insensitive.
4. A value that Debezium omitted because it did not change is never taken for a value. In a table with a key the column
   keeps its value (`evertide.sources.contract.SAME`); if there is no row under the key, the record is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from evertide.brokers import EnvelopeKind
from evertide.sources.contract import DELETE, UPSERT, Rows, TableDeclaration
from evertide.sources.kafka.debezium import SchemaConversions, read_changes, unwrap_payload
from evertide.sources.kafka.formats import AvroFormat, ValueFormat
from evertide.sources.kafka.json_batch import JsonBatch
from evertide.sources.kafka.positions import PartitionRecords
from evertide.sources.kafka.schema_registry import Unreadable
from evertide.sources.kafka.unavailable import UNAVAILABLE, Placeholder
from evertide.sources.values.columns import ConvertedColumn, from_texts, from_values
from evertide.sources.values.fit import KeptColumns, Reason, fit, make_upserts, split_faults
from evertide.sources.values.values import read_default, show_value

Row = dict[str, Any]


class Decoder(Protocol):
    def rows(self, records: PartitionRecords, place: str) -> Rows: ...


@dataclass(slots=True)
class _Entries:
    """Decoded rows, and the keys of faults, each with the index of its record."""

    ops: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    reasons: dict[int, Reason] = field(default_factory=dict)
    same: dict[int, KeptColumns] = field(default_factory=dict)

    def add(self, at: int, op: int, row: Row, same: KeptColumns | None = None) -> None:
        if same is not None:
            self.same[len(self.ops)] = same
        self.ops.append(op)
        self.rows.append(row)
        self.at.append(at)

    def fault(self, at: int, why: str, key: Row) -> None:
        self.reasons[len(self.rows)] = Reason(why)
        self.add(at, UPSERT, key)


@dataclass(frozen=True, slots=True)
class EnvelopeRows:
    declaration: TableDeclaration
    kind: EnvelopeKind
    value: ValueFormat
    key: ValueFormat | None
    ignore_extra: bool = False
    conversions: SchemaConversions = field(default_factory=SchemaConversions)
    placeholder: Placeholder = field(default_factory=Placeholder)
    whole: JsonBatch | None = None
    """Set if values are JSON."""

    def rows(self, records: PartitionRecords, place: str) -> Rows:
        at: Sequence[int] = range(len(records.offsets))
        whole = self._convert_all(records)
        if whole is not None:
            fitted = fit(self.declaration, whole, make_upserts(len(at)))
        else:
            entries = self._decode_all(records) or self._decode_one_by_one(records)
            at, ops = entries.at, np.array(entries.ops, np.int8)
            fitted = fit(self.declaration, self._convert_columns(entries.rows), ops, entries.reasons, entries.same)
        return split_faults(
            self.declaration,
            fitted,
            place,
            lambda row: records.offsets[at[row]],
            lambda row: _show_record(records, at[row]),
        )

    def _is_value_only(self, records: PartitionRecords) -> bool:
        """Whether every record has a value, and its value alone is the row."""
        return self.kind is not EnvelopeKind.DEBEZIUM and self.key is None and None not in records.values

    def _convert_all(self, records: PartitionRecords) -> dict[str, ConvertedColumn] | None:
        """Convert all JSON records at once; None if they must be converted one by one."""
        if self.whole is None or not self._is_value_only(records):
            return None
        found = self.whole.columns(records.values)  # type: ignore[arg-type]
        if found is not None and self.kind is EnvelopeKind.UPSERT and any(map(self._has_placeholder, found.values())):
            return None
        return found

    def _has_placeholder(self, column: ConvertedColumn) -> bool:
        return pa.types.is_string(column.array.type) and self.placeholder.is_among(column.array)

    def _decode_all(self, records: PartitionRecords) -> _Entries | None:
        """Decode append records in one loop; None if one of them is unreadable or has an unknown column."""
        if self.kind is not EnvelopeKind.APPEND or not self._is_value_only(records):
            return None
        decode, own = self.value.decode, frozenset(self.declaration.schema.names)
        try:
            rows = [decode(value) for value in records.values]  # type: ignore[arg-type]
        except Unreadable:
            return None
        if not all(type(row) is dict and own.issuperset(row) for row in rows):
            return None
        return _Entries([UPSERT] * len(rows), rows, list(range(len(rows))))

    def _decode_one_by_one(self, records: PartitionRecords) -> _Entries:
        entries = _Entries()
        for at, (key, value) in enumerate(zip(records.keys, records.values, strict=True)):
            known: Row = {}
            try:
                known = self._read_key(key)
                self._add_record(entries, at, known, value)
            except Unreadable as error:
                entries.fault(at, str(error), known)
        return entries

    def _read_key(self, content: bytes | None) -> Row:
        if self.key is None:
            return {}
        if content is None:
            if self.kind is EnvelopeKind.DEBEZIUM:
                return {}
            raise Unreadable("the record has no key")
        try:
            row = self._read_key_row(self.key.decode(content))
        except Unreadable as error:
            raise Unreadable(f"key: {error}") from error
        missing = next((name for name in self.declaration.key if row.get(name) is None), None)
        if missing is not None and self.kind is not EnvelopeKind.DEBEZIUM:
            raise Unreadable(f"key: column {missing!r} is missing")
        return row

    def _read_key_row(self, decoded: Any) -> Row:
        columns = self.declaration.key
        decoded = unwrap_payload(decoded) if self.kind is EnvelopeKind.DEBEZIUM else decoded
        if not isinstance(decoded, Mapping):
            if len(columns) != 1:
                raise Unreadable(f"{show_value(decoded)} is not an object with the columns {', '.join(columns)}")
            decoded = {columns[0]: decoded}
        return {name: value for name, value in self._match_names(decoded, ignore_extra=True).items() if name in columns}

    def _add_record(self, entries: _Entries, at: int, key: Row, content: bytes | None) -> None:
        if content is None:
            if self.kind is EnvelopeKind.APPEND:
                raise Unreadable("the record has no value, which the envelope 'append' requires")
            if key:
                entries.add(at, DELETE, key)
            elif self.kind is EnvelopeKind.UPSERT:
                raise Unreadable("the record has neither a value nor a key")
            return
        decoded = self.value.decode(content)
        if self.kind is EnvelopeKind.DEBEZIUM:
            has_deleted = False
            for op, row in self._read_changes(decoded, content, key):
                self._add(entries, at, op, row, is_moved=has_deleted)
                has_deleted = op == DELETE
        else:
            row = {**self._make_row(decoded), **key}
            self._add(entries, at, UPSERT, self.placeholder.mark(row) if self.kind is EnvelopeKind.UPSERT else row)

    def _add(self, entries: _Entries, at: int, op: int, row: Row, *, is_moved: bool = False) -> None:
        """Add a row; unavailable columns keep their values stored under the key, or under the key just deleted."""
        left = [name for name, value in row.items() if value is UNAVAILABLE]
        if not left:
            entries.add(at, op, row)
            return
        known = {name: value for name, value in row.items() if value is not UNAVAILABLE}
        if not self.declaration.key or any(name in left for name in self.declaration.key):
            why = f"column {left[0]!r}: Debezium omitted the value, because it did not change"
            if not self.declaration.key:
                why = f"{why}; set REPLICA IDENTITY FULL, or declare the table's key"
            entries.fault(at, why, known)
        elif op == DELETE:
            entries.add(at, op, known)
        else:
            entries.add(at, op, {**known, **dict.fromkeys(left)}, KeptColumns(tuple(left), is_moved))

    def _read_changes(self, decoded: Any, content: bytes, key: Row) -> list[tuple[int, Row]]:
        """The operations of a Debezium record, with rows by the table's column names, or only the key."""
        changes = []
        schema = self.value.schema_of(content) if isinstance(self.value, AvroFormat) else None
        for op, row in read_changes(decoded, self.declaration, self.conversions, self.placeholder, schema):
            if row is None and not key:
                raise Unreadable("a delete has neither 'before' nor a key")
            changes.append((op, {**key} if row is None else self._make_row(row)))
        return changes

    def _make_row(self, decoded: Any) -> Row:
        if not isinstance(decoded, dict):
            raise Unreadable(f"{show_value(decoded)} is not an object with the table's columns")
        own = frozenset(self.declaration.schema.names)
        return decoded if own.issuperset(decoded) else self._match_names(decoded, ignore_extra=self.ignore_extra)

    def _match_names(self, decoded: Mapping[str, Any], *, ignore_extra: bool) -> Row:
        known = {name.lower(): name for name in self.declaration.schema.names}
        row: Row = {}
        for name, value in decoded.items():
            own = known.get(name.lower())
            if own is None:
                if not ignore_extra:
                    why = f"the table has no column {show_value(name)}"
                    raise Unreadable(f"{why}; declare it, or set the option ignore_extra to 'true'")
            elif own in row:
                raise Unreadable(f"the record has column {own!r} twice")
            else:
                row[own] = value
        return row

    def _convert_columns(self, rows: Sequence[Row]) -> dict[str, ConvertedColumn]:
        return {one.name: self._convert_column(one.name, one.type, rows) for one in self.declaration.schema}

    def _convert_column(self, name: str, kind: Any, rows: Sequence[Row]) -> ConvertedColumn:
        default = read_default(self.declaration, name)
        values = [row.get(name, default) for row in rows]
        is_key = self.key is not None and name in self.declaration.key and self.kind is not EnvelopeKind.DEBEZIUM
        is_text = self.key.is_text if is_key and self.key is not None else self.value.is_text
        if is_text and all(value is None or isinstance(value, str) for value in values):
            return from_texts(pa.array(values, pa.string()), kind)
        return from_values(values, kind)


def _show_record(records: PartitionRecords, at: int) -> str:
    content = records.values[at]
    if content is None:
        content = records.keys[at] or b""
    return content.decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class RawRows:
    """Converts records of the format `raw` to those of its columns that the table has."""

    declaration: TableDeclaration
    topic: str
    kind: EnvelopeKind = EnvelopeKind.APPEND

    def rows(self, records: PartitionRecords, place: str) -> Rows:
        count = len(records.offsets)
        ops = np.full(count, UPSERT, np.int8)
        if self.kind is EnvelopeKind.UPSERT:
            ops[[at for at, value in enumerate(records.values) if value is None]] = DELETE
        found = {one.name: self._convert_column(one, records) for one in self.declaration.schema}
        fitted = fit(self.declaration, found, ops)
        return split_faults(
            self.declaration, fitted, place, lambda row: records.offsets[row], lambda row: _show_record(records, row)
        )

    def _convert_column(self, column: Any, records: PartitionRecords) -> ConvertedColumn:
        name = column.name.lower()
        count = len(records.offsets)
        made: dict[str, Callable[[], list[Any]]] = {
            "key": lambda: list(records.keys),
            "value": lambda: list(records.values),
            "timestamp": lambda: [_read_timestamp(one) for one in records.messages],
            "headers": lambda: [_read_headers(one, column.type) for one in records.messages],
            "partition": lambda: [records.partition] * count,
            "offset": lambda: list(records.offsets),
            "topic": lambda: [self.topic] * count,
        }
        values = made[name]()
        if name == "timestamp":
            return ConvertedColumn(pa.array(values, pa.timestamp("ms", "UTC")).cast(column.type))
        if name in ("key", "value") and pa.types.is_string(column.type):
            return _decode_texts(values)
        return from_values(values, column.type)


def _decode_texts(values: Sequence[bytes | None]) -> ConvertedColumn:
    made: list[str | None] = []
    misfits: dict[int, str] = {}
    for at, value in enumerate(values):
        try:
            made.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            made.append(None)
            misfits[at] = "the bytes are not UTF-8, which STRING requires; declare the column as BINARY"
    return ConvertedColumn(pa.array(made, pa.string()), misfits)


def _read_timestamp(message: Any) -> int | None:
    _, at_ms = message.timestamp()
    return at_ms if at_ms >= 0 else None


def _read_headers(message: Any, kind: Any) -> Any:
    """A map has the last of the headers with the same name; a list has all."""
    found = message.headers() or []
    if pa.types.is_map(kind):
        is_text = pa.types.is_string(kind.item_type)
        return {name: _read_header(value, is_text=is_text) for name, value in found}
    names = [one.name for one in kind.value_type]
    is_text = pa.types.is_string(kind.value_type.field(1).type)
    return [dict(zip(names, (name, _read_header(value, is_text=is_text)), strict=True)) for name, value in found]


def _read_header(value: bytes | None, *, is_text: bool) -> Any:
    return value.decode(errors="replace") if is_text and value is not None else value
