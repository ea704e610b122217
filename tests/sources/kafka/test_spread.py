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
from evertide.sources.kafka.place import Piece, Range
from evertide.sources.kafka.source import KafkaSource
from evertide.sources.kafka.spread import planned
from tests.servers.kafka import KafkaBroker
from tests.sources.kafka.kit import first, new_topic, offered, opened, order, positions, produce, rows, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = Limit(1000, 1 << 20)


@dataclass(frozen=True)
class Here:
    """Does all work at once, and knows how often it was asked."""

    asked: list[int]
    are_remote: bool = True

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        self.asked.append(len(tasks))
        return [work(task) for task in tasks]


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "_MANY", 20)


def spread_source(broker: KafkaBroker, topic: str, workers: Executors, /, **options: str) -> KafkaSource:
    source = opened(table(broker, topic, **{"executors": "always", **options}))
    assert isinstance(source, KafkaSource)
    assert isinstance(source, Distributed)
    source.distribute(workers)
    return source


def pieces(offer: Offer) -> list[Piece]:
    return [msgspec.json.decode(one.where, type=Piece) for one in offer.fragments if isinstance(one, Place)]


def filled(broker: KafkaBroker, count: int = 300) -> str:
    topic = new_topic(broker, 3)
    records: list[Any] = [({"id": n}, order(n), n % 3) for n in range(count)]
    records[7] = ({"id": 7}, b"{", 1)
    records[8] = ({"id": 2}, None, 2)
    produce(broker, topic, records)
    return topic


def test_j4_whoever_reads_finds_the_same(kafka_broker: KafkaBroker, spark: SparkSession) -> None:
    """Rows, faults, positions, counts and checksums; and what one bound, the other reads again."""
    topic = filled(kafka_broker)
    far = spread_source(kafka_broker, topic, SparkExecutors(spark), envelope="upsert")
    near = opened(table(kafka_broker, topic, envelope="upsert"))
    at = first(near)
    theirs, ours = far.offer(at, LIMIT), offered(near, at, LIMIT, 300)
    assert theirs == ours
    [fragment] = ours.fragments
    expected = list(near.read(fragment))
    assert list(far.read(fragment)) == expected, "as it was just read"
    assert sum(len(batch.faults) for batch in expected) == 1
    again = spread_source(kafka_broker, topic, SparkExecutors(spark), envelope="upsert")
    assert list(again.read(fragment)) == expected, "by executors of another process"
    assert far.offer(ours.after, LIMIT) is None, "and the driver goes on by itself where there is little"
    produce(kafka_broker, topic, [({"id": 1}, order(1), 0)])
    assert [row["id"] for row in rows(far, offered(far, ours.after))] == [1]
    for source in (far, near, again):
        source.close()


def _kills_itself(flag: str, work: Callable[[Any], Any], task: Any) -> Any:
    """The first that comes here is gone in the middle of its task, with its process."""
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
        return self.inner.map(partial(_kills_itself, str(self.flag), work), tasks)


