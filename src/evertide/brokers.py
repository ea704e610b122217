"""Connect to Kafka brokers, for the source and the sink: address, client properties, error texts.

    brokers 'host:port,host:port'                   required
    `kafka.sasl.password` '${ENV:KAFKA_PASSWORD}'   any property of librdkafka, with the prefix `kafka.`

1. Properties that exactly-once delivery depends on (isolation, offsets, ids) are refused.
2. A secret is in the environment or in a file, never in the script: a literal password is refused.
3. Every error of a client is rendered by `Brokers.explain`, which hides secrets.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from evertide.errors import InvalidInput
from evertide.options import Options
from evertide.secrets import Secrets

PREFIX = "kafka."
ANSWER_LIMIT_S = 2.0
"""How long one request may take while a pipeline runs."""

AWAY = (
    KafkaError._TIMED_OUT,  # noqa: SLF001 - its name, as are those below
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
    KafkaError._DESTROY_BROKER,  # noqa: SLF001
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""Codes of temporary errors: no broker answers, or a partition has no leader at the moment."""

_REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE)  # noqa: SLF001 - its names
_PROBES = 3
_PROBE_LIMIT_S = 1.5
_ELAPSED = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")
"""A detail that would make repeated errors look different."""

_RESERVED = {
    "acks",
    "auto.offset.reset",
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "isolation.level",
    "metadata.broker.list",
    "transactional.id",
}
_SECRET = re.compile(r"password|secret|token|key\.pem|keystore|oauthbearer\.config", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{(ENV|FILE):", re.IGNORECASE)
_NOT_SECRET = {"ssl.keystore.location", "sasl.oauthbearer.token.endpoint.url"}
_DEFAULTS: Mapping[str, Any] = {
    "log_level": 2,  # errors reach `error_cb`; otherwise each failed attempt to connect would be a line in the log
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2000,
    "socket.connection.setup.timeout.ms": 5000,
}


class EnvelopeKind(StrEnum):
    """What a record means: a row, the new row of its key, or a change of a row in a database."""

    APPEND = "append"
    UPSERT = "upsert"
    DEBEZIUM = "debezium"


@dataclass(frozen=True, slots=True)
class Brokers:
    address: str
    secrets: Secrets = field(repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    recent_errors: deque[KafkaError] = field(default_factory=lambda: deque(maxlen=8), repr=False)

    def config(self, **more: Any) -> dict[str, Any]:
        """`more` has `_` where librdkafka has a dot."""
        ours = {name if name == "error_cb" else name.replace("_", "."): value for name, value in more.items()}
        return {**_DEFAULTS, **self.properties, **ours, "bootstrap.servers": self.address}

    def admin(self) -> AdminClient:
        return AdminClient(self.config(error_cb=self._record_error))

    def consumer(self, **more: Any) -> Consumer:
        return Consumer(self.config(error_cb=self._record_error, **more))

    def producer(self, **more: Any) -> Producer:
        return Producer(self.config(error_cb=self._record_error, **more))

    def _record_error(self, error: KafkaError) -> None:
        """Remember connection errors, as the error of a request that timed out does not name the cause."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.recent_errors:  # noqa: SLF001 - its name
            self.recent_errors.append(error)

    def explain(self, error: KafkaError | KafkaException | str) -> str:
        """The text of an error, without secrets."""
        known = error if isinstance(error, str) else find_cause(error)
        text = known if isinstance(known, str) else f"{known.str()} ({known.name()})"
        if not isinstance(known, str) and known.code() in AWAY:
            last = next((each for each in self.recent_errors if each.code() in _REFUSED), None)
            last = last or (self.recent_errors[-1] if self.recent_errors else known)
            text = f"no broker answers: {last.str()} ({last.name()})"
        return self.secrets.hide(_ELAPSED.sub("", text))

    def is_away(self, error: KafkaException) -> bool:
        """Whether the brokers are unreachable, rather than refusing the client."""
        is_refused = any(each.code() in _REFUSED for each in list(self.recent_errors))
        return find_cause(error).code() in AWAY and not is_refused

    def probe(self, topic: str, where: str) -> Topic:
        """Check that the brokers answer, accept the client and have the topic; raise `InvalidInput` if not."""
        admin = self.admin()
        for left in reversed(range(_PROBES)):
            try:
                return describe(admin, topic, _PROBE_LIMIT_S)
            except KafkaException as error:
                code = find_cause(error).code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART and not left:
                    why = f"{self.address} has no topic {topic!r}; create the topic, or correct the option 'topic'"
                    raise InvalidInput(where=where, why=why) from error
                is_refused = any(each.code() in _REFUSED for each in self.recent_errors)
                if code not in (*AWAY, KafkaError.UNKNOWN_TOPIC_OR_PART) or is_refused or not left:
                    why = f"{self.explain(error)}; check the options 'brokers' ({self.address!r}) and 'kafka.*'"
                    raise InvalidInput(where=where, why=why) from error
        raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class Topic:
    id: str
    """Never reused: a topic that was deleted and created again has another id."""
    partitions: int


def find_cause(error: KafkaError | KafkaException) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    inner = error.args[0] if error.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(error))  # noqa: SLF001 - its name


def describe(admin: AdminClient, topic: str, limit_s: float = ANSWER_LIMIT_S) -> Topic:
    """`KafkaException` if the brokers do not answer in time, or have no such topic."""
    try:
        found = admin.describe_topics(TopicCollection([topic]), request_timeout=limit_s)[topic].result()
    except KafkaException:
        admin.poll(0)  # calls `error_cb` for connection errors
        raise
    return Topic(str(found.topic_id), len(found.partitions))


def read_brokers(options: Options, given: Mapping[str, str], secrets: Secrets) -> Brokers:
    """Read the options of a table or sink; `given` has their texts before secrets are resolved."""
    address = options.require("brokers", "localhost:9092")
    for one in address.split(","):
        host, colon, port = one.strip().rpartition(":")
        if not host or not colon or not port.isdigit():
            raise options.refusal("brokers", f"is {address!r}: expected host:port, or several separated by commas")
    for name, value in given.items():
        bare = name.lower().removeprefix(PREFIX)
        if bare != name.lower() and bare not in _NOT_SECRET and _SECRET.search(bare) and not _REFERENCE.search(value):
            raise options.refusal(name, "is a secret; use ${ENV:NAME} or ${FILE:path}, as scripts are stored")
    properties = options.read_prefixed(PREFIX)
    for name in properties:
        if name in _RESERVED:
            raise options.refusal(f"{PREFIX}{name}", "cannot be set: Evertide sets this property")
    brokers = Brokers(address.replace(" ", ""), secrets, properties)
    try:
        brokers.admin()
    except KafkaException as error:
        raise InvalidInput(where=options.where, why=f"{brokers.explain(error)}; check the options 'kafka.*'") from error
    return brokers
