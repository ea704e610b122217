"""The content of records: formats, envelopes, and unreadable records (U6)."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import SourceFailed
from evertide.sources.contract import OP, Fault
from tests.servers.kafka import KafkaBroker
from tests.sources.kafka.kit import (
    ORDERS,
    Record,
    all_rows,
    faults,
    first,
    new_topic,
    open_source,
    order,
    positions,
    produce,
    rows,
    table,
    wait_for_offer,
)
from tests.sources.kit import key_of


def read_all(broker: KafkaBroker, records: list[Record], **options: Any) -> tuple[list[dict[str, Any]], list[Fault]]:
    """Rows and faults of all records."""
    topic = new_topic(broker)
    produce(broker, topic, records)
    source = open_source(table(broker, topic, **options))
    try:
        offers = [offer for _, offer in positions(source)]
        return [row for offer in offers for row in rows(source, offer)], [
            fault for offer in offers for fault in faults(source, offer)
        ]
    finally:
        source.close()


def plain(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found]


def test_json_append_keeps_numbers_exact_and_matches_names_in_any_case(kafka_broker: KafkaBroker) -> None:
    records: list[Record] = [(None, b'{"ID": 1, "Name": "a", "amount": 0.10}'), (None, b'{"id": 2, "amount": "7"}')]
    found, bad = read_all(kafka_broker, records)
    assert plain(found) == [(1, "a", Decimal("0.10"), 0), (2, None, Decimal("7.00"), 0)]
    assert bad == []


def test_u6_an_unreadable_record_is_a_fault_of_its_key(kafka_broker: KafkaBroker) -> None:
    """The key is read from the record's key, so that it is known even if the value is not JSON."""
    records: list[Record] = [
        ({"id": 1}, order(None)),
        ({"id": 2}, b"{nonsense"),
        ({"id": 3}, {"name": 5}),
        (b"}", order(None)),
        (None, order(None)),
        ({"id": 6}, order(None)),
    ]
    found, bad = read_all(kafka_broker, records, envelope="upsert")
    assert [row["id"] for row in found] == [1, 6]
    assert [(fault.line, key_of(fault), fault.after) for fault in bad] == [
        (1, {"id": 2}, 1),
        (2, {"id": 3}, 1),
        (3, None, 1),
        (4, None, 1),
    ]
    assert all(fault.place.endswith("-0") for fault in bad)
    assert "not JSON" in bad[0].reason
    assert bad[0].raw == "{nonsense"
    assert "column 'name'" in bad[1].reason
    assert bad[2].reason.startswith("key:")
    assert bad[3].reason == "the record has no key"


def test_append_without_a_value_and_with_an_unknown_field(kafka_broker: KafkaBroker) -> None:
    records: list[Record] = [(None, None), (None, {"id": 1, "other": 2}), (None, [1]), (None, order(2))]
    found, bad = read_all(kafka_broker, records)
    assert [row["id"] for row in found] == [2]
    assert [fault.line for fault in bad] == [0, 1, 2]
    assert "ignore_extra" in bad[1].reason
    assert bad[1].key is None
    found, bad = read_all(kafka_broker, records, ignore_extra="true")
    assert [row["id"] for row in found] == [1, 2]


@pytest.mark.parametrize(
    ("key_format", "key"), [("json", b"17"), ("json", b'{"id": 17, "more": 1}'), ("text", b"17"), ("none", None)]
)
def test_keys_of_every_format(kafka_broker: KafkaBroker, key_format: str, key: bytes | None) -> None:
    records: list[Record] = [(key, {"name": "x", "amount": 1}), (key, None)]
    if key is None:
        records = [(None, order(17))]
    found, bad = read_all(kafka_broker, records, envelope="upsert", key_format=key_format)
    assert not bad
    assert [(row["id"], row[OP]) for row in found] == [(17, 0), (17, 1)][: len(records)]


def test_csv(kafka_broker: KafkaBroker) -> None:
    lines = [
        b'1,"a,""b""",2.50',
        b"2,,3\n",
        b'3,"",1',
        b"4,x",
        b'5,"x,1',
        b'6,x"y,1',
        b"x,y,1",
        b"\xff,y,1",
        b"9,e\xc3\xa9,",
    ]
    found, bad = read_all(kafka_broker, [(None, line) for line in lines], format="csv")
    assert plain(found) == [
        (1, 'a,"b"', Decimal("2.50"), 0),
        (2, None, Decimal("3.00"), 0),
        (3, "", Decimal("1.00"), 0),
        (9, "eé", None, 0),
    ]
    assert [fault.line for fault in bad] == [3, 4, 5, 6, 7]
    assert "the record has 2 fields, expected 3" in bad[0].reason


def test_csv_upsert_has_its_key_in_the_key(kafka_broker: KafkaBroker) -> None:
    found, bad = read_all(kafka_broker, [(b"1", b"a;2"), (b"2", None)], format="csv", envelope="upsert", delimiter=";")
    assert plain(found) == [(1, "a", Decimal("2.00"), 0), (2, None, None, 1)]
    assert not bad


RAW = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("topic", pa.string()),
    ]
)


