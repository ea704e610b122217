"""Pipelines that read topics and write topics: killed, without brokers, and with changed or bad records."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from evertide.errors import SourceChanged
from evertide.pipeline.names import ERRORS
from evertide.pipeline.pipeline import Pipeline
from evertide.sinks.kafka.sink import KafkaSink
from evertide.sources.generated.seeded import RandomStream
from tests.kit.delivering import deliver_once
from tests.pipeline.kit import crash, rows_of
from tests.processes import running
from tests.servers.kafka import KafkaBroker
from tests.sinks.kafka.kit import RangeRows, fold_records, read_committed
from tests.sinks.kafka.worker import by_customer, open_worker
from tests.sources.kafka.kit import RUNTIME, admin, new_topic, produce

KEYS = 40
Upserts = list[tuple[dict[str, int], dict[str, Any] | None, int]]


def an_order(customer: str, amount: int) -> dict[str, Any]:
    return {"customer": customer, "amount": amount}


@contextmanager
def produce_continuously(broker: KafkaBroker, topic: str) -> Iterator[dict[int, dict[str, Any]]]:
    """Produce upserts and deletes until the block ends, into two partitions by key. Yields the expected content."""
    state: dict[int, dict[str, Any]] = {}
    stopping = threading.Event()
    rng = RandomStream(3)

    def run() -> None:
        producer = Producer({"bootstrap.servers": broker.brokers, "log_level": 0, "linger.ms": 5})
        while not stopping.is_set():
            for _ in range(5):
                key = rng.below(KEYS)
                is_delete = rng.below(5) == 0
                value = None if is_delete else an_order(f"c{rng.below(6)}", rng.below(100))
                content = None if value is None else json.dumps(value).encode()
                producer.produce(topic, content, json.dumps({"id": key}).encode(), key % 2)
                state.pop(key, None)
                if value is not None:
                    state[key] = value
            producer.flush(10)
            stopping.wait(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield state
    finally:
        stopping.set()
        thread.join()


def run_and_kill(storage: Path, broker: KafkaBroker, given: str, taken: str, lines: int) -> tuple[int, list[int]]:
    """Where the worker began, and the transactions that it printed until it was killed."""
    with running("tests.sinks.kafka.worker", storage, broker.brokers, given, taken) as worker:
        told = worker.lines(lines) + worker.kill()
    assert not any(line.startswith("error") for line in told), told
    return int(worker.began), [int(line) for line in told if line]


def settle(p: Pipeline, limit_s: float = 30.0) -> None:
    """Advance until there is no more input, and sinks have received everything."""
    deadline_s = RUNTIME.monotonic_s() + limit_s
    while p.advance() is not None or p.status().state != "running":
        assert RUNTIME.monotonic_s() < deadline_s, p.status()
    deliver_once(p)


def check_numbers(found: list[RangeRows]) -> None:
    """In each partition transaction numbers never decrease, and no key has one twice: no transaction was
    written twice.
    """
    for partition in {one.partition for one in found}:
        times = [one.time for one in found if one.partition == partition]
        assert times == sorted(times)
    twice = [each for each, count in Counter((json.dumps(one.key), one.time) for one in found).items() if count > 1]
    assert twice == []


def revenue(p: Pipeline) -> dict[str, Any]:
    rows = p.view("revenue").to_pylist()
    return {json.dumps({"customer": row["customer"]}): row for row in rows}


def test_j1_repeated_kills_with_kafka_as_source_and_sink(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """Without the number in Kafka's own transaction, a crash between commit and record would write a transaction twice;
    without fencing, the dead producer's open transaction would block readers.
    """
    given, taken = new_topic(kafka_broker, 2), new_topic(kafka_broker, 2)
    rng, used = RandomStream(5), [-1]
    with produce_continuously(kafka_broker, given) as state:
        for _ in range(5):
            began, told = run_and_kill(tmp_path / "s", kafka_broker, given, taken, 2 + rng.below(20))
            assert began >= used[-1], "a printed transaction was lost"
            assert told == list(range(began + 1, began + 1 + len(told))), "a transaction number was used twice"
            used += told
    with open_worker(tmp_path / "s", kafka_broker.brokers, given, taken, threads=False) as p:
        settle(p)
        orders = {row["id"]: an_order(row["customer"], row["amount"]) for row in p.view("orders").to_pylist()}
        assert orders == state, "the table has the content of the topic"
        expected = by_customer({"orders": p.view("orders").to_pylist()})
        assert sorted(p.view("revenue").to_pylist(), key=str) == sorted(expected, key=str)
        found = read_committed(kafka_broker, taken)
        assert fold_records(found) == revenue(p)
        assert len({one.time for one in found}) > 10
        check_numbers(found)


def expire(broker: KafkaBroker, topic: str, before: int) -> None:
    client = admin(broker)
    (done,) = client.delete_records([TopicPartition(topic, 0, before)]).values()
    done.result()


def some(first: int, last: int) -> Upserts:
    return [({"id": n}, an_order("ann", n), 0) for n in range(first, last)]


def test_j4_expired_offsets_affect_only_a_table_that_is_not_kept(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic = new_topic(kafka_broker)
    brokers = kafka_broker.brokers
    for is_kept in (True, False):
        p = open_worker(tmp_path / str(is_kept), brokers, topic, is_kept=is_kept, threads=False)
        p.advance()
        if is_kept:
            produce(kafka_broker, topic, some(0, 10))
        settle(p)
        assert rows_of(p, "revenue") == [("ann", 45)]
        crash(p)
    shutil.copytree(tmp_path / "False", tmp_path / "copy")
    with open_worker(tmp_path / "copy", brokers, topic, is_kept=False, threads=False) as p:
        assert rows_of(p, "revenue") == [("ann", 45)], "the source reads the records again"
    expire(kafka_broker, topic, 5)
    with open_worker(tmp_path / "True", brokers, topic, threads=False) as p:
        assert rows_of(p, "revenue") == [("ann", 45)]
    with pytest.raises(SourceChanged, match=f"'orders'.*topic {topic}, partition 0.*had 10 records.*now have 0"):
        open_worker(tmp_path / "False", brokers, topic, is_kept=False, threads=False)


def test_u5_and_u6_from_topic_to_topic(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """One key several times, a delete of a missing key, and an unreadable value, which deletes the row of its key."""
    given, taken = new_topic(kafka_broker, 2), new_topic(kafka_broker)
    with open_worker(tmp_path / "s", kafka_broker.brokers, given, taken, threads=False) as p:
        p.advance()
        records: list[Any] = [({"id": 1}, an_order("ann", 1), 1), ({"id": 1}, None, 1), ({"id": 9}, None, 1)]
        records += [({"id": 1}, an_order("ann", 5), 1), ({"id": 2}, an_order("bob", 2), 0), ({"id": 2}, None, 0)]
        produce(kafka_broker, given, [*records, ({"id": 4}, an_order("dan", 4), 0)])
        settle(p)
        assert rows_of(p, "orders") == [(1, "ann", 5), (4, "dan", 4)]
        produce(kafka_broker, given, [({"id": 1}, b"{", 1)])
        settle(p)
        assert rows_of(p, "orders") == [(4, "dan", 4)]
        [letter] = p.view(ERRORS).to_pylist()
        assert (letter["key"], letter["place"], letter["line"], letter["raw"]) == ('{"id": 1}', f"{given}-1", 4, "{")
        assert fold_records(read_committed(kafka_broker, taken)).keys() == {'{"customer": "dan"}'}
        produce(kafka_broker, given, [({"id": 1}, an_order("ann", 6), 1)])
        settle(p)
        assert rows_of(p, "orders") == [(1, "ann", 6), (4, "dan", 4)]
        assert p.view(ERRORS).to_pylist() == []
        found = read_committed(kafka_broker, taken)
        assert fold_records(found) == revenue(p)
        check_numbers(found)


def wait_for(what: str, is_so: Any, limit_s: float = 40.0) -> None:
    deadline_s = RUNTIME.monotonic_s() + limit_s
    while not is_so():
        assert RUNTIME.monotonic_s() < deadline_s, what
        RUNTIME.sleep_s(0.05)


def test_status_reports_a_broker_restart_and_no_row_is_lost(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertide.sinks.kafka.sink._ANSWER_LIMIT_S", 2.0)
    given, taken = new_topic(kafka_broker), new_topic(kafka_broker)
    with open_worker(tmp_path / "s", kafka_broker.brokers, given, taken) as p:
        running = threading.Thread(target=p.run)
        running.start()
        try:
            produce(kafka_broker, given, some(0, 5))
            wait_for("the first rows", lambda: fold_records(read_committed(kafka_broker, taken)))
            kafka_broker.stop()
            try:
                wait_for("an outage", lambda: p.status().state == "reconnecting")
                assert "no broker answers" in p.status().why
            finally:
                kafka_broker.start()
            produce(kafka_broker, given, some(5, 10))
            wait_for("running again", lambda: p.status().state == "running")
            wait_for("all rows", lambda: rows_of(p, "revenue") == [("ann", 45)])
            wait_for("the sink", lambda: fold_records(read_committed(kafka_broker, taken)) == revenue(p))
            check_numbers(read_committed(kafka_broker, taken))
        finally:
            p.stop()
            running.join()


class Killed(BaseException):
    """The process dies here."""


def test_j7_a_crash_between_kafkas_commit_and_the_record_of_it(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic has the transaction, the storage does not know. Without the number in the topic it would be written
    twice.
    """
    given, taken = new_topic(kafka_broker), new_topic(kafka_broker)

    def open_pipeline() -> Pipeline:
        return open_worker(tmp_path / "s", kafka_broker.brokers, given, taken, threads=False)

    def write_and_die(self: KafkaSink, time: int, changes: Any) -> None:
        written(self, time, changes)
        raise Killed

    written = KafkaSink.write
    p = open_pipeline()
    p.advance()
    for number in range(3):
        produce(kafka_broker, given, some(number, number + 1))
        with monkeypatch.context() as patch:
            patch.setattr(KafkaSink, "write", write_and_die)
            with pytest.raises(Killed):
                settle(p)
        crash(p)
        p = open_pipeline()
        settle(p)
    found = read_committed(kafka_broker, taken)
    assert [one.value["amount"] for one in found] == [0, 1, 3]
    check_numbers(found)
    assert p.status().sinks[0].behind == 0
    p.close()