def test_an_executor_that_is_lost_in_the_middle_is_replaced(
    kafka_broker: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    topic = filled(kafka_broker)
    far = spread_source(kafka_broker, topic, Killing(SparkExecutors(spark), tmp_path / "killed"), envelope="upsert")
    near = opened(table(kafka_broker, topic, envelope="upsert"))
    at = first(near)
    assert far.offer(at, LIMIT) == offered(near, at, LIMIT, 300)
    assert (tmp_path / "killed").exists()
    far.close()
    near.close()


def test_what_was_bound_and_differs_is_told_alike(kafka_broker: KafkaBroker) -> None:
    topic = filled(kafka_broker)
    near, far = opened(table(kafka_broker, topic)), spread_source(kafka_broker, topic, Here([]))
    [fragment] = offered(near, first(near), LIMIT, 300).fragments
    assert isinstance(fragment, Place)
    piece = msgspec.json.decode(fragment.where, type=Piece)
    lied = [msgspec.structs.replace(one, checksum="0" * 32) for one in piece.ranges]
    other = Place(msgspec.json.encode(msgspec.structs.replace(piece, ranges=tuple(lied))).decode())
    said = []
    for source in (far, opened(table(kafka_broker, topic))):
        with pytest.raises(SourceChanged, match="expected 100 records in the offsets from 0 to 99") as raised:
            list(source.read(other))
        said.append(str(raised.value))
        source.close()
    assert said[0] == said[1]
    near.close()


def test_errors_keep_their_words(kafka_broker: KafkaBroker, spark: SparkSession) -> None:
    """A truncation upstream stalls the source, and no task is tried again for it."""
    topic = new_topic(kafka_broker, 2)
    change = {"before": None, "after": order(1), "op": "c"}
    produce(kafka_broker, topic, [({"id": 1}, change, n % 2) for n in range(60)])
    produce(kafka_broker, topic, [({"id": 1}, {"before": None, "after": None, "op": "t"}, 1)])
    near = opened(table(kafka_broker, topic, envelope="debezium"))
    far = spread_source(kafka_broker, topic, SparkExecutors(spark), envelope="debezium")
    at = first(near)
    offer = offered(near, at, LIMIT, 61)
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


def test_executors_that_fail_stall_the_source_only(kafka_broker: KafkaBroker, spark: SparkSession) -> None:
    topic = filled(kafka_broker)
    source = spread_source(kafka_broker, topic, Broken())
    with pytest.raises(SourceFailed, match=r"read by Spark's executors.*the cluster is away"):
        source.offer(first(source), LIMIT)
    source.close()
    with pytest.raises(WorkFailed, match="ZeroDivisionError"):
        SparkExecutors(spark).map(lambda number: 1 // number, [0])


def test_bytes_are_bounded_and_nothing_is_left_out(kafka_broker: KafkaBroker) -> None:
    asked: list[int] = []
    topic = filled(kafka_broker)
    source = spread_source(kafka_broker, topic, Here(asked))
    found = positions(source, Limit(90, 3000), first(source))
    assert len(asked) > 2
    assert all(offer.rows <= 90 for _, offer in found)
    assert max(offer.rows for _, offer in found) < 60, "3000 bytes are about 40 records"
    ranges = [one for _, offer in found for piece in pieces(offer) for one in piece.ranges]
    assert sum(one.records for one in ranges) == 300
    for partition in range(3):
        ends = [(one.first, one.last) for one in ranges if one.partition == partition]
        assert [last for _, last in ends[:-1]] == [begin for begin, _ in ends[1:]]
    source.close()


def test_offsets_without_records_are_passed(kafka_broker: KafkaBroker) -> None:
    """A transaction that was taken back, longer than what is read at once: it must not hold up what comes after."""
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
def test_who_reads_is_an_option(kafka_broker: KafkaBroker, option: str, elsewhere: bool, expected: int) -> None:
    """`auto` is for executors that do not take the driver's own processors; by default the driver reads."""
    asked: list[int] = []
    topic = filled(kafka_broker)
    source = spread_source(kafka_broker, topic, Here(asked, elsewhere), executors=option)
    assert opened(table(kafka_broker, topic))._asked.executors == "never"  # type: ignore[attr-defined]
    offered(source, first(source), LIMIT, 300)
    assert len(asked) == expected
    source.close()


def test_sparks_own_threads_are_not_elsewhere(spark: SparkSession) -> None:
    assert not SparkExecutors(spark).are_remote


def test_the_plan_takes_of_all_partitions_alike() -> None:
    following, begin, end = {0: 5, 1: 0, 2: 7, 3: 2}, dict.fromkeys(range(4), 0), {0: 1000, 1: 10, 2: 7, 3: 500}
    found = planned(following, begin, end, Limit(100, 1))
    assert found == [Range(0, 5, 50, 0, ""), Range(1, 0, 10, 0, ""), Range(3, 2, 47, 0, "")]
    assert planned(following, {**begin, 0: 6}, end, Limit(100, 1)) == [], "an offset that expired is told by others"
    assert planned(following, begin, {**end, 0: 4}, Limit(100, 1)) == []
    assert planned(following, begin, following, Limit(100, 1)) == []
