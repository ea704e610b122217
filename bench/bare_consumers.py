"""Plain consumers as peers of the connectors: they only receive a stream and decode it to Python values.

They store and check nothing. For Kafka, the consumer is `confluent_kafka` and the standard library's JSON; for
PostgreSQL, it is libpq, a decoder of pgoutput row by row, and a converter per column.
"""

from __future__ import annotations

import json
import select
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
from confluent_kafka import Consumer, TopicPartition
from psycopg import pq

_BATCH = 10_000
_HEAD = 25
"""Bytes before the payload: kind, two positions, a timestamp."""
_LENGTH = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_TYPES: Sequence[Callable[[str], Any]] = (int, int, Decimal, str, datetime.fromisoformat)


def consume_kafka(brokers: str, topic: str, following: dict[int, int], count: int) -> dict[int, int]:
    """Consume `count` records from these offsets, and return the offsets after them."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "plain", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, number, offset) for number, offset in following.items()])
    after = dict(following)
    while count:
        for message in consumer.consume(min(count, _BATCH), 1.0):
            assert message.error() is None, message.error()
            content: Any = message.value()
            json.loads(content)
            number: Any = message.partition()
            offset: Any = message.offset()
            after[number] = offset + 1
            count -= 1
    consumer.close()
    return after


def consume_postgres(dsn: str, slot: str, publication: str, count: int) -> None:
    """Consume `count` rows up to the end of their last transaction, and acknowledge it."""
    with closing(psycopg.connect(dsn, autocommit=True, replication="database")) as connection:
        protocol = connection.pgconn
        asked = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{publication}')"
        assert protocol.exec_(asked.encode()).status == pq.ExecStatus.COPY_BOTH
        protocol.nonblocking = 1
        end = 0
        while count or not end:
            size, content = protocol.get_copy_data(1)
            if size == 0:
                select.select([protocol.socket], [], [], 1.0)
                protocol.consume_input()
                continue
            assert size > 0
            message = bytes(content)
            if message[0] != 0x77:
                continue
            kind = message[_HEAD]
            if kind == 0x49:  # I
                _row(message)
                count -= 1
            end = struct.unpack_from(">Q", message, _HEAD + 10)[0] if kind == 0x43 and not count else 0
        protocol.put_copy_data(struct.pack(">cQQQqb", b"r", end, end, end, 0, 0))
        protocol.flush()


def _row(message: bytes) -> list[Any]:
    at = _HEAD + 6
    (columns,) = _SHORT.unpack_from(message, at)
    at += 2
    values: list[Any] = []
    for convert in _TYPES[:columns]:
        if message[at] == 0x6E:  # n
            values.append(None)
            at += 1
            continue
        begin = at + 5
        at = begin + _LENGTH.unpack_from(message, at + 1)[0]
        values.append(convert(message[begin:at].decode()))
    return values
