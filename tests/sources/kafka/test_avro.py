"""Avro in the schema registry's wire format, with a registry that answers over HTTP."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from evertide.errors import InvalidInput, SourceFailed
from evertide.sources.contract import OP
from tests.servers.kafka import KafkaBroker
from tests.sources.kafka.kit import (
    Record,
    faults,
    first,
    new_topic,
    open_source,
    positions,
    produce,
    rows,
    table,
    wait_for_offer,
)
from tests.sources.kit import key_of

PASSWORD = "a-registry-password"
ORDER = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "code", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("code", pa.string()),
    ]
)
AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
CODE = "12345678-1234-5678-1234-567812345678"


def an_order(number: int) -> dict[str, Any]:
    day = date(2026, 1, 2)
    return {"id": number, "name": None, "amount": Decimal("1.25"), "day": day, "at": AT, "tags": ["a"], "code": CODE}


@dataclass
class Registry:
    url: str = ""
    ids: dict[int, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    kafka_options: list[str] = field(default_factory=list)
    auth: str = ""
    is_broken: bool = False

    def answer(self, path: str, auth: str | None) -> tuple[int, Any]:
        self.kafka_options.append(path)
        if self.is_broken:
            return 503, {}
        if self.auth and auth != f"Basic {base64.b64encode(self.auth.encode()).decode()}":
            return 401, {"error_code": 401, "message": "no"}
        if path == "/schemas/types":
            return 200, ["AVRO"]
        number = path.removeprefix("/schemas/ids/")
        found = self.ids.get(int(number)) if number.isdigit() else self.versions.get(path)
        return (200, found) if found is not None else (404, {"error_code": 40403})


@contextmanager
def running_registry() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path, self.headers.get("Authorization"))
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as made:
        yield made


def avro(number: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def test_avro_values_of_many_types_and_each_schema_requested_once(
    kafka_broker: KafkaBroker, registry: Registry
) -> None:
    registry.ids[7] = {"schema": json.dumps(ORDER)}
    topic = new_topic(kafka_broker)
    produce(kafka_broker, topic, [(None, avro(7, ORDER, an_order(number))) for number in range(50)])
    source = open_source(table(kafka_broker, topic, SCHEMA, format="avro", schema_registry=registry.url))
    found = [row for _, offer in positions(source) for row in rows(source, offer)]
    assert found == [{**an_order(number), OP: 0} for number in range(50)]
    assert registry.kafka_options.count("/schemas/ids/7") == 1
    source.close()


def test_avro_keys_tombstones_and_unreadable_records(kafka_broker: KafkaBroker, registry: Registry) -> None:
    """U6: a value that does not match its schema is a fault of its key."""
    registry.ids |= {1: {"schema": '"long"'}, 2: {"schema": json.dumps(ORDER)}, 3: {"schema": "{", "x": 1}}
    registry.ids[4] = {"schema": "syntax", "schemaType": "PROTOBUF"}
    good = avro(2, ORDER, an_order(5))
    records: list[Record] = [
        (avro(1, "long", 5), good),
        (avro(1, "long", 5), None),
        (avro(1, "long", 6), b"\0\0\0\0\2\xff"),
        (avro(1, "long", 7), good + b"x"),
        (avro(1, "long", 8), b'{"id": 1}'),
        (avro(1, "long", 9), b"\0\0\0\0\x63abc"),
        (avro(1, "long", 10), b"\0\0\0\0\x03abc"),
        (avro(1, "long", 11), b"\0\0\0\0\x04abc"),
    ]
    topic = new_topic(kafka_broker)
    produce(kafka_broker, topic, records)
    options = {"format": "avro", "envelope": "upsert", "schema_registry": registry.url}
    source = open_source(table(kafka_broker, topic, SCHEMA, **options))
    offer = wait_for_offer(source, first(source), count=len(records))
    assert [(row["id"], row[OP]) for row in rows(source, offer)] == [(5, 0), (5, 1)]
    bad = faults(source, offer)
    assert [key_of(fault) for fault in bad] == [{"id": number} for number in range(6, 12)]
    expected = ["does not match", "1 bytes follow", "registry's format", "no schema 99", "cannot be parsed", "PROTOBUF"]
    assert all(words in fault.reason for words, fault in zip(expected, bad, strict=True)), bad
    source.close()


def test_a_schema_that_refers_to_another_is_resolved(kafka_broker: KafkaBroker, registry: Registry) -> None:
    person = {"type": "record", "name": "person", "fields": [{"name": "name", "type": "string"}]}
    order = {
        "type": "record",
        "name": "order",
        "fields": [{"name": "id", "type": "long"}, {"name": "buyer", "type": "person"}],
    }
    registry.ids[9] = {
        "schema": json.dumps(order),
        "references": [{"name": "person", "subject": "person-value", "version": 1}],
    }
    registry.versions["/subjects/person-value/versions/1"] = {"schema": json.dumps(person)}
    whole = {**order, "fields": [order["fields"][0], {"name": "buyer", "type": person}]}
    topic = new_topic(kafka_broker)
    produce(kafka_broker, topic, [(None, avro(9, whole, {"id": 1, "buyer": {"name": "ann"}}))])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("buyer", pa.struct([("name", pa.string())]))])
    source = open_source(table(kafka_broker, topic, schema, format="avro", schema_registry=registry.url))
    offer = wait_for_offer(source, first(source))
    assert rows(source, offer) == [{"id": 1, "buyer": {"name": "ann"}, OP: 0}]
    source.close()


def test_debezium_as_avro(kafka_broker: KafkaBroker, registry: Registry) -> None:
    at = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
    row = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": ["null", at]}],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row]},
            {"name": "after", "type": ["null", "Value"]},
            {"name": "op", "type": "string"},
        ],
    }
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    registry.ids |= {1: {"schema": json.dumps(key)}, 2: {"schema": json.dumps(envelope)}}
    micros = 1767225600000001
    said = [
        {"before": None, "after": {"id": 1, "at": micros}, "op": "c"},
        {"before": {"id": 1, "at": None}, "after": None, "op": "d"},
    ]
    topic = new_topic(kafka_broker)
    produce(kafka_broker, topic, [(avro(1, key, {"id": 1}), avro(2, envelope, one)) for one in said])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("us"))])
    options = {"format": "avro", "envelope": "debezium", "schema_registry": registry.url}
    source = open_source(table(kafka_broker, topic, schema, **options))
    offer = wait_for_offer(source, first(source), count=2)
    moment = datetime(2026, 1, 1, 0, 0, 0, 1)  # noqa: DTZ001 - it has no zone
    assert [tuple(each.values()) for each in rows(source, offer)] == [(1, moment, 0), (1, None, 1)]
    assert faults(source, offer) == []
    source.close()


def test_an_unreachable_registry_stalls_the_source(kafka_broker: KafkaBroker, registry: Registry) -> None:
    """As a fault, all records of that time would be dead letters for ever."""
    registry.ids[7] = {"schema": json.dumps(ORDER)}
    topic = new_topic(kafka_broker)
    produce(kafka_broker, topic, [(None, avro(7, ORDER, an_order(1)))])
    source = open_source(table(kafka_broker, topic, SCHEMA, format="avro", schema_registry=registry.url))
    offer = wait_for_offer(source, first(source))
    registry.is_broken = True
    with pytest.raises(SourceFailed, match=r"schema registry.*503"):
        rows(source, offer)
    registry.is_broken = False
    assert [row["id"] for row in rows(source, offer)] == [1]
    source.close()


def test_an_unreachable_or_forbidding_registry_is_refused(
    kafka_broker: KafkaBroker, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(kafka_broker)
    avro_options = {"format": "avro", "schema_registry": registry.url}
    with pytest.raises(InvalidInput, match=r"schema_registry.*does not answer"):
        open_source(table(kafka_broker, topic, SCHEMA, **{**avro_options, "schema_registry": "http://127.0.0.1:1"}))
    registry.auth = f"user:{PASSWORD}"
    with pytest.raises(InvalidInput, match="401"):
        open_source(table(kafka_broker, topic, SCHEMA, **avro_options))
    monkeypatch.setenv("REGISTRY", f"user:{PASSWORD}x")
    login = {**avro_options, "schema_registry_auth": "${ENV:REGISTRY}"}
    with pytest.raises(InvalidInput, match="401") as said:
        open_source(table(kafka_broker, topic, SCHEMA, **login))
    assert PASSWORD not in str(said.value)
    monkeypatch.setenv("REGISTRY", f"user:{PASSWORD}")
    open_source(table(kafka_broker, topic, SCHEMA, **login)).close()
