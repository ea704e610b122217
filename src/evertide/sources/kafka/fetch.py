"""Records of a topic: those that come, and those that are read again.

`Fetched` follows a topic. librdkafka fetches from all partitions at once, in threads of its own, into a queue of
limited size; what is drained from there waits here until a position says that it was taken. So `offer` names only
what is here already, and a read right after it costs no second fetch.

1. What is kept of a partition is all its records in [`first`, `next`), in order, and nothing else.
2. A position behind or beyond that is followed by fetching anew from there.
3. Only records of committed transactions are seen (read_committed); marks and aborted ones are gaps in the offsets.
4. An offset that the broker does not have is not skipped: `lost` names it, and somebody decides (J4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from evertide.brokers import ANSWER_LIMIT_S, AWAY, Brokers
from evertide.sources.contract import Limit
from evertide.sources.kafka.place import Range, Records, records_of

__all__ = ["Fetched", "Lost", "beginnings", "ends", "read_again", "since"]

_DRAIN_MAX = 10_000
_WAIT_S = 0.05
_WAITS = 60
"""For records that are known to be there, and were not fetched yet."""

_CONSUMER: Mapping[str, Any] = {
    "enable_auto_commit": False,
    "enable_auto_offset_store": False,
    "enable_partition_eof": True,
    "auto_offset_reset": "error",
    "isolation_level": "read_committed",
    "fetch_wait_max_ms": 100,  # so long an end of a partition takes to be told
    "fetch_error_backoff_ms": 100,
    "queued_max_messages_kbytes": 32 * 1024,
    "allow_auto_create_topics": False,
}
_OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 - its name


@dataclass(frozen=True, slots=True)
class Lost:
    """An offset that is asked for and that the broker does not have."""

    partition: int
    offset: int


@dataclass(slots=True)
class _Partition:
    first: int
    next: int
    messages: list[Message] = field(default_factory=list)
    end: int = -1
    """Where the partition ended when it was last looked at by a fetch."""

    def drop_before(self, offset: int) -> None:
        if offset > self.first:
            kept = next((at for at, one in enumerate(self.messages) if one.offset() >= offset), len(self.messages))  # type: ignore[operator]
            del self.messages[:kept]
            self.first = offset


def _size(message: Message) -> int:
    return len(message) + len(message.key() or b"") + 32


class Fetched:
    def __init__(self, brokers: Brokers, topic: str, group: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._consumer = brokers.consumer(group_id=group or "evertide", **_CONSUMER)
        self._partitions: dict[int, _Partition] = {}
        self.lost: dict[int, Lost] = {}

    def follow(self, following: Mapping[int, int]) -> None:
        """Keep what lies after these offsets, and go on from there."""
        is_new = set(following) != set(self._partitions)
        for number, offset in following.items():
            known = self._partitions.get(number)
            if known is not None and known.first <= offset <= known.next:
                known.drop_before(offset)
            else:
                self._partitions[number] = _Partition(offset, offset)
                is_new = True
        if is_new:
            self.lost.clear()
            self._partitions = {number: self._partitions[number] for number in following}
            at = [TopicPartition(self._topic, number, one.next) for number, one in self._partitions.items()]
            self._consumer.assign(at)

    def drain(self, limit: Limit, wait_s: float = 0.0) -> None:
        """What has come, up to a limit. `KafkaException` if the client cannot go on."""
        kept = sum(len(one.messages) for one in self._partitions.values())
        size = sum(_size(message) for one in self._partitions.values() for message in one.messages)
        while kept < limit.rows and size < limit.bytes:
            came = self._consumer.consume(min(limit.rows - kept, _DRAIN_MAX), wait_s)
            for message in came:
                if message.error() is not None:
                    self._told(message)
                elif self._keep(message):
                    kept, size = kept + 1, size + _size(message)
            if len(came) < _DRAIN_MAX:
                return

    def _keep(self, message: Message) -> bool:
        known = self._partitions.get(message.partition())  # type: ignore[arg-type]
        offset: Any = message.offset()
        if known is None or offset < known.next:
            return False
        known.messages.append(message)
        known.next = offset + 1
        return True

    def _told(self, message: Message) -> None:
        error: Any = message.error()
        known = self._partitions.get(message.partition())  # type: ignore[arg-type]
        if known is None or error.code() in AWAY:
            return  # it connects again by itself; whether it does is asked elsewhere
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
            known.end = max(known.end, int(message.offset() or 0))
        elif error.code() in _OUT_OF_RANGE:
            number: Any = message.partition()
            self.lost[number] = Lost(number, known.next)
        else:
            raise KafkaException(error)

    def await_first(self, ends: Mapping[int, int], limit: Limit) -> None:
        """Records that the broker has and we have not: for a moment, until the first of them is here."""
        for _ in range(_WAITS):
            behind = [
                number
                for number, one in self._partitions.items()
                if not one.messages and max(one.next, one.end) < ends.get(number, 0) and number not in self.lost
            ]
            if not behind or any(one.messages for one in self._partitions.values()):
                return
            self.drain(limit, _WAIT_S)

    @property
    def is_empty(self) -> bool:
        return not any(one.messages for one in self._partitions.values())

    def taken(self, limit: Limit) -> list[Records]:
        """Records to offer, of all partitions alike, without letting go of them."""
        full = {number: one.messages for number, one in sorted(self._partitions.items()) if one.messages}
        found: dict[int, int] = {}
        rows, size = limit.rows, limit.bytes
        for left, (number, messages) in zip(range(len(full), 0, -1), _smallest_first(full), strict=True):
            share = max(1, rows // left)
            sizes = list(accumulate(_size(one) for one in messages[:share]))
            fits = next((at for at, total in enumerate(sizes) if total > size // left), len(sizes))
            found[number] = max(1, fits)
            rows, size = rows - found[number], max(0, size - sizes[found[number] - 1])
            if rows <= 0 or size <= 0:
                break
        return [records_of(number, full[number][:count]) for number, count in sorted(found.items())]

    def has(self, partition: int) -> bool:
        return bool(self._partitions[partition].messages)

    def first(self, partition: int) -> int:
        return self._partitions[partition].first

    def kept(self, ranges: Sequence[Range]) -> list[Records] | None:
        """The records of ranges that were just offered; None if they are not here (any more)."""
        found = []
        for one in ranges:
            known = self._partitions.get(one.partition)
            if known is None or not known.first <= one.first <= one.last <= known.next:
                return None
            inside = [message for message in known.messages if one.first <= message.offset() < one.last]  # type: ignore[operator]
            found.append(records_of(one.partition, inside))
        return found

    def commit(self, following: Mapping[int, int]) -> None:
        at = [TopicPartition(self._topic, number, offset) for number, offset in following.items()]
        self._consumer.commit(offsets=at, asynchronous=True)

    def close(self) -> None:
        self._consumer.close()


def _smallest_first(full: Mapping[int, list[Message]]) -> list[tuple[int, list[Message]]]:
    """What a partition does not need of its share is for those after it."""
    return sorted(full.items(), key=lambda one: len(one[1]))


def ends(admin: AdminClient, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Of each partition the first offset that no committed record has."""
    return _offsets(admin, topic, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def beginnings(admin: AdminClient, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    return _offsets(admin, topic, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def since(admin: AdminClient, topic: str, partitions: Sequence[int], at_ms: int) -> dict[int, int]:
    """The first record from a time on; the end, if there is none."""
    found = _offsets(admin, topic, partitions, OffsetSpec.for_timestamp(at_ms))
    none = [number for number, offset in found.items() if offset < 0]
    return {**found, **ends(admin, topic, none)}


def _offsets(admin: AdminClient, topic: str, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
    if not partitions:
        return {}
    asked = {TopicPartition(topic, number): spec for number in partitions}
    told = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_LIMIT_S)
    return {at.partition: future.result().offset for at, future in told.items()}


def read_again(brokers: Brokers, topic: str, ranges: Sequence[Range], rounds: int = 600) -> list[Records]:
    """What the ranges hold now, of all partitions at once: an end, or the next record, tells that one is complete.

    `KafkaException` if the brokers do not give it for long: each round is a twentieth of a second without anything.
    """
    consumer = brokers.consumer(group_id="evertide", **_CONSUMER)
    try:
        return _read_all(consumer, topic, {one.partition: one for one in ranges}, rounds)
    finally:
        consumer.close()


def _read_all(consumer: Consumer, topic: str, ranges: Mapping[int, Range], rounds: int) -> list[Records]:
    consumer.assign([TopicPartition(topic, one.partition, one.first) for one in ranges.values()])
    found: dict[int, list[Message]] = {number: [] for number in ranges}
    open_ones = {number for number, one in ranges.items() if one.records or one.last > one.first}
    while open_ones:
        came = consumer.consume(_DRAIN_MAX, _WAIT_S)
        rounds -= not came
        if rounds < 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the records did not come"))  # noqa: SLF001 - its name
        for message in came:
            number: Any = message.partition()
            error: Any = message.error()
            offset: Any = message.offset()
            if number not in open_ones or (error is not None and error.code() in AWAY):
                continue
            if error is None and offset < ranges[number].last:
                found[number].append(message)
            is_complete = offset >= ranges[number].last - (error is None)
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                if error.code() not in _OUT_OF_RANGE:
                    raise KafkaException(error)
                is_complete = True  # what is not there is told by the count
            if is_complete or error is not None:
                open_ones.discard(number)
    return [records_of(number, messages) for number, messages in found.items()]
