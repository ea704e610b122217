"""Topics of the broker that tests share, records in them, and the rows that a source reads from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from evertide.brokers import describe
from evertide.runtime import SystemRuntime
from evertide.sources.contract import OP, Fault, Limit, Offer, Source, TableDeclaration
from evertide.sources.kafka.fetch import read_ends
from evertide.sources.registry import open_sources
from tests.servers.kafka import KafkaBroker

LIMIT = Limit(rows=100_000, bytes=1 << 30)
ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("amount", pa.decimal128(10, 2)),
    ]
)
RUNTIME = SystemRuntime()
Record = tuple[Any, Any] | tuple[Any, Any, int]
"""Key, value, and the partition (default 0). Values other than bytes are written as JSON; None stays None."""


def admin(broker: KafkaBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.brokers, "log_level": 0})


def new_topic(broker: KafkaBroker, partitions: int = 1, name: str = "", **config: str) -> str:
    """A new topic for a test. When this returns, the broker knows and leads it."""
    name = name or f"t-{RUNTIME.new_id()}"
    client = admin(broker)
    options = {key.replace("_", "."): value for key, value in config.items()}
    client.create_topics([NewTopic(name, partitions, 1, config=options)])[name].result()
    for _ in range(100):
        try:
            describe(client, name)
            read_ends(client, name, range(partitions))
        except Exception:  # noqa: BLE001 - until it is there
            RUNTIME.sleep_s(0.05)
        else:
            break
    return name


def encode(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def produce(broker: KafkaBroker, topic: str, records: Iterable[Record], **more: Any) -> None:
    """When this returns, the broker has all records."""
    producer = Producer({"bootstrap.servers": broker.brokers, "linger.ms": 0, "log_level": 0})
    failed: list[Any] = []
    for record in records:
        key, value, partition = record if len(record) == 3 else (*record, 0)
        producer.produce(
            topic,
            encode(value),
            encode(key),
            partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
            **more,
        )
    assert producer.flush(30) == 0
    assert not failed, failed


def order(number: int | None, name: str | None = "x", amount: Any = 1) -> dict[str, Any]:
    return {"id": number, "name": name, "amount": amount}


def table(
    broker: KafkaBroker, topic: str, schema: pa.Schema = ORDERS, key: Sequence[str] = ("id",), **options: str
) -> TableDeclaration:
    given = {"brokers": broker.brokers, "topic": topic, "format": "json", **options}
    return TableDeclaration("orders", schema, tuple(key), "kafka", given, "shop.sql, line 7")


def open_source(declaration: TableDeclaration, base: Path = Path()) -> Source:
    (source,) = open_sources([declaration], runtime=RUNTIME, base=base)
    return source


def first(source: Source) -> str:
    """The position at which the source begins: it is determined once, and bound by itself."""
    offer = source.offer(source.start, LIMIT)
    assert offer is not None
    assert offer.fragments == ()
    return offer.after


def wait_for_offer(source: Source, position: str, limit: Limit = LIMIT, count: int = 1) -> Offer:
    """An offer of at least `count` records: they exist, but may need several fetches."""
    for _ in range(1000):
        offer = source.offer(position, limit)
        if offer is not None and offer.rows >= count:
            return offer
        RUNTIME.sleep_s(0.02)
    raise AssertionError(f"{count} records were not offered")


def rows(source: Source, offer: Offer) -> list[dict[str, Any]]:
    found = [batch.rows.to_pylist() for fragment in offer.fragments for batch in source.read(fragment)]
    return [row for several in found for row in several]


def faults(source: Source, offer: Offer) -> list[Fault]:
    return [fault for fragment in offer.fragments for batch in source.read(fragment) for fault in batch.faults]


def positions(source: Source, limit: Limit = LIMIT, position: str = "") -> list[tuple[str, Offer]]:
    """All offers until there is no more input."""
    found = []
    at = position or first(source)
    while (offer := source.offer(at, limit)) is not None:
        found.append((at, offer))
        at = offer.after
    return found


def all_rows(source: Source, limit: Limit = LIMIT) -> list[dict[str, Any]]:
    """All rows, without `__op` where it is the default."""
    return [_short(row) for _, offer in positions(source, limit) for row in rows(source, offer)]


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != OP or value}
