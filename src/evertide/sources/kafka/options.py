"""Read and check the options of the connector `kafka`, without access to a broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.types as kinds

from evertide.brokers import Brokers, EnvelopeKind, read_brokers
from evertide.options import Options
from evertide.secrets import Secrets
from evertide.sources.contract import TableDeclaration
from evertide.sources.kafka.formats import AvroFormat, CsvFormat, JsonFormat, TextFormat, ValueFormat
from evertide.sources.kafka.json_batch import JsonBatch
from evertide.sources.kafka.rows import Decoder, EnvelopeRows, RawRows
from evertide.sources.kafka.schema_registry import SchemaRegistry, is_url
from evertide.sources.kafka.unavailable import DEFAULT_PLACEHOLDER, Placeholder
from evertide.sources.values.kinds import sql_name

_FORMATS = ("json", "avro", "csv", "raw")
_KEY_FORMATS = ("none", "json", "avro", "text")
_KEY_FORMAT_OF = {"json": "json", "avro": "avro", "csv": "text", "raw": "none"}
"""The default of `key_format` by `format`, if the envelope needs a key."""


class StartKind(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    OFFSETS = "offsets"


class ExecutorUse(StrEnum):
    """Whether Spark's executors read large offers; `AUTO`: if they run on other machines."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Start:
    kind: StartKind
    at_ms: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    where: str
    brokers: Brokers
    topic: str
    group: str
    start: Start
    decoder: Decoder
    registry: SchemaRegistry | None
    is_skipping_expired: bool
    executors: ExecutorUse


def read_options(declaration: TableDeclaration, base: Path) -> KafkaOptions:
    secrets = Secrets(base)
    where = declaration.place
    options = declaration.read_options(secrets)
    brokers = read_brokers(options, declaration.options, secrets)
    topic = options.require("topic", "orders")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
        raise options.refusal("topic", f"is {topic!r}: expected letters, digits, '.', '_' and '-'")
    start = _read_start(options)
    group = options.text("group")
    is_skipping = options.choice("on_expired", ("stall", "skip"), "stall") == "skip"
    executors = options.member("executors", ExecutorUse, ExecutorUse.NEVER)
    registry = _open_registry(options)
    decoder = _make_decoder(declaration, options, registry, topic)
    options.check_unknown()
    return KafkaOptions(where, brokers, topic, group, start, decoder, registry, is_skipping, executors)


def _read_start(options: Options) -> Start:
    text = options.text("start", "earliest")
    kind, _, rest = text.partition(":")
    expected = "'earliest', 'latest', 'timestamp:2026-01-31T10:20:30Z' or 'offsets:{\"0\": 17}'"
    refusal = options.refusal("start", f"is {text!r}: expected {expected}")
    if kind in (StartKind.EARLIEST, StartKind.LATEST) and not rest:
        return Start(StartKind(kind))
    if kind == StartKind.TIMESTAMP:
        try:
            at = datetime.fromisoformat(rest.strip())
        except ValueError:
            raise refusal from None
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return Start(StartKind.TIMESTAMP, at_ms=round(at.timestamp() * 1000))
    if kind == StartKind.OFFSETS:
        try:
            offsets = msgspec.json.decode(rest, type=dict[int, int])
        except msgspec.MsgspecError:
            raise refusal from None
        if any(number < 0 or offset < 0 for number, offset in offsets.items()):
            raise refusal
        return Start(StartKind.OFFSETS, offsets=offsets)
    raise refusal


def _open_registry(options: Options) -> SchemaRegistry | None:
    url, auth = options.text("schema_registry"), options.text("schema_registry_auth")
    if not url:
        return None
    if not is_url(url):
        why = "expected http:// or https://, and user and password as the option schema_registry_auth"
        raise options.refusal("schema_registry", f"is {url!r}: {why}")
    return SchemaRegistry(url, auth)


