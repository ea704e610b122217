"""A topic as a source: what it offers, and that it can repeat an offer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.cimpl import NewPartitions

from evertide.journal.records import Place
from evertide.sources.contract import OP, Limit
from tests.servers.kafka import KafkaBroker
from tests.sources.kafka.kit import (
    LIMIT,
    RUNTIME,
    admin,
    all_rows,
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


def ids(found: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in found]


def test_rows_of_all_partitions_come_once_and_in_order(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 3)
    produce(kafka_broker, topic, [(None, order(number, amount="1.25"), number % 3) for number in range(300)])
    source = open_source(table(kafka_broker, topic))
    found = all_rows(source)
    assert sorted(ids(found)) == list(range(300))
    for partition in range(3):
        assert [number for number in ids(found) if number % 3 == partition] == list(range(partition, 300, 3))
    assert found[0]["amount"] == Decimal("1.25")
    source.close()


def test_an_offer_is_bounded_and_can_be_made_again(kafka_broker: KafkaBroker) -> None:
    """A repeated offer is the same. The source follows a peer's shorter position, without losing or repeating
    records.
    """
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [(None, order(number), number % 2) for number in range(100)])
    source = open_source(table(kafka_broker, topic))
    begin = first(source)
    small = Limit(10, 1 << 20)
    offer = wait_for_offer(source, begin, small, count=10)
    assert offer.rows == 10
    again = wait_for_offer(source, begin, small)
    assert again == offer
    assert ids(rows(source, offer)) == ids(rows(source, again))
    taken = [number for _, each in positions(source, small, begin) for number in ids(rows(source, each))]
    assert sorted(taken) == list(range(100))
    back = wait_for_offer(source, begin)
    assert ids(rows(source, back))[0] in (0, 1), "the source follows an earlier position, too"
    tiny = [each.rows for _, each in positions(source, Limit(100, 1), begin)]
    assert tiny == [1] * 100, "a single record may be larger than the limit"
    source.close()


def test_another_process_reads_an_offer_again(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [({"id": n}, order(n), n % 2) for n in range(50)])
    produce(kafka_broker, topic, [({"id": 3}, None, 1), ({"id": 4}, b"{", 0)])
    source, other = (open_source(table(kafka_broker, topic, envelope="upsert")) for _ in range(2))
    fragments = [fragment for _, offer in positions(source, Limit(7, 1 << 20)) for fragment in offer.fragments]
    assert len(fragments) > 2
    for fragment in fragments:
        assert isinstance(fragment, Place)
        assert list(source.read(fragment)) == list(other.read(fragment)) == list(other.read(fragment))
    source.close()
    other.close()


def test_there_is_no_offer_without_new_records_and_new_ones_are_offered_at_once(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    source = open_source(table(kafka_broker, topic))
    at = first(source)
    for number in range(5):
        assert source.offer(at, LIMIT) is None
        produce(kafka_broker, topic, [(None, order(number), number % 2)])
        offer = source.offer(at, LIMIT)
        assert offer is not None, "the offer has all records that existed at the request"
        assert ids(rows(source, offer)) == [number]
        at = offer.after
    began_s = RUNTIME.monotonic_s()
    assert [source.offer(at, LIMIT) for _ in range(20)] == [None] * 20
    assert RUNTIME.monotonic_s() - began_s < 1.0, "an idle source does not wait"
    source.close()


def test_only_committed_transactions_are_seen(kafka_broker: KafkaBroker) -> None:
    """Read uncommitted, the aborted row would be in the table, and never be deleted."""
    topic = new_topic(kafka_broker)
    producer = Producer({"bootstrap.servers": kafka_broker.brokers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    source = open_source(table(kafka_broker, topic))
    at = first(source)
    for number, is_good in ((1, True), (2, False), (3, True)):
        producer.begin_transaction()
        producer.produce(topic, json.dumps(order(number)).encode())
        producer.flush(10)
        assert source.offer(at, LIMIT) is None, "a transaction in progress"
        if is_good:
            producer.commit_transaction(10)
        else:
            producer.abort_transaction(10)
        if is_good:
            offer = wait_for_offer(source, at)
            assert ids(rows(source, offer)) == [number]
            assert ids(rows(open_source(table(kafka_broker, topic)), offer)) == [number]
            at = offer.after
    source.close()


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", [0, 1, 2, 3]),
        ("latest", [4]),
        ("timestamp:2026-01-02T00:00:00Z", [2, 3]),
        ("timestamp:2030-01-02", []),
        ('offsets:{"0": 3}', [3]),
    ],
)
def test_the_source_begins_at_the_position_of_the_option_start(
    kafka_broker: KafkaBroker, start: str, expected: list[int]
) -> None:
    topic = new_topic(kafka_broker, retention_ms="-1")
    for number in range(4):
        at_ms = int(datetime(2026, 1, 1 + number // 2, 12, tzinfo=UTC).timestamp() * 1000)
        produce(kafka_broker, topic, [(None, order(number))], timestamp=at_ms)
    source = open_source(table(kafka_broker, topic, start=start))
    at = first(source)
    source.close()
    source = open_source(table(kafka_broker, topic, start=start))
    if start == "latest":
        produce(kafka_broker, topic, [(None, order(4))])
    found = [number for _, offer in positions(source, LIMIT, at) for number in ids(rows(source, offer))]
    assert found == expected, "the start was bound, whatever was produced later"
    source.close()


def test_a_partition_that_is_added_is_read_from_its_beginning(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    produce(kafka_broker, topic, [(None, order(1))])
    source = open_source(table(kafka_broker, topic, start="latest"))
    at = first(source)
    client = admin(kafka_broker)
    client.create_partitions([NewPartitions(topic, 2)])[topic].result()
    RUNTIME.sleep_s(0.3)
    produce(kafka_broker, topic, [(None, order(2), 1), (None, order(3), 0)])
    found = [number for _, offer in positions(source, LIMIT, at) for number in ids(rows(source, offer))]
    assert sorted(found) == [2, 3]
    source.close()


def test_u5_the_last_change_of_a_key_by_offset_comes_last(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    changes = [(1, order(None, "a")), (1, order(None, "b")), (2, order(None, "c")), (1, None), (7, None)]
    changes += [(1, order(None, "d")), (2, None)]
    produce(kafka_broker, topic, [({"id": key}, value, key % 2) for key, value in changes])
    source = open_source(table(kafka_broker, topic, envelope="upsert"))
    said = [(row["id"], row["name"], row.get(OP, 0)) for row in all_rows(source)]
    odd = [(1, "a", 0), (1, "b", 0), (1, None, 1), (7, None, 1), (1, "d", 0)]
    assert [one for one in said if one[0] % 2] == odd
    assert [one for one in said if not one[0] % 2] == [(2, "c", 0), (2, None, 1)]
    source.close()


def test_the_consumer_group_has_the_acknowledged_position(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - for this one

    topic = new_topic(kafka_broker)
    produce(kafka_broker, topic, [(None, order(1)), (None, order(2))])
    source = open_source(table(kafka_broker, topic, group=f"g-{topic}"), tmp_path)
    [(_, offer)] = positions(source)
    source.acknowledge(offer.after)
    source.close()
    seen = Consumer({"bootstrap.servers": kafka_broker.brokers, "group.id": f"g-{topic}"})
    [found] = seen.committed([TopicPartition(topic, 0)], timeout=10)
    assert found.offset == 2
    seen.close()


def test_acknowledge_and_close_can_be_repeated(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    source = open_source(table(kafka_broker, topic, group=f"g-{topic}"))
    assert source.start == open_source(table(kafka_broker, topic)).start
    at = first(source)
    for _ in range(2):
        source.acknowledge(source.start)
        source.acknowledge(at)
    for _ in range(2):
        source.close()
