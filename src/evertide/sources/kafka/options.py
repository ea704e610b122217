"""Read and check the options of the connector `kafka`, without access to a broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.types as kinds

from evertide.brokers import Brokers, read_brokers
from evertide.options import Options
from evertide.secrets import Secrets
from evertide.sources.contract import TableDeclaration
from evertide.sources.kafka.formats import AvroFormat, CsvFormat, Format, JsonFormat, TextFormat
from evertide.sources.kafka.rows import Decoder, Envelope, RawRows
from evertide.sources.kafka.schema_registry import SchemaRegistry, is_url
from evertide.sources.kafka.unavailable import DEFAULT_PLACEHOLDER, Placeholder
from evertide.sources.kafka.whole_json import WholeJson
from evertide.sources.values.kinds import sql_name

__all__ = ["Asked", "Start", "read_options"]

_FORMATS = ("json", "avro", "csv", "raw")
_ENVELOPES = ("append", "upsert", "debezium")
_KEY_FORMATS = ("none", "json", "avro", "text")
_KEY_OF = {"json": "json", "avro": "avro", "csv": "text", "raw": "none"}
"""The default of `key_format` by `format`, if the envelope needs a key."""


@dataclass(frozen=True, slots=True)
class Start:
    kind: str
    at_ms: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    where: str
    brokers: Brokers
    topic: str
    group: str
    start: Start
    decoder: Decoder
    registry: SchemaRegistry | None
    is_skipping_expired: bool
    executors: str
    """auto, always or never: whether Spark's executors read large offers."""


def read_options(declaration: TableDeclaration, base: Path) -> Asked:
    secrets = Secrets(base)
    where = declaration.place
    options = declaration.read_options(secrets)
    brokers = read_brokers(options, declaration.options, secrets)
    topic = options.required("topic", "orders")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
        raise options.refusal("topic", f"is {topic!r}: expected letters, digits, '.', '_' and '-'")
    start = _start(options)
    group = options.text("group")
    is_skipping = options.choice("on_expired", ("stall", "skip"), "stall") == "skip"
    executors = options.choice("executors", ("auto", "always", "never"), "never")
    registry = _registry(options)
    decoder = _decoder(declaration, options, registry, topic)
    options.check_unknown()
    return Asked(where, brokers, topic, group, start, decoder, registry, is_skipping, executors)


def _start(options: Options) -> Start:
    text = options.text("start", "earliest")
    kind, _, rest = text.partition(":")
    expected = "'earliest', 'latest', 'timestamp:2026-01-31T10:20:30Z' or 'offsets:{\"0\": 17}'"
    refusal = options.refusal("start", f"is {text!r}: expected {expected}")
    if kind in ("earliest", "latest") and not rest:
        return Start(kind)
    if kind == "timestamp":
        try:
            at = datetime.fromisoformat(rest.strip())
        except ValueError:
            raise refusal from None
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return Start(kind, at_ms=round(at.timestamp() * 1000))
    if kind == "offsets":
        try:
            offsets = msgspec.json.decode(rest, type=dict[int, int])
        except msgspec.MsgspecError:
            raise refusal from None
        if any(number < 0 or offset < 0 for number, offset in offsets.items()):
            raise refusal
        return Start(kind, offsets=offsets)
    raise refusal


def _registry(options: Options) -> SchemaRegistry | None:
    url, auth = options.text("schema_registry"), options.text("schema_registry_auth")
    if not url:
        return None
    if not is_url(url):
        why = "expected http:// or https://, and user and password as the option schema_registry_auth"
        raise options.refusal("schema_registry", f"is {url!r}: {why}")
    return SchemaRegistry(url, auth)


def _decoder(declaration: TableDeclaration, options: Options, registry: SchemaRegistry | None, topic: str) -> Decoder:
    kind = options.choice("format", _FORMATS, options.text("format"))
    envelope = options.choice("envelope", _ENVELOPES, "append")
    if envelope == "upsert" and not declaration.key:
        raise options.refusal("envelope", "is 'upsert': the table needs a PRIMARY KEY for it")
    if kind == "raw":
        return _raw(declaration, options, envelope, topic)
    if envelope == "debezium" and kind == "csv":
        raise options.refusal("envelope", "is 'debezium', which is never CSV: set the format to 'json' or 'avro'")
    needs_key = envelope == "upsert" or (envelope == "debezium" and bool(declaration.key))
    key_kind = options.choice("key_format", _KEY_FORMATS, _KEY_OF[kind] if needs_key else "none")
    if key_kind != "none" and not declaration.key:
        raise options.refusal("key_format", f"is {key_kind!r}: the table needs a PRIMARY KEY for it")
    if key_kind == "text" and len(declaration.key) != 1:
        raise options.refusal("key_format", "is 'text', which is one column: the table's key has several")
    if "avro" in (kind, key_kind) and registry is None:
        raise options.refusal("schema_registry", "is missing: Avro needs its URL, say, 'http://localhost:8081'")
    key = _format(key_kind, declaration, options, registry) if key_kind != "none" else None
    value = _format(kind, declaration, options, registry, with_key=key is None)
    ignore_extra = options.boolean("ignore_extra", default=False)
    whole = WholeJson(declaration) if kind == "json" else None
    placeholder = _placeholder(options) if envelope != "append" else Placeholder()
    return Envelope(declaration, envelope, value, key, ignore_extra, placeholder=placeholder, whole=whole)


def _placeholder(options: Options) -> Placeholder:
    given = options.text("unavailable_placeholder", DEFAULT_PLACEHOLDER)
    try:
        made = Placeholder(given)
        made.stands_for("")
    except ValueError:
        raise options.refusal(
            "unavailable_placeholder", f"is {given!r}: expected hexadecimal digits after 'hex:'"
        ) from None
    return made


def _format(
    kind: str,
    declaration: TableDeclaration,
    options: Options,
    registry: SchemaRegistry | None,
    *,
    with_key: bool = True,
) -> Format:
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


def _raw(declaration: TableDeclaration, options: Options, envelope: str, topic: str) -> RawRows:
    if envelope == "debezium":
        raise options.refusal("envelope", "is 'debezium', which is never raw: set the format to 'json' or 'avro'")
    if envelope == "upsert" and [name.lower() for name in declaration.key] != ["key"]:
        raise options.refusal("envelope", "is 'upsert': the key of a raw table is the column 'key' and nothing else")
    for column in declaration.schema:
        expected = _RAW_KINDS.get(column.name.lower())
        if expected is None:
            listed = ", ".join(_RAW_KINDS)
            raise options.refusal("format", f"is 'raw': there is no column {column.name!r}, only {listed}")
        if not expected[0](column.type):
            why = f"is 'raw': the column {column.name!r} is {sql_name(column.type)}, expected {expected[1]}"
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