def test_raw_records_are_unchanged(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    headers = [("a", b"1"), ("b", None), ("a", b"2")]
    produce(kafka_broker, topic, [(b"k", b"\xff")], timestamp=int(at.timestamp() * 1000), headers=headers)
    produce(kafka_broker, topic, [(None, b""), (b"\xff", b"x")])
    source = open_source(table(kafka_broker, topic, RAW, (), format="raw"))
    offer = wait_for_offer(source, first(source), count=3)
    one, two = rows(source, offer)
    assert one == {
        "key": "k",
        "value": b"\xff",
        "timestamp": at,
        "headers": [("a", "2"), ("b", None)],
        "partition": 0,
        "offset": 0,
        "topic": topic,
        OP: 0,
    }
    assert (two["key"], two["value"], two["headers"]) == (None, b"", [])
    [fault] = faults(source, offer)
    assert fault.line == 2
    assert "column 'key'" in fault.reason
    source.close()


def test_raw_upsert_deletes_by_tombstone(kafka_broker: KafkaBroker) -> None:
    schema = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])
    found, bad = read_all(
        kafka_broker, [(b"a", b"1"), (b"a", None)], format="raw", envelope="upsert", schema=schema, key=("key",)
    )
    assert plain(found) == [(b"a", b"1", 0), (b"a", None, 1)]
    assert not bad


def change(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "source": {"table": "orders"}, "ts_ms": 5}


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_debezium(kafka_broker: KafkaBroker, is_wrapped: bool) -> None:
    def wrapped(value: Any) -> Any:
        return {"schema": {"type": "struct", "fields": []}, "payload": value} if is_wrapped else value

    records = [
        ({"id": 1}, change("r", None, order(1))),
        ({"id": 2}, change("c", None, order(2))),
        ({"id": 1}, change("u", None, order(1, "new"))),
        ({"id": 2}, change("u", order(2), order(3))),
        ({"id": 1}, change("d", order(1))),
        ({"id": 1}, None),
        ({"id": 9}, change("d")),
        (None, change("m")),
        ({"id": 4}, change("u")),
        ({"id": 5}, {"x": 1}),
    ]
    made: list[Record] = [
        (key if key is None else wrapped(key), value if value is None else wrapped(value)) for key, value in records
    ]
    found, bad = read_all(kafka_broker, made, envelope="debezium")
    assert [(row["id"], row["name"], row[OP]) for row in found] == [
        (1, "x", 0),
        (2, "x", 0),
        (1, "new", 0),
        (2, "x", 1),
        (3, "x", 0),
        (1, "x", 1),
        (1, None, 1),
        (9, None, 1),
    ]
    assert [(fault.line, key_of(fault)) for fault in bad] == [(8, {"id": 4}), (9, {"id": 5})]


def test_debezium_of_a_table_without_a_key_deletes_whole_rows(kafka_broker: KafkaBroker) -> None:
    schema = pa.schema([field.with_nullable(True) for field in ORDERS])
    records: list[Record] = [
        (None, change("c", None, order(1))),
        (None, change("u", order(1), order(1, "y"))),
        (None, change("d", order(1, "y"))),
        (None, change("u", None, order(1, "z"))),
    ]
    found, bad = read_all(kafka_broker, records, envelope="debezium", schema=schema, key=())
    assert [(row["name"], row[OP]) for row in found] == [("x", 0), ("x", 1), ("y", 0), ("y", 1)]
    assert [fault.line for fault in bad] == [3]
    assert "REPLICA IDENTITY FULL" in bad[0].reason


def test_debezium_values_are_converted_by_their_schema(kafka_broker: KafkaBroker) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("day", pa.date32()),
            pa.field("at", pa.timestamp("us")),
            pa.field("price", pa.decimal128(10, 2)),
        ]
    )
    names: dict[str, dict[str, Any]] = {
        "id": {"type": "int64"},
        "day": {"type": "int32", "name": "io.debezium.time.Date"},
        "at": {"type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        "price": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
    }
    row_schema = [{"field": name, **described} for name, described in names.items()]
    described = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": row_schema}]}
    after = {"id": 1, "day": 20454, "at": 1767225600000001, "price": "MDk="}
    records: list[Record] = [({"id": 1}, {"schema": described, "payload": change("c", None, after)})]
    found, bad = read_all(kafka_broker, records, envelope="debezium", schema=schema)
    assert not bad
    at = datetime(2026, 1, 1, 0, 0, 0, 1)  # noqa: DTZ001 - it has no zone
    assert plain(found) == [(1, date(2026, 1, 1), at, Decimal("123.45"), 0)]


def test_debezium_a_truncation_stalls_the_source(kafka_broker: KafkaBroker) -> None:
    """If the source skipped it, the table would keep rows that no longer exist upstream."""
    with pytest.raises(SourceFailed, match="truncated upstream"):
        read_all(kafka_broker, [(None, change("t"))], envelope="debezium")


def test_rows_are_arrow_columns_for_any_number_of_rows(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [(None, json.dumps(order(n)).encode(), n % 2) for n in range(20_000)])
    source = open_source(table(kafka_broker, topic))
    assert len(all_rows(source)) == 20_000
    source.close()
