"""Ranges that Spark's executors read: the same rows, faults, counts and checksums as those that the driver reads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from confluent_kafka import Producer

from evertide.errors import SourceChanged, SourceFailed
from evertide.journal.records import Place
from evertide.sources.contract import Limit, Offer
from evertide.sources.executors import Distributed, Executors, SparkExecutors, WorkFailed
from evertide.sources.kafka import source as kafka_source
from evertide.sources.kafka.positions import OffsetRange, TopicFragment
from evertide.sources.kafka.source import KafkaSource
from evertide.sources.kafka.spread import plan_ranges
from tests.servers.kafka import KafkaBroker
from tests.sources.kafka.kit import (
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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = Limit(1000, 1 << 20)


@dataclass(frozen=True)
class Here:
    """Does all work at once, and records the number of tasks of each call."""

    task_counts: list[int]
    are_remote: bool = True

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        self.task_counts.append(len(tasks))
        return [work(task) for task in tasks]


@pytest.fixture(autouse=True)
def treat_few_records_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "_EXECUTOR_RECORDS_MIN", 20)


def spread_source(broker: KafkaBroker, topic: str, workers: Executors, /, **options: str) -> KafkaSource:
    source = open_source(table(broker, topic, **{"executors": "always", **options}))
    assert isinstance(source, KafkaSource)
    assert isinstance(source, Distributed)
    source.distribute(workers)
    return source


def topic_fragments(offer: Offer) -> list[TopicFragment]:
    return [msgspec.json.decode(one.where, type=TopicFragment) for one in offer.fragments if isinstance(one, Place)]


def fill_topic(broker: KafkaBroker, count: int = 300) -> str:
    topic = new_topic(broker, 3)
    records: list[Any] = [({"id": n}, order(n), n % 3) for n in range(count)]
    records[7] = ({"id": 7}, b"{", 1)
    records[8] = ({"id": 2}, None, 2)
    produce(broker, topic, records)
    return topic


def test_j4_driver_and_executors_read_the_same(kafka_broker: KafkaBroker, spark: SparkSession) -> None:
    """Rows, faults, positions, counts and checksums. Each reads again what the other bound."""
    topic = fill_topic(kafka_broker)
    far = spread_source(kafka_broker, topic, SparkExecutors(spark), envelope="upsert")
    near = open_source(table(kafka_broker, topic, envelope="upsert"))
    at = first(near)
    theirs, ours = far.offer(at, LIMIT), wait_for_offer(near, at, LIMIT, 300)
    assert theirs == ours
    [fragment] = ours.fragments
    expected = list(near.read(fragment))
    assert list(far.read(fragment)) == expected, "as it was just read"
    assert sum(len(batch.faults) for batch in expected) == 1
    again = spread_source(kafka_broker, topic, SparkExecutors(spark), envelope="upsert")
    assert list(again.read(fragment)) == expected, "by executors of another process"
    assert far.offer(ours.after, LIMIT) is None, "the driver reads few records itself"
    produce(kafka_broker, topic, [({"id": 1}, order(1), 0)])
    assert [row["id"] for row in rows(far, wait_for_offer(far, ours.after))] == [1]
    for source in (far, near, again):
        source.close()


def _kill_first_task(flag: str, work: Callable[[Any], Any], task: Any) -> Any:
    """The first task that calls this is killed with its process."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return work(task)
    work(task)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


@dataclass(frozen=True)
class Killing:
    inner: SparkExecutors
    flag: Path
    are_remote: bool = True

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return self.inner.map(partial(_kill_first_task, str(self.flag), work), tasks)


