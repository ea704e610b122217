"""The Kafka sink: writes each transaction as one Kafka transaction, exactly once.

    brokers, topic, envelope 'upsert' | 'debezium' | 'append', kafka.*      docs/kafka.md has all options

| envelope | a record |
|---|---|
| upsert | key: the key's columns; value: the row, or none if it was removed. The default of collections with a key |
| debezium | before, after and op; after a delete a record without a value, if there is a key |
| append | {"op": "insert" or "delete", "diff": number of copies, "row": {...}}; the default without a key |

1. Each record has the transaction number in the header `evertide-time`, and the sink token in `evertide-sink`.
2. *Open*: `init_transactions` under the token's transactional id fences earlier processes of the sink, and ends their
   transaction: it is completed if its commit had begun, else aborted, so that readers never see it.
3. *Last* is the newest number among the sink's last committed records of each partition (`end`). Records expire, so the
   pipeline records the number, too. Opening fails while another producer's open transaction hides records of the sink.
4. *Write*: begin, all records, commit. Any error ends the producer (`SinkFailed`). The next one opens, reads back what
   was committed, and continues from there; so an unknown outcome is resolved (I14).
5. Records of a key are in one partition, by Java's hash of the key; without a key, records of equal rows are.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import xxhash
from confluent_kafka import Consumer, KafkaError, KafkaException

from evertide.brokers import AWAY, Brokers, EnvelopeKind, describe, find_cause, read_brokers
from evertide.errors import InvalidInput, SinkFailed
from evertide.secrets import Secrets
from evertide.sinks.contract import Changes, Prepared, SinkDeclaration
from evertide.sinks.kafka.end import find_newest_number, has_hidden_records, read_topic_ends
from evertide.sinks.kafka.records import (
    SINK_HEADER,
    TIME_HEADER,
    KafkaRecord,
    RecordMaker,
    check_columns,
    choose_record_maker,
)

_OPEN_LIMIT_S = 30.0
_ANSWER_LIMIT_S = 8.0
"""How long one request may take before the sink fails and is opened again."""

_POLL_S = 0.05
Headers = list[tuple[str, str | bytes | None]]
_PRODUCER: Mapping[str, Any] = {
    "linger.ms": 5,
    "partitioner": "murmur2_random",
    "transaction.timeout.ms": 120_000,  # how long readers wait for the transaction of a dead writer
}


def prepare_kafka(declaration: SinkDeclaration) -> Prepared:
    secrets = Secrets(declaration.base)
    options = declaration.read_options(secrets)
    brokers = read_brokers(options, declaration.options, secrets)
    topic = options.require("topic", "revenue")
    default = EnvelopeKind.UPSERT if declaration.key else EnvelopeKind.APPEND
    envelope = options.member("envelope", EnvelopeKind, default)
    options.choice("format", ("json",), "json")
    options.check_unknown()
    if envelope is EnvelopeKind.UPSERT and not declaration.key:
        why = f"is 'upsert', but {declaration.collection!r} has no key; set the option 'key' to its columns"
        raise options.refusal("envelope", why)
    unusable_key = check_columns(declaration, envelope)
    if unusable_key:
        raise InvalidInput(where=options.where, why=unusable_key)
    maker = choose_record_maker(declaration, envelope)
    return Prepared(
        lambda token: KafkaSink(declaration, brokers, topic, maker, token),
        lambda: brokers.probe(topic, options.where),
    )


class KafkaSink:
    def __init__(
        self, declaration: SinkDeclaration, brokers: Brokers, topic: str, maker: RecordMaker, token: str
    ) -> None:
        self.name = declaration.name
        self._brokers = brokers
        self._topic = topic
        self._maker = maker
        self._token = token
        self._id = token if token.startswith("evertide") else f"evertide-{token}"
        self._where = f"topic {topic} at {brokers.address}"
        try:
            self._open()
        except KafkaException as error:
            raise self._kafka_failure(error) from error

    def _open(self) -> None:
        self._partitions = describe(self._brokers.admin(), self._topic).partitions
        ours = {name: value for name, value in _PRODUCER.items() if name not in self._brokers.properties}
        self._producer = self._brokers.producer(transactional_id=self._id, **ours)
        self._producer.init_transactions(_OPEN_LIMIT_S)
        self._last = self._read_last()

    def _open_reader(self, isolation_level: str) -> Consumer:
        return self._brokers.consumer(
            group_id=self._id,
            isolation_level=isolation_level,
            enable_auto_commit=False,
            enable_partition_eof=True,
            fetch_wait_max_ms=50,  # the longest delay before the end of a partition is reported
        )

    @property
    def keeps_number(self) -> bool:
        """Whether the topic never had a record. If the pipeline recorded a number, the topic was then replaced."""
        return self._is_untouched

    def last(self) -> int | None:
        return self._last

    def _read_last(self) -> int | None:
        with (
            closing(self._open_reader("read_committed")) as committed,
            closing(self._open_reader("read_uncommitted")) as uncommitted,
        ):
            ends = read_topic_ends(committed, self._topic, range(self._partitions))
            self._is_untouched = not any(high for _, high in ends.values())
            if has_hidden_records(uncommitted, self._topic, ends, self._token):
                why = "an open transaction of another producer hides the last records of this sink, which waits for it"
                raise self._failure(f"{why}. If it never ends, 'kafka-transactions.sh find-hanging' names it")
            return find_newest_number(committed, self._topic, ends, self._token)

    def write(self, time: int, changes: Changes) -> None:
        if self._last is not None and time <= self._last:
            return
        try:
            self._producer.begin_transaction()
            headers: Headers = [(TIME_HEADER, str(time).encode()), (SINK_HEADER, self._token.encode())]
            for piece in changes:
                for record in self._maker(piece, time, self._failure):
                    self._send(record, headers)
            self._flush()
            self._producer.commit_transaction(_ANSWER_LIMIT_S)
        except KafkaException as error:
            raise self._kafka_failure(error) from error
        self._last = time

    def _send(self, record: KafkaRecord, headers: Headers) -> None:
        partition: dict[str, Any] = (
            {} if record.key is not None else {"partition": self._choose_partition(record.partition_key)}
        )
        while True:
            try:
                self._producer.produce(self._topic, record.value, record.key, headers=headers, **partition)
            except BufferError:  # the queue is full
                self._producer.poll(_POLL_S)
            else:
                self._producer.poll(0)
                return

    def _flush(self) -> None:
        """Wait until all records are acknowledged; `KafkaException` after `_ANSWER_LIMIT_S` without progress."""
        left = len(self._producer)
        while left:
            before, left = left, self._producer.flush(_ANSWER_LIMIT_S)
            if left >= before:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the records were not acknowledged"))  # noqa: SLF001 - its name

    def _choose_partition(self, content: bytes) -> int:
        return xxhash.xxh3_64_intdigest(content) % self._partitions

    def _failure(self, why: str) -> SinkFailed:
        return SinkFailed(sink=self.name, where=self._where, why=why)

    def _kafka_failure(self, error: KafkaException) -> SinkFailed:
        known = find_cause(error)
        why = self._brokers.explain(known)
        if known.fatal():
            why = f"{why}: another process now writes for this sink, or its records cannot be stored"
        elif known.code() in AWAY:
            why = f"{why}; the sink reconnects"
        return SinkFailed(sink=self.name, where=self._where, why=why)

    def close(self) -> None:
        """Close the producer. The broker or the next producer aborts an open transaction."""
        self._producer.purge()
        self._producer.flush(0)
