"""What a source of Kafka says of itself: how far behind it is, and that it connects again."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import Producer

from evertide.errors import SourceFailed
from evertide.pipeline.engine import DeclaredTable
from evertide.pipeline.pipeline import Pipeline
from evertide.pipeline.status.status import SourceStatus, read_status
from evertide.settings import Settings
from evertide.shard.shard import Shards
from evertide.sources.contract import Lag, Limit, Monitored, Source
from evertide.testing.small_engine import SmallEngine
from tests.pipeline.kit import SETTINGS, open_pipeline, storage
from tests.servers.kafka import KafkaBroker
from tests.sources.kafka.kit import (
    LIMIT,
    ORDERS,
    RUNTIME,
    admin,
    first,
    new_topic,
    offered,
    opened,
    order,
    produce,
    table,
)

WAIT_S = 60.0


def lag(source: Source) -> Lag:
    assert isinstance(source, Monitored)
    return source.lag


def eventually(is_so: Callable[[], bool]) -> None:
    deadline_s = RUNTIME.monotonic_s() + WAIT_S
    while not is_so():
        assert RUNTIME.monotonic_s() < deadline_s
        RUNTIME.sleep_s(0.02)


def until(pipeline: Pipeline, is_so: Callable[[], bool]) -> None:
    """Make transactions until something holds."""

    def advanced() -> bool:
        pipeline.advance()
        return is_so()

    eventually(advanced)


def test_lag_is_what_lies_beyond_the_position_of_all_partitions(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [(None, order(n), n % 2) for n in range(20)])
    source = opened(table(kafka_broker, topic))
    assert lag(source) == Lag(), "nothing is known before anything was fetched"
    at = first(source)
    offered(source, at, Limit(6, 1 << 20), 6)
    eventually(lambda: lag(source).rows == 20)
    before_s = lag(source).seconds
    assert before_s is not None
    eventually(lambda: (lag(source).seconds or 0) > before_s + 0.1)
    offer = offered(source, at, Limit(6, 1 << 20), 6)
    source.acknowledge(offer.after)
    assert lag(source).rows == 14
    while (next_offer := source.offer(offer.after, LIMIT)) is not None:
        offer = next_offer
    source.acknowledge(offer.after)
    assert lag(source) == Lag(rows=0, seconds=0.0)
    produce(kafka_broker, topic, [(None, order(n), 0) for n in range(3)])
    eventually(lambda: lag(source).rows == 3)  # while nothing is offered: fetches go on
    source.close()
    assert lag(source) == Lag()


def test_marks_of_transactions_are_no_rows_that_wait(kafka_broker: KafkaBroker) -> None:
    """A transaction ends with a mark, which has an offset and is no record: by offsets alone, it waits for ever."""
    topic = new_topic(kafka_broker)
    producer = Producer({"bootstrap.servers": kafka_broker.brokers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    source = opened(table(kafka_broker, topic))
    at = first(source)
    producer.begin_transaction()
    producer.produce(topic, json.dumps(order(1)).encode())
    producer.commit_transaction(30)
    offer = offered(source, at)
    source.acknowledge(offer.after)
    source.offer(offer.after, LIMIT)
    eventually(lambda: source.offer(offer.after, LIMIT) is None and lag(source).rows == 0)
    source.close()


def test_a_broker_that_restarts_is_told_of_and_nothing_is_lost(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 2)
    produce(kafka_broker, topic, [(None, order(n), n % 2) for n in range(20)])
    given = table(kafka_broker, topic)
    declared = DeclaredTable("orders", ORDERS, ("id",), "kafka", given.options, where="shop.sql:1")
    store = storage()
    with open_pipeline(store, SmallEngine([declared], []), settings=SETTINGS) as p:

        def told() -> SourceStatus:
            return next(one for one in p.status().sources if one.name == "orders")

        def there() -> SourceStatus:
            p._leader_tasks._reporter.once()
            shards = Shards(store.blob, store.meta, runtime=RUNTIME, settings=Settings())
            found = read_status(store, shards, p._context.journal, p._context.checkpoints)
            return next(one for one in found.sources if one.name == "orders")

        until(p, lambda: len(p.view("orders").to_pylist()) == 20)
        until(p, lambda: told().lag == Lag(rows=0, seconds=0.0))
        assert (told().state, there().state) == ("running", "running")
        kafka_broker.stop()
        try:
            until(p, lambda: told().state == "reconnecting")
            [problem] = told().problems
            assert (problem.error_code, problem.state) == ("source_away", "reconnecting")
            assert "no broker answers" in problem.why
            assert problem.wait_s is not None
            assert told().lag == Lag()
            until(p, lambda: (told().problems[0].wait_s or 0) > (problem.wait_s or 0))
            assert told().problems[0].since_s == problem.since_s, "it is the same outage"
            assert p.status().state == "reconnecting"
            assert (there().state, there().problems[0].error_code) == ("reconnecting", "source_away")
        finally:
            kafka_broker.start()
        produce(kafka_broker, topic, [(None, order(n), n % 2) for n in range(20, 25)])
        until(p, lambda: len(p.view("orders").to_pylist()) == 25)
        until(p, lambda: told().lag == Lag(rows=0, seconds=0.0))
        assert (told().state, told().problems, there().state) == ("running", (), "running")


def test_a_topic_that_was_deleted_is_no_broker_that_is_away(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    source = opened(table(kafka_broker, topic))
    at = first(source)
    client = admin(kafka_broker)
    client.delete_topics([topic])[topic].result()

    def is_stalled() -> bool:
        with suppress(SourceFailed):
            source.offer(at, LIMIT)
        return isinstance(source, Monitored) and [one.error_code for one in source.problems] == ["source_changed"]

    eventually(is_stalled)
    assert isinstance(source, Monitored)
    assert source.problems[0].state == "stalled"
    source.close()
