"""Sinks that write to topics of the broker that tests share, and readers of their committed records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from evertide.rows.changes import DIFF
from evertide.runtime import SystemRuntime
from evertide.sinks.contract import Prepared, Sink, SinkDeclaration
from evertide.sinks.registry import prepare_sinks
from tests.servers.kafka import KafkaBroker
from tests.sinks.kit import accept_tables

REVENUE = pa.schema([pa.field("customer", pa.string()), pa.field("total", pa.int64())])
RUNTIME = SystemRuntime()


@dataclass(frozen=True)
class RangeRows:
    partition: int
    offset: int
    key: Any
    value: Any
    time: int
    sink: str


def prepare(
    broker: KafkaBroker,
    topic: str,
    schema: pa.Schema = REVENUE,
    key: Sequence[str] = ("customer",),
    base: Path = Path(),
    **options: str,
) -> Prepared:
    given = {"brokers": broker.brokers, "topic": topic, **options}
    declared = SinkDeclaration(
        "out", "revenue", schema, tuple(key), "kafka", given, "shop.sql, line 9", base, SystemRuntime()
    )
    return accept_tables(prepare_sinks([declared])["out"])


def open_sink(broker: KafkaBroker, topic: str, token: str = "", **options: Any) -> Sink:
    return prepare(broker, topic, **options).open(token or f"evertide-{topic}")


def changes(*rows: tuple[Any, ...], schema: pa.Schema = REVENUE) -> pa.Table:
    """Changes from rows, each with its diff at the end."""
    full = pa.schema([*schema, pa.field(DIFF, pa.int64(), nullable=False)])
    return pa.Table.from_pylist([dict(zip(full.names, row, strict=True)) for row in rows], full)


def read_committed(broker: KafkaBroker, topic: str) -> list[RangeRows]:
    """All committed records, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.brokers,
            "group.id": f"reader-{RUNTIME.new_id()}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
    )
    partitions = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    found: list[RangeRows] = []
    while partitions:
        for message in consumer.consume(1000, 0.05):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                partitions.discard(int(message.partition() or 0))
                continue
            headers: dict[str, Any] = dict(message.headers() or ())
            found.append(
                RangeRows(
                    int(message.partition() or 0),
                    int(message.offset() or 0),
                    _json(message.key()),
                    _json(message.value()),
                    int(headers.get("evertide-time", b"-1")),
                    headers.get("evertide-sink", b"").decode(),
                )
            )
    consumer.close()
    return sorted(found, key=lambda one: (one.partition, one.offset))


def _json(content: bytes | None) -> Any:
    return None if content is None else json.loads(content)


def fold_records(found: Sequence[RangeRows]) -> dict[str, Any]:
    """The content of a compacted topic: the last value of each key."""
    state: dict[str, Any] = {}
    for one in found:
        state[json.dumps(one.key)] = one.value
    return {key: value for key, value in state.items() if value is not None}
