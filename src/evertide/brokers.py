"""The way to Kafka's brokers, which source and sink share: address, properties of the client, and what it says.

    brokers 'host:port,host:port'                   required
    `kafka.sasl.password` '${ENV:KAFKA_PASSWORD}'   any property of librdkafka, behind `kafka.`

1. What exactly-once rests on (isolation, offsets, ids) is not for options to change: those properties are refused.
2. A secret stands in the environment or in a file, never in the script: a password written out is refused.
3. Whatever a client says goes through `Brokers.said`, which hides secrets.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from evertide.errors import InvalidInput
from evertide.options import Options
from evertide.secrets import Secrets

__all__ = ["ANSWER_LIMIT_S", "AWAY", "Brokers", "Topic", "cause", "describe", "read_brokers"]

PREFIX = "kafka."
ANSWER_LIMIT_S = 2.0
"""How long one question may take while a pipeline runs."""

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
"""Codes of errors that say that nobody answered, or that those who answer are just agreeing on who leads."""

_REFUSED = (KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError._RESOLVE)  # noqa: SLF001 - its names
_PROBES = 3
_PROBE_LIMIT_S = 1.5
_AFTER = re.compile(r" \(after \d+ms in state \w+(, \d+ identical error\(s\) suppressed)?\)")
"""Makes two errors of the same kind different, so that each would be news."""

_OURS = {
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
_PLACE = re.compile(r"\$\{(ENV|FILE):", re.IGNORECASE)
_NO_SECRET = {"ssl.keystore.location", "sasl.oauthbearer.token.endpoint.url"}
_QUIET: Mapping[str, Any] = {
    "log_level": 2,  # what matters reaches us as errors; each failed try to connect would be a line
    "reconnect.backoff.ms": 100,
    "reconnect.backoff.max.ms": 2000,
    "socket.connection.setup.timeout.ms": 5000,
}


@dataclass(frozen=True, slots=True)
class Brokers:
    address: str
    secrets: Secrets = field(repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    heard: deque[KafkaError] = field(default_factory=lambda: deque(maxlen=8), repr=False)

    def config(self, **more: Any) -> dict[str, Any]:
        """`more` has `_` where librdkafka has a dot."""
        ours = {name if name == "error_cb" else name.replace("_", "."): value for name, value in more.items()}
        return {**_QUIET, **self.properties, **ours, "bootstrap.servers": self.address}

    def admin(self) -> AdminClient:
        return AdminClient(self.config(error_cb=self._hear))

    def consumer(self, **more: Any) -> Consumer:
        return Consumer(self.config(error_cb=self._hear, **more))

    def producer(self, **more: Any) -> Producer:
        return Producer(self.config(error_cb=self._hear, **more))

    def _hear(self, error: KafkaError) -> None:
        """What clients say of connections, which the error of a question that timed out does not."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.heard:  # noqa: SLF001 - its name
            self.heard.append(error)

    def said(self, error: KafkaError | KafkaException | str) -> str:
        """In words for people, without secrets."""
        known = error if isinstance(error, str) else cause(error)
        text = known if isinstance(known, str) else f"{known.str()} ({known.name()})"
        if not isinstance(known, str) and known.code() in AWAY:
            last = next((each for each in self.heard if each.code() in _REFUSED), None)
            last = last or (self.heard[-1] if self.heard else known)
            text = f"no broker answers: {last.str()} ({last.name()})"
        return self.secrets.hide(_AFTER.sub("", text))

    def are_away(self, error: KafkaException) -> bool:
        """Whether waiting ends it: nobody answers, and nobody refuses us."""
        is_refused = any(each.code() in _REFUSED for each in list(self.heard))
        return cause(error).code() in AWAY and not is_refused

    def probe(self, topic: str, where: str) -> Topic:
        """Whether brokers answer, let us in, and have the topic. `InvalidInput` if not."""
        admin = self.admin()
        for left in reversed(range(_PROBES)):
            try:
                return describe(admin, topic, _PROBE_LIMIT_S)
            except KafkaException as error:
                code = cause(error).code()
                if code == KafkaError.UNKNOWN_TOPIC_OR_PART and not left:
                    why = (
                        f"there is no topic {topic!r} at {self.address}: create it first, or correct the option 'topic'"
                    )
                    raise InvalidInput(where=where, why=why) from error
                is_refused = any(each.code() in _REFUSED for each in self.heard)
                if code not in (*AWAY, KafkaError.UNKNOWN_TOPIC_OR_PART) or is_refused or not left:
                    why = f"{self.said(error)}; check the option 'brokers', which is {self.address!r}, and kafka.*"
                    raise InvalidInput(where=where, why=why) from error
        raise AssertionError("the last try returns or raises")


@dataclass(frozen=True, slots=True)
class Topic:
    id: str
    """Unique for ever: a topic that was deleted and made again has another."""
    partitions: int


def cause(error: KafkaError | KafkaException) -> KafkaError:
    if isinstance(error, KafkaError):
        return error
    inner = error.args[0] if error.args else None
    return inner if isinstance(inner, KafkaError) else KafkaError(KafkaError._FAIL, str(error))  # noqa: SLF001 - its name


def describe(admin: AdminClient, topic: str, limit_s: float = ANSWER_LIMIT_S) -> Topic:
    """`KafkaException` if the brokers do not answer in time, or have no such topic."""
    try:
        found = admin.describe_topics(TopicCollection([topic]), request_timeout=limit_s)[topic].result()
    except KafkaException:
        admin.poll(0)  # what it heard meanwhile
        raise
    return Topic(str(found.topic_id), len(found.partitions))


def read_brokers(options: Options, given: Mapping[str, str], secrets: Secrets) -> Brokers:
    """From the options of a table or a sink; `given` are the same as the script has them."""
    address = options.required("brokers", "localhost:9092")
    for one in address.split(","):
        host, colon, port = one.strip().rpartition(":")
        if not host or not colon or not port.isdigit():
            raise options.refusal("brokers", f"is {address!r}: expected host:port, with commas if there are several")
    for name, value in given.items():
        plain = name.lower().removeprefix(PREFIX)
        if plain != name.lower() and plain not in _NO_SECRET and _SECRET.search(plain) and not _PLACE.search(value):
            why = "is a secret: write ${ENV:NAME} or ${FILE:path} instead, as scripts are kept and copied"
            raise options.refusal(name, why)
    properties = options.others(PREFIX)
    for name in properties:
        if name in _OURS:
            raise options.refusal(f"{PREFIX}{name}", "cannot be set: Evertide sets it itself")
    brokers = Brokers(address.replace(" ", ""), secrets, properties)
    try:
        brokers.admin()
    except KafkaException as error:
        raise InvalidInput(where=options.where, why=f"{brokers.said(error)}; see the options kafka.*") from error
    return brokers
