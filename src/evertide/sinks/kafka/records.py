"""Convert the changes of a transaction to records of a topic, by envelope. Keys and values are JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as kinds

from evertide.brokers import EnvelopeKind
from evertide.errors import SinkFailed
from evertide.rows.changes import DIFF
from evertide.sinks.contract import SinkDeclaration, explain_invalid_key
from evertide.sinks.json_rows import to_json_rows

TIME_HEADER = "evertide-time"
SINK_HEADER = "evertide-sink"

Row = dict[str, Any]
MakeFailure = Callable[[str], SinkFailed]


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    key: bytes | None
    value: bytes | None
    partition_key: bytes = b""
    """Determines the partition of a record without a key."""


RecordMaker = Callable[[pa.Table, int, MakeFailure], Iterator[KafkaRecord]]


def choose_record_maker(declaration: SinkDeclaration, envelope: EnvelopeKind) -> RecordMaker:
    if envelope is EnvelopeKind.APPEND:
        return _make_append
    if envelope is EnvelopeKind.UPSERT:
        return partial(_make_upsert, declaration.key)
    return partial(_make_debezium, declaration)


def check_columns(declaration: SinkDeclaration, envelope: EnvelopeKind) -> str:
    """Why the envelope cannot write the key's columns; empty if it can."""
    for name in declaration.key if envelope is not EnvelopeKind.APPEND else ():
        kind = declaration.schema.field(name).type
        if kinds.is_floating(kind) or kinds.is_nested(kind):
            return f"key column {name!r} is {kind}, whose equal values may have different texts; cast the column"
    return ""


def _rows(changes: pa.Table) -> Iterator[tuple[Row, int]]:
    """The rows as JSON values, each with its diff."""
    return zip(to_json_rows(changes.drop_columns([DIFF])), changes[DIFF].to_pylist(), strict=True)


def _make_append(changes: pa.Table, _time: int, _fail: MakeFailure) -> Iterator[KafkaRecord]:
    for row, diff in _rows(changes):
        record = {"op": "insert" if diff > 0 else "delete", "diff": abs(diff), "row": row}
        yield KafkaRecord(None, msgspec.json.encode(record), msgspec.json.encode(row))


def _group_by_key(
    key: Sequence[str], changes: pa.Table, fail: MakeFailure
) -> dict[bytes, tuple[Row | None, Row | None]]:
    """The old and the new row of each key, in the order of first appearance."""
    if why := explain_invalid_key(changes, key):
        raise fail(why)
    found: dict[bytes, tuple[Row | None, Row | None]] = {}
    for row, diff in _rows(changes):
        key_text = msgspec.json.encode({name: row[name] for name in key})
        before, after = found.get(key_text, (None, None))
        if abs(diff) != 1 or (before if diff < 0 else after) is not None:
            raise fail(
                f"the key {key_text.decode()} has several rows; set the option 'key' to columns that identify a row"
            )
        found[key_text] = (row, after) if diff < 0 else (before, row)
    return found


def _make_upsert(key: Sequence[str], changes: pa.Table, _time: int, fail: MakeFailure) -> Iterator[KafkaRecord]:
    for key_text, (_, after) in _group_by_key(key, changes, fail).items():
        yield KafkaRecord(key_text, None if after is None else msgspec.json.encode(after))


def _make_debezium(
    declaration: SinkDeclaration, changes: pa.Table, time: int, fail: MakeFailure
) -> Iterator[KafkaRecord]:
    at_ms = int(declaration.runtime.wall_s() * 1000)
    source = {"connector": "evertide", "collection": declaration.collection, "sink": declaration.name, "time": time}

    def encode_change(before: Row | None, after: Row | None) -> bytes:
        op = "c" if before is None else "d" if after is None else "u"
        return msgspec.json.encode({"before": before, "after": after, "op": op, "source": source, "ts_ms": at_ms})

    if not declaration.key:
        for row, diff in _rows(changes):
            value = encode_change(None, row) if diff > 0 else encode_change(row, None)
            for _ in range(abs(diff)):
                yield KafkaRecord(None, value, msgspec.json.encode(row))
        return
    for key_text, (before, after) in _group_by_key(declaration.key, changes, fail).items():
        yield KafkaRecord(key_text, encode_change(before, after))
        if after is None:
            yield KafkaRecord(key_text, None)
