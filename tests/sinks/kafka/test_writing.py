"""The Kafka sink by itself: what it writes, that it writes it once, and which process may write."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from evertide.errors import InvalidInput, SinkFailed
from tests.servers.kafka import PASSWORD, USER, KafkaBroker
from tests.sinks.kafka.kit import RUNTIME, changes, fold_records, open_sink, prepare, read_committed
from tests.sinks.kit import TEXTS, split_into_pieces, text_changes
from tests.sources.kafka import kit as sources
from tests.sources.kafka.kit import admin, new_topic
from tests.sources.kit import every_kind


def test_upserts_and_tombstones_with_the_number_in_the_headers(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 3)
    sink = open_sink(kafka_broker, topic)
    assert sink.last() is None
    sink.write(3, changes(("ann", 1, 1), ("bob", 2, 1)))
    sink.write(5, changes(("ann", 1, -1), ("ann", 7, 1), ("bob", 2, -1)))
    sink.close()
    found = read_committed(kafka_broker, topic)
    assert {one.sink for one in found} == {f"evertide-{topic}"}
    by_key = {
        name: [(one.time, one.value) for one in found if one.key == {"customer": name}] for name in ("ann", "bob")
    }
    assert by_key["ann"] == [(3, {"customer": "ann", "total": 1}), (5, {"customer": "ann", "total": 7})]
    assert by_key["bob"] == [(3, {"customer": "bob", "total": 2}), (5, None)]


def test_j7_a_number_that_the_topic_has_is_skipped(kafka_broker: KafkaBroker) -> None:
    """Without the comparison, a crash between the commit and the record of it would double the rows."""
    topic = new_topic(kafka_broker)
    sink = open_sink(kafka_broker, topic)
    sink.write(3, changes(("ann", 1, 1)))
    sink.write(3, changes(("ann", 1, 1)))
    sink.close()
    sink = open_sink(kafka_broker, topic)
    assert sink.last() == 3
    sink.write(2, changes(("bob", 1, 1)))
    sink.write(3, changes(("ann", 1, 1)))
    sink.write(4, changes(("bob", 4, 1)))
    sink.close()
    assert [(one.time, one.key["customer"]) for one in read_committed(kafka_broker, topic)] == [(3, "ann"), (4, "bob")]


def die_before_commit(sink: Any) -> None:
    """All records were sent, and the process dies before it commits."""
    sink._producer.begin_transaction()
    for _ in range(5):
        sink._producer.produce(sink._topic, b"{}", b"{}", headers=[("evertide-time", b"9")])
    assert sink._producer.flush(10) == 0


def test_a_crash_between_send_and_commit_leaves_nothing_visible(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    sink = open_sink(kafka_broker, topic)
    sink.write(1, changes(("ann", 1, 1)))
    die_before_commit(sink)
    assert [one.time for one in read_committed(kafka_broker, topic)] == [1]
    successor = open_sink(kafka_broker, topic)
    assert successor.last() == 1
    successor.write(9, changes(("bob", 1, 1)))
    assert [one.time for one in read_committed(kafka_broker, topic)] == [1, 9]
    successor.close()


def test_an_earlier_process_can_no_longer_write(kafka_broker: KafkaBroker) -> None:
    """The old process did not die: its next transaction fails as a whole, and no reader sees it."""
    topic = new_topic(kafka_broker)
    old = open_sink(kafka_broker, topic)
    old.write(1, changes(("ann", 1, 1)))
    new = open_sink(kafka_broker, topic)
    assert new.last() == 1
    with pytest.raises(SinkFailed, match=f"topic {topic}.*another process now writes"):
        old.write(2, changes(("old", 1, 1)))
    new.write(2, changes(("new", 1, 1)))
    assert [(one.time, one.key["customer"]) for one in read_committed(kafka_broker, topic)] == [(1, "ann"), (2, "new")]
    new.close()


def test_the_number_is_found_behind_many_records_of_others(
    kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with many records of aborted transactions. A scan of a fixed length would not find the number."""
    topic = new_topic(kafka_broker, 2)
    sink = open_sink(kafka_broker, topic)
    for number in range(1, 6):
        sink.write(number, changes((f"c{number}", number, 1)))
    die_before_commit(sink)
    sources.produce(kafka_broker, topic, [({"id": n}, {"id": n}, n % 2) for n in range(1000)])
    sink = open_sink(kafka_broker, topic)
    assert sink.last() == 5
    other = open_sink(kafka_broker, topic, "evertide-another")
    assert other.last() is None, "records of other producers are ignored"
    sink.close()
    other.close()
    monkeypatch.setattr("evertide.sinks.kafka.end._LOOK_BACK_MAX", 200)
    sink = open_sink(kafka_broker, topic)
    assert sink.last() is None
    assert "none of the last 200 records" in caplog.text
    sink.close()