def _make_decoder(
    declaration: TableDeclaration, options: Options, registry: SchemaRegistry | None, topic: str
) -> Decoder:
    kind = options.choice("format", _FORMATS, options.text("format"))
    envelope = options.member("envelope", EnvelopeKind, EnvelopeKind.APPEND)
    if envelope is EnvelopeKind.UPSERT and not declaration.key:
        raise options.refusal("envelope", "is 'upsert', which requires a PRIMARY KEY")
    if kind == "raw":
        return _make_raw_rows(declaration, options, envelope, topic)
    if envelope is EnvelopeKind.DEBEZIUM and kind == "csv":
        raise options.refusal("envelope", "is 'debezium', which requires the format 'json' or 'avro'")
    needs_key = envelope is EnvelopeKind.UPSERT or (envelope is EnvelopeKind.DEBEZIUM and bool(declaration.key))
    key_kind = options.choice("key_format", _KEY_FORMATS, _KEY_FORMAT_OF[kind] if needs_key else "none")
    if key_kind != "none" and not declaration.key:
        raise options.refusal("key_format", f"is {key_kind!r}, which requires a PRIMARY KEY")
    if key_kind == "text" and len(declaration.key) != 1:
        raise options.refusal("key_format", "is 'text', which requires a PRIMARY KEY of one column")
    if "avro" in (kind, key_kind) and registry is None:
        why = "is missing, but the format is 'avro'; set it, for example to 'http://localhost:8081'"
        raise options.refusal("schema_registry", why)
    key = _make_format(key_kind, declaration, options, registry) if key_kind != "none" else None
    value = _make_format(kind, declaration, options, registry, with_key=key is None)
    ignore_extra = options.boolean("ignore_extra", default=False)
    whole = JsonBatch(declaration) if kind == "json" else None
    placeholder = _read_placeholder(options) if envelope is not EnvelopeKind.APPEND else Placeholder()
    return EnvelopeRows(declaration, envelope, value, key, ignore_extra, placeholder=placeholder, whole=whole)


def _read_placeholder(options: Options) -> Placeholder:
    given = options.text("unavailable_placeholder", DEFAULT_PLACEHOLDER)
    try:
        made = Placeholder(given)
        made.stands_for("")
    except ValueError:
        raise options.refusal(
            "unavailable_placeholder", f"is {given!r}: expected hexadecimal digits after 'hex:'"
        ) from None
    return made


def _make_format(
    kind: str,
    declaration: TableDeclaration,
    options: Options,
    registry: SchemaRegistry | None,
    *,
    with_key: bool = True,
) -> ValueFormat:
    if kind == "avro" and registry is not None:
        return AvroFormat(registry)
    if kind == "json":
        return JsonFormat(declaration.schema)
    if kind == "text":
        return TextFormat()
    delimiter = options.text("delimiter", ",").replace("\\t", "\t")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise options.refusal("delimiter", f"is {delimiter!r}: expected one character, no quote or line end")
    columns = [name for name in declaration.schema.names if with_key or name not in declaration.key]
    return CsvFormat(columns, delimiter, options.text("null_value"))


def _make_raw_rows(declaration: TableDeclaration, options: Options, envelope: EnvelopeKind, topic: str) -> RawRows:
    if envelope is EnvelopeKind.DEBEZIUM:
        raise options.refusal("envelope", "is 'debezium', which requires the format 'json' or 'avro'")
    if envelope is EnvelopeKind.UPSERT and [name.lower() for name in declaration.key] != ["key"]:
        raise options.refusal("envelope", "is 'upsert', which requires PRIMARY KEY (key) in a raw table")
    for column in declaration.schema:
        expected = _RAW_KINDS.get(column.name.lower())
        if expected is None:
            listed = ", ".join(_RAW_KINDS)
            raise options.refusal("format", f"is 'raw', which has no column {column.name!r}; it has {listed}")
        if not expected[0](column.type):
            why = f"is 'raw', but column {column.name!r} is {sql_name(column.type)}: expected {expected[1]}"
            raise options.refusal("format", why)
    return RawRows(declaration, topic, envelope)


def _is_bytes(kind: Any) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_binary(kind))


def _is_headers(kind: Any) -> bool:
    if kinds.is_map(kind):
        return bool(kinds.is_string(kind.key_type) and _is_bytes(kind.item_type))
    if not kinds.is_list(kind) or not kinds.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        return False
    return bool(kinds.is_string(kind.value_type.field(0).type) and _is_bytes(kind.value_type.field(1).type))


_RAW_KINDS = {
    "key": (_is_bytes, "STRING or BINARY"),
    "value": (_is_bytes, "STRING or BINARY"),
    "timestamp": (kinds.is_timestamp, "TIMESTAMP"),
    "headers": (_is_headers, "MAP<STRING, STRING or BINARY>, or ARRAY of STRUCTs of both"),
    "partition": (kinds.is_integer, "INT"),
    "offset": (kinds.is_int64, "BIGINT"),
    "topic": (kinds.is_string, "STRING"),
}
