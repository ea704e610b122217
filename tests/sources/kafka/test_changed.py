"""J4: a topic that no longer has the bound records. And brokers that stop and restart."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from evertide.errors import SourceChanged, SourceFailed
from evertide.sources.contract import Limit, Offer, Source
from evertide.sources.kafka.fetch import MissingOffset
from evertide.sources.kafka.source import KafkaSource
from tests.servers.kafka import KafkaBroker
from tests.sources.kafka.kit import (
    LIMIT,
    RUNTIME,
    admin,
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


def read_elsewhere(broker: KafkaBroker, topic: str, offer: Offer) -> list[int]:
    """Read as after a restart: nothing is cached."""
    source = open_source(table(broker, topic))
    try:
        return [row["id"] for row in rows(source, offer)]
    finally:
        source.close()


def expire(broker: KafkaBroker, topic: str, before: int, partition: int = 0) -> None:
    client = admin(broker)
    (done,) = client.delete_records([TopicPartition(topic, partition, before)]).values()
    done.result()


def read_until_compacted(broker: KafkaBroker, topic: str, offer: Offer) -> None:
    """The broker compacts at some time after a segment is full or old."""
    for number in range(200):
        RUNTIME.sleep_s(0.12)
        produce(broker, topic, [({"id": 0}, order(100 + number))])
        assert read_elsewhere(broker, topic, offer) == list(range(10))


def bound(broker: KafkaBroker, topic: str) -> tuple[Source, Offer]:
    produce(broker, topic, [({"id": n % 3}, order(n)) for n in range(10)])
    source = open_source(table(broker, topic))
    offer = wait_for_offer(source, first(source), count=10)
    assert offer.rows == 10
    return source, offer


def test_j4_expired_offsets_are_source_changed(kafka_broker: KafkaBroker) -> None:
    """Without the count in the fragment, a replay would continue with fewer rows."""
    topic = new_topic(kafka_broker)
    source, offer = bound(kafka_broker, topic)
    assert read_elsewhere(kafka_broker, topic, offer) == list(range(10))
    expire(kafka_broker, topic, 4)
    with pytest.raises(SourceChanged, match=f"topic {topic}, partition 0.*had 10 records.*now have 0"):
        read_elsewhere(kafka_broker, topic, offer)
    expire(kafka_broker, topic, 10)
    with pytest.raises(SourceChanged, match=r"offsets 0 to 9 had 10 records .*now have 0"):
        read_elsewhere(kafka_broker, topic, offer)
    assert len(rows(source, offer)) == 10, "this process still has them in memory"
    source.close()


def test_j4_compacted_records_are_source_changed(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(
        kafka_broker,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.001",
        delete_retention_ms="0",
    )
    source, offer = bound(kafka_broker, topic)
    source.close()
    with pytest.raises(SourceChanged, match=f"topic {topic}, partition 0.*had 10 records.*now have [1-9]"):
        read_until_compacted(kafka_broker, topic, offer)


def test_j4_a_topic_that_was_created_again_is_source_changed(kafka_broker: KafkaBroker) -> None:
    """Detected by its id: the new topic has as many records as before."""
    topic = new_topic(kafka_broker)
    source, offer = bound(kafka_broker, topic)
    client = admin(kafka_broker)
    client.delete_topics([topic])[topic].result()
    RUNTIME.sleep_s(0.5)
    with pytest.raises(SourceChanged, match=f"{topic}.*does not exist any more"):
        source.offer(offer.after, LIMIT)
    new_topic(kafka_broker, name=topic)
    produce(kafka_broker, topic, [({"id": n % 3}, order(n)) for n in range(20)])
    RUNTIME.sleep_s(0.6)  # the source waits a little before its next request
    with pytest.raises(SourceChanged, match="created again"):
        source.offer(offer.after, LIMIT)
    with pytest.raises(SourceChanged, match="created again"):
        read_elsewhere(kafka_broker, topic, offer)
    source.close()


def test_j4_records_that_expired_before_the_read_stall_the_source(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    source, offer = bound(kafka_broker, topic)
    produce(kafka_broker, topic, [(None, order(n)) for n in range(10, 15)])
    source.close()
    expire(kafka_broker, topic, 12)
    source = open_source(table(kafka_broker, topic))
    with pytest.raises(
        SourceChanged, match=r"partition 0.*offset 10 is missing; the partition has the offsets from 12 to 15"
    ):
        wait_for_offer(source, offer.after)
    source.close()
    source = open_source(table(kafka_broker, topic, on_expired="skip"))
    [(_, gap), *more] = positions(source, LIMIT, offer.after)
    [fault] = faults(source, gap)
    assert (fault.place, fault.line) == (f"{topic}-0", 10)
    assert "from 10 to 11 expired" in fault.reason
    assert [row["id"] for _, each in more for row in rows(source, each)] == [12, 13, 14]
    other = open_source(table(kafka_broker, topic))
    assert faults(other, gap) == [fault], "the source reports the problem again"
    other.close()
    source.close()


def test_records_before_a_gap_are_offered_before_the_gap_is_skipped(kafka_broker: KafkaBroker) -> None:
    """Otherwise the position would skip records that were already fetched."""
    topic = new_topic(kafka_broker)
    bound(kafka_broker, topic)[0].close()
    source = open_source(table(kafka_broker, topic, on_expired="skip"))
    at = first(source)
    assert wait_for_offer(source, at, count=10).rows == 10
    produce(kafka_broker, topic, [(None, order(n)) for n in range(10, 15)])
    expire(kafka_broker, topic, 12)
    assert isinstance(source, KafkaSource)
    source._reader.lost[0] = MissingOffset(0, 10)  # as if the broker had reported it before the next fetch
    found = []
    for _ in range(3):
        offer = wait_for_offer(source, at, Limit(4, 1 << 20))
        found += [row["id"] for row in rows(source, offer)]
        assert faults(source, offer) == []
        at = offer.after
    assert found[:10] == list(range(10))
    source.close()


def test_two_partitions_whose_missing_offsets_exist_again(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [({"id": n}, order(n)) for n in range(10)])
    source = open_source(table(kafka_broker, topic))
    offer = wait_for_offer(source, first(source), count=10)
    assert isinstance(source, KafkaSource)
    source._reader.lost.update({number: MissingOffset(number, 0) for number in (0, 1)})
    assert source.offer(offer.after, LIMIT) is None
    produce(kafka_broker, topic, [({"id": n}, order(n)) for n in range(10, 20)])
    offer = wait_for_offer(source, offer.after, count=10)
    assert sorted(row["id"] for row in rows(source, offer)) == list(range(10, 20))
    source.close()


def test_a_broker_that_stops_stalls_the_source_and_nothing_is_lost(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [(None, order(n), n % 2) for n in range(20)])
    source = open_source(table(kafka_broker, topic))
    at, found = first(source), []
    offer = wait_for_offer(source, at, Limit(5, 1 << 20))
    kafka_broker.stop()
    try:
        found += rows(source, offer)
        at = offer.after
        for _ in range(3):
            with pytest.raises(SourceFailed, match=r"127\.0\.0\.1.*no broker answers"):
                wait_for_offer(source, at)
        began_s = RUNTIME.monotonic_s()
        with pytest.raises(SourceFailed):
            source.offer(at, LIMIT)
        assert RUNTIME.monotonic_s() - began_s < 0.1, "the source does not send a request each time"
    finally:
        kafka_broker.start()
    produce(kafka_broker, topic, [(None, order(n), n % 2) for n in range(20, 25)])
    deadline_s = RUNTIME.monotonic_s() + 30
    while len(found) < 25 and RUNTIME.monotonic_s() < deadline_s:
        try:
            next_offer = source.offer(at, LIMIT)
        except SourceFailed:
            RUNTIME.sleep_s(0.05)
            continue
        if next_offer is not None:
            found += rows(source, next_offer)
            at = next_offer.after
    assert sorted(row["id"] for row in found) == list(range(25))
    source.close()