def test_a_topic_that_was_created_again_is_not_mistaken_for_the_old_one(kafka_broker: KafkaBroker) -> None:
    """For an empty topic the sink reports that it would remember a number (`keeps_number`). The delivery, which has a
    record of its writes, stops there. Otherwise the new topic would lack everything that was written before.
    """
    topic = new_topic(kafka_broker)
    sink = open_sink(kafka_broker, topic)
    sink.write(3, changes(("ann", 1, 1)))
    sink.close()
    sink = open_sink(kafka_broker, topic)
    assert not sink.keeps_number
    sink.close()
    client = admin(kafka_broker)
    client.delete_topics([topic])[topic].result()
    RUNTIME.sleep_s(0.5)
    new_topic(kafka_broker, name=topic)
    sink = open_sink(kafka_broker, topic)
    assert sink.last() is None
    assert sink.keeps_number
    sink.close()


def test_append_writes_op_and_diff_and_keeps_the_order_of_equal_rows(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker, 4)
    sink = open_sink(kafka_broker, topic, key=())
    for time in range(1, 11):
        sink.write(time, changes(("ann", 1, 2 if time % 2 else -2), (f"c{time}", None, 1)))
    sink.close()
    found = read_committed(kafka_broker, topic)
    ann = [one for one in found if one.value["row"]["customer"] == "ann"]
    assert len({one.partition for one in ann}) == 1
    assert [(one.time, one.value["op"], one.value["diff"]) for one in ann] == [
        (time, "insert" if time % 2 else "delete", 2) for time in range(1, 11)
    ]
    assert len({one.partition for one in found}) > 1