def test_an_executor_that_is_lost_during_a_task_is_replaced(
    kafka_broker: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    topic = fill_topic(kafka_broker)
    far = spread_source(kafka_broker, topic, Killing(SparkExecutors(spark), tmp_path / "killed"), envelope="upsert")
    near = open_source(table(kafka_broker, topic, envelope="upsert"))
    at = first(near)
    assert far.offer(at, LIMIT) == wait_for_offer(near, at, LIMIT, 300)
    assert (tmp_path / "killed").exists()
    far.close()
    near.close()


def test_changed_records_give_the_same_error_on_executors(kafka_broker: KafkaBroker) -> None:
    topic = fill_topic(kafka_broker)
    near, far = open_source(table(kafka_broker, topic)), spread_source(kafka_broker, topic, Here([]))
    [fragment] = wait_for_offer(near, first(near), LIMIT, 300).fragments
    assert isinstance(fragment, Place)
    topic_fragment = msgspec.json.decode(fragment.where, type=TopicFragment)
    lied = [msgspec.structs.replace(one, checksum="0" * 32) for one in topic_fragment.ranges]
    other = Place(msgspec.json.encode(msgspec.structs.replace(topic_fragment, ranges=tuple(lied))).decode())
    said = []
    for source in (far, open_source(table(kafka_broker, topic))):
        with pytest.raises(SourceChanged, match="offsets 0 to 99 had 100 records") as raised:
            list(source.read(other))
        said.append(str(raised.value))
        source.close()
    assert said[0] == said[1]
    near.close()


def test_errors_of_executors_keep_their_texts(kafka_broker: KafkaBroker, spark: SparkSession) -> None:
    """A truncation upstream stalls the source, and its task is not retried."""
    topic = new_topic(kafka_broker, 2)
    change = {"before": None, "after": order(1), "op": "c"}
    produce(kafka_broker, topic, [({"id": 1}, change, n % 2) for n in range(60)])
    produce(kafka_broker, topic, [({"id": 1}, {"before": None, "after": None, "op": "t"}, 1)])
    near = open_source(table(kafka_broker, topic, envelope="debezium"))
    far = spread_source(kafka_broker, topic, SparkExecutors(spark), envelope="debezium")
    at = first(near)
    offer = wait_for_offer(near, at, LIMIT, 61)
    with pytest.raises(SourceFailed, match="truncated upstream") as here:
        rows(near, offer)
    with pytest.raises(SourceFailed, match="truncated upstream") as there:
        far.offer(at, LIMIT)
    assert str(here.value) == str(there.value)
    near.close()
    far.close()


class Broken:
    are_remote = True

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        raise WorkFailed("the cluster is away")


def test_failing_executors_stall_only_the_source(kafka_broker: KafkaBroker, spark: SparkSession) -> None:
    topic = fill_topic(kafka_broker)
    source = spread_source(kafka_broker, topic, Broken())
    with pytest.raises(SourceFailed, match=r"read by Spark's executors.*the cluster is away"):
        source.offer(first(source), LIMIT)
    source.close()
    with pytest.raises(WorkFailed, match="ZeroDivisionError"):
        SparkExecutors(spark).map(lambda number: 1 // number, [0])


def test_bytes_are_bounded_and_no_record_is_skipped(kafka_broker: KafkaBroker) -> None:
    task_counts: list[int] = []
    topic = fill_topic(kafka_broker)
    source = spread_source(kafka_broker, topic, Here(task_counts))
    found = positions(source, Limit(90, 3000), first(source))
    assert len(task_counts) > 2
    assert all(offer.rows <= 90 for _, offer in found)
    assert max(offer.rows for _, offer in found) < 60, "3000 bytes are about 40 records"
    ranges = [one for _, offer in found for topic_fragment in topic_fragments(offer) for one in topic_fragment.ranges]
    assert sum(one.records for one in ranges) == 300
    for partition in range(3):
        ends = [(one.first, one.last) for one in ranges if one.partition == partition]
        assert [last for _, last in ends[:-1]] == [begin for begin, _ in ends[1:]]
    source.close()


def test_offsets_without_records_are_skipped(kafka_broker: KafkaBroker) -> None:
    """An aborted transaction that is longer than one read must not block the records after it."""
    topic = new_topic(kafka_broker)
    producer = Producer({"bootstrap.servers": kafka_broker.brokers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for is_good in (False, True):
        producer.begin_transaction()
        for number in range(100):
            producer.produce(topic, msgspec.json.encode(order(number)))
        producer.flush(10)
        (producer.commit_transaction if is_good else producer.abort_transaction)(10)
    source = spread_source(kafka_broker, topic, Here([]))
    found = positions(source, Limit(40, 1 << 20), first(source))
    assert found[0][1].fragments == ()
    assert [row["id"] for _, offer in found for row in rows(source, offer)] == list(range(100))
    source.close()


@pytest.mark.parametrize(
    ("option", "elsewhere", "expected"), [("auto", True, 1), ("auto", False, 0), ("never", True, 0)]
)
def test_the_option_executors_decides_which_process_reads(
    kafka_broker: KafkaBroker, option: str, elsewhere: bool, expected: int
) -> None:
    """`auto` is for executors that do not use the driver's own processors; by default the driver reads."""
    task_counts: list[int] = []
    topic = fill_topic(kafka_broker)
    source = spread_source(kafka_broker, topic, Here(task_counts, elsewhere), executors=option)
    assert open_source(table(kafka_broker, topic))._options.executors == "never"  # type: ignore[attr-defined]
    wait_for_offer(source, first(source), LIMIT, 300)
    assert len(task_counts) == expected
    source.close()


def test_threads_of_a_local_spark_are_not_remote(spark: SparkSession) -> None:
    assert not SparkExecutors(spark).are_remote


def test_the_plan_reads_all_partitions_evenly() -> None:
    following, begin, end = {0: 5, 1: 0, 2: 7, 3: 2}, dict.fromkeys(range(4), 0), {0: 1000, 1: 10, 2: 7, 3: 500}
    found = plan_ranges(following, begin, end, Limit(100, 1))
    assert found == [OffsetRange(0, 5, 50, 0, ""), OffsetRange(1, 0, 10, 0, ""), OffsetRange(3, 2, 47, 0, "")]
    assert plan_ranges(following, {**begin, 0: 6}, end, Limit(100, 1)) == [], "another check reports an expired offset"
    assert plan_ranges(following, begin, {**end, 0: 4}, Limit(100, 1)) == []
    assert plan_ranges(following, begin, following, Limit(100, 1)) == []
