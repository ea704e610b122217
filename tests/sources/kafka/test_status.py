"""The status of a Kafka source: its lag, and that it reconnects."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka import Producer

from evertide.errors import SourceFailed
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status.status import SourceStatus, read_status
from evertide.settings import Settings
from evertide.shard.shard import Shards
from evertide.sources.contract import Lag, Limit, Monitored, Source
from tests.kit.small_engine import SmallEngine
from tests.pipeline.kit import SETTINGS, open_pipeline, storage
from tests.servers.kafka import KafkaBroker
from tests.sources.kafka.kit import (
    LIMIT,
    ORDERS,
    RUNTIME,
    admin,
    encode,
    first,
    new_topic,
    open_source,
    order,
    produce,
    rows,
    table,
    wait_for_offer,
)

WAIT_S = 60.0


def lag(source: Source) -> Lag:
    assert isinstance(source, Monitored)
    return source.lag


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = RUNTIME.monotonic_s() + WAIT_S
    while not is_so():
        assert RUNTIME.monotonic_s() < deadline_s
        RUNTIME.sleep_s(0.02)


def advance_until(pipeline: Pipeline, is_so: Callable[[], bool]) -> None:
    """Make transactions until the condition is true."""

    def advance_and_check() -> bool:
        pipeline.advance()
        return is_so()

    wait_until(advance_and_check)


def test_lag_counts_records_after_the_position_in_all_partitions(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [(None, order(n), n % 2) for n in range(20)])
    source = open_source(table(kafka_broker, topic))
    assert lag(source) == Lag(), "the lag is unknown before the first fetch"
    at = first(source)
    wait_for_offer(source, at, Limit(6, 1 << 20), 6)
    wait_until(lambda: lag(source).rows == 20)
    before_s = lag(source).seconds
    assert before_s is not None
    wait_until(lambda: (lag(source).seconds or 0) > before_s + 0.1)
    offer = wait_for_offer(source, at, Limit(6, 1 << 20), 6)
    source.acknowledge(offer.after)
    assert lag(source).rows == 14
    while (next_offer := source.offer(offer.after, LIMIT)) is not None:
        offer = next_offer
    source.acknowledge(offer.after)
    assert lag(source) == Lag(rows=0, seconds=0.0)
    produce(kafka_broker, topic, [(None, order(n), 0) for n in range(3)])
    wait_until(lambda: lag(source).rows == 3)  # while nothing is offered, fetches continue
    source.close()
    assert lag(source) == Lag()


def test_marks_of_transactions_do_not_count_as_lag(kafka_broker: KafkaBroker) -> None:
    """A transaction ends with a mark, which has an offset and is no record: by offsets alone, it would count as lag for
    ever.
    """
    topic = new_topic(kafka_broker)
    producer = Producer({"bootstrap.servers": kafka_broker.brokers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    source = open_source(table(kafka_broker, topic))
    at = first(source)
    producer.begin_transaction()
    producer.produce(topic, json.dumps(order(1)).encode())
    producer.commit_transaction(30)
    offer = wait_for_offer(source, at)
    source.acknowledge(offer.after)
    source.offer(offer.after, LIMIT)
    wait_until(lambda: source.offer(offer.after, LIMIT) is None and lag(source).rows == 0)
    source.close()


def test_a_restarting_broker_is_reported_and_no_record_is_lost(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [(None, order(n), n % 2) for n in range(20)])
    given = table(kafka_broker, topic)
    declared = DeclaredTable("orders", ORDERS, ("id",), "kafka", given.options, where="shop.sql:1")
    store = storage()
    with open_pipeline(store, SmallEngine([declared], []), settings=SETTINGS) as p:

        def read_own_status() -> SourceStatus:
            return next(one for one in p.status().sources if one.name == "orders")

        def read_stored_status() -> SourceStatus:
            p._leader_tasks._reporter.write_if_changed()
            shards = Shards(store.blob, store.meta, runtime=RUNTIME, settings=Settings())
            found = read_status(store, shards, p._context.journal, p._context.checkpoints)
            return next(one for one in found.sources if one.name == "orders")

        advance_until(p, lambda: len(p.view("orders").to_pylist()) == 20)
        advance_until(p, lambda: read_own_status().lag == Lag(rows=0, seconds=0.0))
        assert (read_own_status().state, read_stored_status().state) == ("running", "running")
        kafka_broker.stop()
        try:
            advance_until(p, lambda: read_own_status().state == "reconnecting")
            [problem] = read_own_status().problems
            assert (problem.error_code, problem.state) == ("source_away", "reconnecting")
            assert "no broker answers" in problem.why
            assert problem.wait_s is not None
            assert read_own_status().lag == Lag()
            advance_until(p, lambda: (read_own_status().problems[0].wait_s or 0) > (problem.wait_s or 0))
            assert read_own_status().problems[0].since_s == problem.since_s, "it is the same outage"
            assert p.status().state == "reconnecting"
            assert (read_stored_status().state, read_stored_status().problems[0].error_code) == (
                "reconnecting",
                "source_away",
            )
        finally:
            kafka_broker.start()
        produce(kafka_broker, topic, [(None, order(n), n % 2) for n in range(20, 25)])
        advance_until(p, lambda: len(p.view("orders").to_pylist()) == 25)
        advance_until(p, lambda: read_own_status().lag == Lag(rows=0, seconds=0.0))
        assert (read_own_status().state, read_own_status().problems, read_stored_status().state) == (
            "running",
            (),
            "running",
        )


def test_a_deleted_topic_is_not_reported_as_an_unreachable_broker(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    source = open_source(table(kafka_broker, topic))
    at = first(source)
    client = admin(kafka_broker)
    client.delete_topics([topic])[topic].result()

    def is_stalled() -> bool:
        with suppress(SourceFailed):
            source.offer(at, LIMIT)
        return isinstance(source, Monitored) and [one.error_code for one in source.problems] == ["source_changed"]

    wait_until(is_stalled)
    assert isinstance(source, Monitored)
    assert source.problems[0].state == "stalled"
    source.close()


def test_a_batch_that_is_too_large_when_decompressed_stops_its_partition_only(kafka_broker: KafkaBroker) -> None:
    """Fails if the error ends the whole offer: the records before the batch, and other partitions, would wait."""
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [(None, order(1)), (None, order(2), 1)])
    with_zstd = Producer(
        {"bootstrap.servers": kafka_broker.brokers, "compression.type": "zstd", "message.max.bytes": 100_000_000}
    )
    with_zstd.produce(topic, encode(order(3, "x" * 30_000_000)), None, 0)
    assert with_zstd.flush(60) == 0
    produce(kafka_broker, topic, [(None, order(4)), (None, order(5), 1)])
    bounds = {"kafka.fetch.max.bytes": "1000000", "kafka.receive.message.max.bytes": "1000512"}
    source = open_source(table(kafka_broker, topic, **bounds))
    at = first(source)
    found: set[int] = set()
    while found != {1, 2, 5}:
        offer = wait_for_offer(source, at)
        found |= {row["id"] for row in rows(source, offer)}
        at = offer.after
    with pytest.raises(SourceFailed, match=r"partition 0, offset 1: Decompression.* kafka.receive.message.max.bytes"):
        wait_for_offer(source, at)
    produce(kafka_broker, topic, [(None, order(6), 1)])
    offer = wait_for_offer(source, at)
    assert [row["id"] for row in rows(source, offer)] == [6]
    assert isinstance(source, Monitored)
    [problem] = source.problems
    assert (problem.state, problem.error_code) == ("stalled", "source_failed")
    assert "offset 1" in problem.why
    source.close()
    larger = open_source(table(kafka_broker, topic))
    assert [row["id"] for row in rows(larger, wait_for_offer(larger, offer.after, count=2))] == [3, 4]
    assert isinstance(larger, Monitored)
    assert larger.problems == ()
    larger.close()
