"""What is refused before a pipeline starts, with the remedy, and that no secret is shown."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from evertide.errors import InvalidInput
from tests.servers.kafka import PASSWORD, USER, KafkaBroker
from tests.sources.kafka.kit import all_rows, first, new_topic, open_source, order, produce, table


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"brokers": ""}, "'brokers' is missing"),
        ({"brokers": "localhost"}, "expected host:port"),
        ({"topic": ""}, "'topic' is missing"),
        ({"topic": "a b"}, "expected letters"),
        ({"format": ""}, "'format' is ''"),
        ({"format": "xml"}, "expected one of 'json'"),
        ({"envelope": "maxwell"}, "expected one of 'append'"),
        ({"envelope": "upsert", "key": ()}, "requires a PRIMARY KEY"),
        ({"envelope": "debezium", "format": "csv"}, "requires the format 'json'"),
        ({"envelope": "debezium", "format": "raw"}, "requires the format 'json'"),
        ({"key_format": "json", "key": ()}, "requires a PRIMARY KEY"),
        ({"key_format": "text", "envelope": "upsert", "key": ("id", "name")}, "one column"),
        ({"format": "avro"}, "'schema_registry' is missing"),
        ({"format": "avro", "schema_registry": "ftp://x"}, "expected http://"),
        ({"format": "avro", "schema_registry": "http://u:p@x"}, "schema_registry_auth"),
        ({"format": "csv", "delimiter": "ab"}, "expected one character"),
        ({"format": "raw"}, "no column 'id'; it has key, value"),
        ({"format": "raw", "schema": pa.schema([("offset", pa.string())]), "key": ()}, "expected BIGINT"),
        ({"format": "raw", "schema": pa.schema([("headers", pa.string())]), "key": ()}, "expected MAP"),
        (
            {"format": "raw", "envelope": "upsert", "schema": pa.schema([("topic", pa.string())]), "key": ("topic",)},
            r"PRIMARY KEY \(key\)",
        ),
        ({"start": "yesterday"}, "expected .*earliest"),
        ({"start": "timestamp:noon"}, "expected .*earliest"),
        ({"start": "offsets:{}x"}, "expected .*earliest"),
        ({"start": 'offsets:{"0": -1}'}, "expected .*earliest"),
        ({"on_expired": "forget"}, "expected one of 'stall'"),
        ({"tpoic": "x"}, "connector 'kafka' has no option 'tpoic'; did you mean 'topic'?"),
        ({"kafka.group.id": "x"}, "Evertide sets this property"),
        ({"kafka.nonsense": "x"}, "No such configuration property"),
        ({"kafka.fetch.max.bytes": "many"}, "(?i)invalid value"),
        ({"kafka.sasl.password": "hunter2"}, r"\$\{ENV:NAME\} or \$\{FILE:path\}"),
        ({"kafka.sasl.password": "${ENV:NO_SUCH_VARIABLE_HERE}"}, "no variable 'NO_SUCH_VARIABLE_HERE'"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any], why: str) -> None:
    given = {"brokers": "127.0.0.1:1", "topic": "t", **options}
    broker = KafkaBroker.__new__(KafkaBroker)
    broker.port = 1
    with pytest.raises(InvalidInput, match=why) as said:
        open_source(table(broker, **given))
    assert "shop.sql, line 7, table 'orders'" in str(said.value)
    assert "hunter2" not in str(said.value)


def test_a_wrong_address_a_missing_topic_and_a_wrong_password_are_refused(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("evertide.brokers._PROBE_LIMIT_S", 0.7)
    with pytest.raises(InvalidInput, match=r"no broker answers.*refused.*'127\.0\.0\.1:1'"):
        open_source(table(kafka_broker, "t", brokers="127.0.0.1:1"))
    with pytest.raises(InvalidInput, match=r"has no topic 'nowhere'; create the topic"):
        open_source(table(kafka_broker, "nowhere"))
    topic = new_topic(kafka_broker)
    login = {
        "brokers": kafka_broker.sasl_brokers,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": USER,
        "kafka.sasl.password": "${ENV:KAFKA_PASSWORD}",
    }
    monkeypatch.setenv("KAFKA_PASSWORD", f"{PASSWORD}x")
    with pytest.raises(InvalidInput, match="(?i)authentication failed") as said:  # noqa: RUF043 - it is a pattern
        open_source(table(kafka_broker, topic, **login))
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    produce(kafka_broker, topic, [(None, order(1))])
    source = open_source(table(kafka_broker, topic, **login))
    assert [row["id"] for row in all_rows(source)] == [1]
    told = f"{said.value} {caplog.text} {source!r} {vars(source)!r} {first(source)}"
    assert PASSWORD not in told
    source.close()