def test_debezium_with_and_without_a_key(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    sink = open_sink(kafka_broker, topic, envelope="debezium")
    sink.write(1, changes(("ann", 1, 1)))
    sink.write(2, changes(("ann", 1, -1), ("ann", 2, 1)))
    sink.write(3, changes(("ann", 2, -1)))
    sink.close()
    one, two, three, tombstone = [each.value for each in read_committed(kafka_broker, topic)]
    assert (one["op"], one["before"], one["after"]) == ("c", None, {"customer": "ann", "total": 1})
    assert (two["op"], two["before"]["total"], two["after"]["total"]) == ("u", 1, 2)
    assert (three["op"], three["before"]["total"], three["after"]) == ("d", 2, None)
    assert tombstone is None
    assert one["source"]["collection"] == "revenue"
    bare = new_topic(kafka_broker)
    sink = open_sink(kafka_broker, bare, key=(), envelope="debezium")
    sink.write(1, changes(("ann", 1, 2), ("bob", 1, -1)))
    sink.close()
    assert [each.value["op"] for each in read_committed(kafka_broker, bare)] == ["c", "c", "d"]


def test_a_key_that_is_not_unique_is_refused_and_nothing_is_written(kafka_broker: KafkaBroker) -> None:
    topic = new_topic(kafka_broker)
    sink = open_sink(kafka_broker, topic)
    with pytest.raises(SinkFailed, match="columns that identify a row"):
        sink.write(1, changes(("bob", 0, 1), ("ann", 1, 1), ("ann", 2, 1)))
    sink.close()
    sink = open_sink(kafka_broker, topic)
    assert sink.last() is None
    assert read_committed(kafka_broker, topic) == []
    sink.close()


EVERYTHING: dict[str, Any] = {
    "tiny": 1,
    "small": -2,
    "int": 3,
    "big": 1 << 62,
    "single": 0.5,
    "double": 0.1,
    "truth": True,
    "text": 'é"\n',
    "bytes": b"\xff\x00",
    "day": dt.date(2026, 1, 2),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
    "local": dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - it has no zone
    "price": Decimal("1.250"),
    "wide": Decimal("9" * 38),
    "span": dt.timedelta(days=-3, hours=5, microseconds=7),
    "clock": dt.time(10, 20, 30, 5),
    "list": [1, None],
    "map": {"a": 1.5, "b": None},
    "struct": {"a": 1, "b": ["x"]},
}
EXTREMES: dict[str, Any] = {
    "single": math.inf,
    "double": -math.inf,
    "text": "",
    "bytes": b"",
    "span": dt.timedelta(0),
    "list": [],
    "map": {},
    "struct": {"a": None, "b": None},
}


def test_the_source_reads_the_records_of_the_sink(kafka_broker: KafkaBroker) -> None:
    """Every type, written and read back."""
    topic = new_topic(kafka_broker)
    schema = every_kind()
    rows = [{"number": number, **row} for number, row in enumerate((EVERYTHING, EXTREMES, {}))]
    sink = open_sink(kafka_broker, topic, schema=schema, key=("number",))
    table = pa.Table.from_pylist(rows, schema)
    sink.write(1, table.append_column(pa.field("__diff", pa.int64(), nullable=False), pa.array([1] * len(rows))))
    sink.close()
    source = sources.open_source(sources.table(kafka_broker, topic, schema, ("number",), envelope="upsert"))
    offer = sources.wait_for_offer(source, sources.first(source), count=3)
    assert sources.faults(source, offer) == []
    found = sources.rows(source, offer)
    assert pa.Table.from_pylist(found, schema).sort_by("number").to_pylist() == table.to_pylist()
    source.close()


def test_an_unreachable_broker_fails_the_sink_and_the_next_one_continues(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertide.sinks.kafka.sink._ANSWER_LIMIT_S", 2.0)
    topic = new_topic(kafka_broker)
    sink = open_sink(kafka_broker, topic)
    sink.write(1, changes(("ann", 1, 1)))
    kafka_broker.stop()
    try:
        with pytest.raises(SinkFailed, match=f"topic {topic} at 127"):
            sink.write(2, changes(("bob", 1, 1)))
        sink.close()
    finally:
        kafka_broker.start()
    sink = open_sink(kafka_broker, topic)
    assert sink.last() == 1
    sink.write(2, changes(("bob", 1, 1)))
    sink.close()
    assert fold_records(read_committed(kafka_broker, topic)).keys() == {'{"customer": "ann"}', '{"customer": "bob"}'}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"envelope": "upsert", "key": ()}, "set the option 'key' to its columns"),
        ({"envelope": "other"}, "expected one of 'append'"),
        ({"format": "xml"}, "expected one of 'json'"),
        ({"colour": "red"}, "has no option 'colour'"),
        ({"kafka.acks": "0"}, "Evertide sets this property"),
        ({"kafka.nonsense": "0"}, "No such configuration property"),
        ({"kafka.sasl.password": "hunter2"}, r"\$\{ENV:NAME\}"),
        ({"brokers": "localhost"}, "expected host:port"),
        ({"schema": pa.schema([("customer", pa.float64())])}, "may have different texts"),
    ],
)
def test_invalid_options_are_refused(kafka_broker: KafkaBroker, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as said:
        prepare(kafka_broker, "t", **options)
    assert "shop.sql, line 9, sink 'out'" in str(said.value)
    assert "hunter2" not in str(said.value)


def test_a_target_that_cannot_be_used_is_refused(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertide.brokers._PROBE_LIMIT_S", 0.7)
    with pytest.raises(InvalidInput, match=r"has no topic 'nowhere'; create the topic"):
        prepare(kafka_broker, "nowhere").probe()
    with pytest.raises(InvalidInput, match=r"no broker answers.*127\.0\.0\.1:1"):
        prepare(kafka_broker, "t", brokers="127.0.0.1:1").probe()
    topic = new_topic(kafka_broker)
    login: dict[str, Any] = {
        "brokers": kafka_broker.sasl_brokers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": "${FILE:secret}",
        "base": tmp_path,
    }
    (tmp_path / "secret").write_text("a-wrong-password-here\n")
    with pytest.raises(InvalidInput, match=r"(?i)authentication") as said:
        prepare(kafka_broker, topic, **login).probe()
    assert "a-wrong-password-here" not in str(said.value)
    (tmp_path / "secret").write_text(f"{PASSWORD}\n")
    prepare(kafka_broker, topic, **login).probe()
    assert PASSWORD not in repr(prepare(kafka_broker, topic, **login))


def test_an_open_transaction_of_another_producer_does_not_hide_committed_records(kafka_broker: KafkaBroker) -> None:
    """Readers of committed records stop before the first open transaction. A sink that reopens below one and relied on
    such a reader would write transaction 5 a second time.
    """
    topic = new_topic(kafka_broker)
    sink = open_sink(kafka_broker, topic)
    sink.write(3, changes(("ann", 1, 1)))
    foreign = Producer({"bootstrap.servers": kafka_broker.brokers, "transactional.id": f"foreign-{topic}"})
    foreign.init_transactions(10)
    foreign.begin_transaction()
    foreign.produce(topic, b"{}", b'"zoe"')
    foreign.flush(10)
    quiet = open_sink(kafka_broker, topic)  # no record of this sink is after the open transaction: no need to wait
    assert quiet.last() == 3
    quiet.close()
    again = open_sink(kafka_broker, topic)
    again.write(5, changes(("bob", 2, 1)))
    again.close()
    with pytest.raises(SinkFailed, match="open transaction of another producer"):
        open_sink(kafka_broker, topic)
    foreign.abort_transaction(10)
    final = open_sink(kafka_broker, topic)
    assert final.last() == 5
    final.write(5, changes(("bob", 2, 1)))
    final.close()
    assert [one.time for one in read_committed(kafka_broker, topic)] == [3, 5]


@pytest.mark.parametrize("envelope", ["upsert", "append"])
def test_a_large_transaction_is_one_kafka_transaction_of_all_its_pieces(
    kafka_broker: KafkaBroker, envelope: str
) -> None:
    topic = new_topic(kafka_broker, 2)
    sink = open_sink(kafka_broker, topic, envelope=envelope)
    names = [f"customer {number}" for number in range(40)]
    sink.write(4, split_into_pieces(changes(*((name, 1, 1) for name in names)), 4, ["customer"]))
    updates = [change for name in names[:20] for change in ((name, 1, -1), (name, 2, 1))]
    sink.write(6, split_into_pieces(changes(*updates), 4, ["customer"]))
    sink.close()
    found = read_committed(kafka_broker, topic)
    if envelope == "append":
        assert sorted((one.time, one.value["op"], one.value["row"]["customer"]) for one in found) == sorted(
            [(4, "insert", name) for name in names]
            + [(6, op, name) for name in names[:20] for op in ("insert", "delete")]
        )
    else:
        totals = {each["customer"]: each["total"] for each in fold_records(found).values()}
        assert totals == {**dict.fromkeys(names, 1), **dict.fromkeys(names[:20], 2)}


def test_v7_texts_are_replaced_except_in_a_key(kafka_broker: KafkaBroker) -> None:
    """Two keys that become equal would replace each other's records, and no reader could tell."""
    topic = new_topic(kafka_broker)
    sink = open_sink(kafka_broker, topic, schema=TEXTS, key=("id",))
    sink.write(1, text_changes((1, b"\xff\xfeabc", 1)))
    sink.close()
    assert [one.value for one in read_committed(kafka_broker, topic)] == [{"id": 1, "s": "\ufffd\ufffdabc"}]
    sink = open_sink(kafka_broker, topic, schema=TEXTS, key=("s",))
    with pytest.raises(SinkFailed, match="key column 's' has a text that is not valid UTF-8"):
        sink.write(2, text_changes((1, b"\xff", 1)))
    sink.close()
