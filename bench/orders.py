"""Orders, for the benchmarks of connectors: the same rows upstream in Kafka, as JSON, and in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Producer

PARTITIONS = 4
COLUMNS = "id BIGINT NOT NULL, customer BIGINT, amount DECIMAL(10, 2), city STRING, at TIMESTAMP"
VIEW = (
    "CREATE MATERIALIZED VIEW per_city AS"
    " SELECT city, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY city"
)
POSTGRES = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount numeric(10, 2), city text, at timestamptz)",
    "CREATE PUBLICATION bench FOR TABLE orders",
    """
    CREATE PROCEDURE fill(first bigint, after bigint, step bigint) LANGUAGE plpgsql AS $$ BEGIN
        WHILE first < after LOOP
            INSERT INTO orders
            SELECT i, i * 7919 % 1000003, (i * 31 % 1000000) / 100.0, 'city-' || i % 500,
                timestamptz '2026-01-31 10:20:30Z' + i * interval '1 second'
            FROM generate_series(first, least(first + step, after) - 1) i;
            COMMIT;
            first := first + step;
        END LOOP;
    END $$
    """,
)
"""`fill` inserts rows in transactions of `step` rows."""

_QUEUE = 500_000


def fill_kafka(brokers: str, topic: str, first: int, count: int) -> None:
    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 50, "log_level": 0, "queue.buffering.max.messages": _QUEUE}
    )
    for number, content in _records(first, count):
        while True:
            try:
                producer.produce(topic, content, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def _records(first: int, count: int) -> Iterator[tuple[int, str]]:
    for number in range(first, first + count):
        minutes, second = divmod(number % 86400, 60)
        hour, minute = divmod(minutes, 60)
        content = (
            f'{{"id": {number}, "customer": {number * 7919 % 1000003}, "amount": {number * 31 % 1000000 / 100}, '
            f'"city": "city-{number % 500}", "at": "2026-01-31T{hour:02}:{minute:02}:{second:02}Z"}}'
        )
        yield number, content
