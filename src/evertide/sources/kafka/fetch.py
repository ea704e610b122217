"""Fetch records of a topic: new records as they arrive, and bound records again.

`TopicReader` follows a topic. librdkafka fetches from all partitions in its own threads, into a queue of limited size.
Records from the queue are kept here until a position shows that they were bound. So `offer` names only records that are
already here, and reading them needs no second fetch.

1. Of each partition, `TopicReader` keeps exactly the records in [`first`, `next`), in order.
2. For a position outside that range, it fetches again from the position.
3. Only records of committed transactions are visible (read_committed); markers and aborted records are gaps in offsets.
4. An offset that the broker no longer has is not skipped: `lost` names it, and the source decides (J4).
5. A batch that librdkafka cannot read or decompress stops its partition: `unreadable` has the error. The records before
   it, and other partitions, are kept as usual.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from evertide.brokers import ANSWER_LIMIT_S, AWAY, Brokers
from evertide.sources.contract import Lag, Limit
from evertide.sources.kafka.positions import OffsetRange, PartitionRecords, to_partition_records

_DRAIN_MAX = 10_000
_WAIT_S = 0.05
_RECORD_OVERHEAD_BYTES = 32
"""Estimated bytes of a record in addition to its key and value."""
_FIRST_POLLS_MAX = 60
"""How often `await_first` polls for records that the broker has but the client has not fetched yet."""

_CONSUMER: Mapping[str, Any] = {
    "enable_auto_commit": False,
    "enable_auto_offset_store": False,
    "enable_partition_eof": True,
    "auto_offset_reset": "error",
    "isolation_level": "read_committed",
    "fetch_wait_max_ms": 100,  # the longest delay before the end of a partition is reported
    "fetch_error_backoff_ms": 100,
    "queued_max_messages_kbytes": 32 * 1024,
    "allow_auto_create_topics": False,
}
_OUT_OF_RANGE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 - its name
_UNREADABLE = (KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG)  # noqa: SLF001 - its names


@dataclass(frozen=True, slots=True)
class MissingOffset:
    """A requested offset that the broker does not have."""

    partition: int
    offset: int


@dataclass(slots=True)
class _FetchedPartition:
    """The fetched records of one partition, stored by column so that each message is unpacked once."""

    first: int
    next: int
    messages: list[Message] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    size: int = 0
    """Bytes of all records."""
    end: int = -1
    """The end of the partition, as of the last fetch that reached it."""

    def add(self, messages: list[Message]) -> None:
        """Append the messages with offsets from `next` on."""
        offsets: list[Any] = [one.offset() for one in messages]
        if offsets[0] < self.next:
            messages = messages[bisect_left(offsets, self.next) :]
            offsets = offsets[len(offsets) - len(messages) :]
        if not messages:
            return
        keys, values = [one.key() for one in messages], [one.value() for one in messages]
        sizes = estimate_sizes(keys, values)
        found: tuple[list[Any], ...] = (list(messages), offsets, keys, values, sizes)
        for column, more in zip(self._make_columns(), found, strict=True):
            column.extend(more)
        self.next = offsets[-1] + 1
        self.size += sum(sizes)

    def records(self, number: int, first: int, last: int) -> PartitionRecords:
        """Records with an offset in [first, last)."""
        inside = slice(bisect_left(self.offsets, first), bisect_left(self.offsets, last))
        return PartitionRecords(
            number, self.messages[inside], self.offsets[inside], self.keys[inside], self.values[inside]
        )

    def drop_before(self, offset: int) -> None:
        if offset > self.first:
            kept = bisect_left(self.offsets, offset)
            self.size -= sum(self.sizes[:kept])
            for column in self._make_columns():
                del column[:kept]
            self.first = offset

    def _make_columns(self) -> tuple[list[Any], ...]:
        return self.messages, self.offsets, self.keys, self.values, self.sizes


class TopicReader:
    def __init__(self, brokers: Brokers, topic: str, group: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._consumer = brokers.consumer(group_id=group or "evertide", **_CONSUMER)
        self._partitions: dict[int, _FetchedPartition] = {}
        self.lost: dict[int, MissingOffset] = {}
        self.unreadable: dict[int, KafkaError] = {}
        """Why a partition cannot be read further than `next`."""

    def follow(self, following: Mapping[int, int]) -> None:
        """Drop the records before these offsets, and continue to fetch after the rest."""
        is_new = set(following) != set(self._partitions)
        for number, offset in following.items():
            known = self._partitions.get(number)
            if known is not None and known.first <= offset <= known.next:
                known.drop_before(offset)
            else:
                self._partitions[number] = _FetchedPartition(offset, offset)
                is_new = True
        if is_new:
            self.lost.clear()
            self.unreadable.clear()
            self._partitions = {number: self._partitions[number] for number in following}
            at = [TopicPartition(self._topic, number, one.next) for number, one in self._partitions.items()]
            self._consumer.assign(at)

    def drain(self, limit: Limit, wait_s: float = 0.0) -> None:
        """Take received records from the queue, up to the limit. `KafkaException` if the client failed."""
        while True:
            kept = sum(len(one.messages) for one in self._partitions.values())
            if kept >= limit.rows or sum(one.size for one in self._partitions.values()) >= limit.bytes:
                return
            messages = self._consumer.consume(min(limit.rows - kept, _DRAIN_MAX), wait_s)
            self._add_messages(messages)
            if len(messages) < _DRAIN_MAX:
                return

    def _add_messages(self, messages: list[Message]) -> None:
        by_partition: dict[Any, list[Message]] = {}
        events = []
        for message in messages:
            if message.error() is None:
                by_partition.setdefault(message.partition(), []).append(message)
            else:
                events.append(message)
        for number, several in by_partition.items():
            if number in self._partitions:
                self._partitions[number].add(several)
                self.unreadable.pop(number, None)
        for message in events:
            self._note_event(message)

    def _note_event(self, message: Message) -> None:
        error: Any = message.error()
        known = self._partitions.get(message.partition())  # type: ignore[arg-type]
        if known is None or error.code() in AWAY:
            return  # librdkafka reconnects; `offer` reports brokers that stay unreachable
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
            known.end = max(known.end, int(message.offset() or 0))
        elif error.code() in _OUT_OF_RANGE:
            number: Any = message.partition()
            self.lost[number] = MissingOffset(number, known.next)
        elif error.code() in _UNREADABLE:
            self.unreadable[message.partition()] = error  # type: ignore[index]
        else:
            raise KafkaException(error)

    def await_first(self, ends: Mapping[int, int], limit: Limit) -> None:
        """If nothing was fetched but the broker has records, wait for the first, at most `_FIRST_POLLS_MAX` polls."""
        for _ in range(_FIRST_POLLS_MAX):
            behind = [
                number
                for number, one in self._partitions.items()
                if not one.messages and max(one.next, one.end) < ends.get(number, 0)
            ]
            behind = [number for number in behind if number not in self.lost and number not in self.unreadable]
            if not behind or any(one.messages for one in self._partitions.values()):
                return
            self.drain(limit, _WAIT_S)

    @property
    def is_empty(self) -> bool:
        return not any(one.messages for one in self._partitions.values())

    def choose(self, limit: Limit) -> list[PartitionRecords]:
        """Records to offer, a fair share of each partition. They stay here until `follow` drops them."""
        full = {number: one for number, one in sorted(self._partitions.items()) if one.messages}
        found: dict[int, int] = {}
        rows, size = limit.rows, limit.bytes
        for left, (number, one) in zip(range(len(full), 0, -1), _sort_by_size(full), strict=True):
            share = max(1, rows // left)
            sizes = list(accumulate(one.sizes[:share]))
            found[number] = max(1, bisect_right(sizes, size // left))
            rows, size = rows - found[number], max(0, size - sizes[found[number] - 1])
            if rows <= 0 or size <= 0:
                break
        return [
            full[number].records(number, full[number].first, full[number].offsets[count - 1] + 1)
            for number, count in sorted(found.items())
        ]

    def has(self, partition: int) -> bool:
        return bool(self._partitions[partition].messages)

    def first(self, partition: int) -> int:
        return self._partitions[partition].first

    def next(self, partition: int) -> int:
        return self._partitions[partition].next

    def find_ranges(self, ranges: Sequence[OffsetRange]) -> list[PartitionRecords] | None:
        """The records of offered ranges; None if they are not all here."""
        found = []
        for one in ranges:
            known = self._partitions.get(one.partition)
            if known is None or not known.first <= one.first <= one.last <= known.next:
                return None
            found.append(known.records(one.partition, one.first, one.last))
        return found

    def lag(self, bound: Mapping[int, int], now_s: float) -> Lag:
        """The lag behind the bound offsets, as of the last fetches. Callable from any thread."""
        rows, oldest_s = 0, now_s
        for number, one in list(self._partitions.items()):
            end, at = self._find_end(number), max(bound.get(number, 0), one.first)
            if end is None:
                return Lag()
            waiting = next((each for each in list(one.messages) if int(each.offset() or 0) >= at), None)
            if waiting is not None:
                kind, at_ms = waiting.timestamp()
                oldest_s = min(oldest_s, at_ms / 1000) if kind != TIMESTAMP_NOT_AVAILABLE else oldest_s
            elif max(one.next, one.end) >= end:
                continue  # the remaining offsets hold transaction markers, no records
            rows += max(0, end - at)
        if not self._partitions:
            return Lag()
        is_known = oldest_s < now_s or not rows
        return Lag(rows=rows, seconds=now_s - oldest_s if is_known else None)

    def _find_end(self, partition: int) -> int | None:
        """The end of the partition as of the last fetch; None before the first."""
        try:
            offsets = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), cached=True)
        except (KafkaException, RuntimeError):  # not assigned yet, or closed
            return None
        return None if offsets is None or offsets[1] < 0 else int(offsets[1])

    def commit(self, following: Mapping[int, int]) -> None:
        at = [TopicPartition(self._topic, number, offset) for number, offset in following.items()]
        self._consumer.commit(offsets=at, asynchronous=True)

    def close(self) -> None:
        self._consumer.close()


def estimate_sizes(keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> list[int]:
    """The memory that each record takes, in bytes."""
    pairs = zip(keys, values, strict=True)
    return [len(key or b"") + len(value or b"") + _RECORD_OVERHEAD_BYTES for key, value in pairs]


def _sort_by_size(full: Mapping[int, _FetchedPartition]) -> list[tuple[int, _FetchedPartition]]:
    """Smallest first: a partition leaves the unused part of its share to the next ones."""
    return sorted(full.items(), key=lambda one: len(one[1].messages))


def read_ends(admin: AdminClient, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """The end of each partition: the first offset after all committed records."""
    return _read_offsets(admin, topic, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def read_beginnings(admin: AdminClient, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    return _read_offsets(admin, topic, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def read_offsets_since(admin: AdminClient, topic: str, partitions: Sequence[int], at_ms: int) -> dict[int, int]:
    """The offset of the first record at or after a time; the end of the partition if there is none."""
    found = _read_offsets(admin, topic, partitions, OffsetSpec.for_timestamp(at_ms))
    none = [number for number, offset in found.items() if offset < 0]
    return {**found, **read_ends(admin, topic, none)}


def _read_offsets(admin: AdminClient, topic: str, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
    if not partitions:
        return {}
    wanted = {TopicPartition(topic, number): spec for number in partitions}
    futures = admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_LIMIT_S)
    return {at.partition: future.result().offset for at, future in futures.items()}


def read_again(
    brokers: Brokers, topic: str, ranges: Sequence[OffsetRange], rounds: int = 600
) -> list[PartitionRecords]:
    """Fetch the records of ranges again, from all partitions at once; a record or an end past a range completes it.

    `KafkaException` after `rounds` polls of 50 ms without a message.
    """
    consumer = brokers.consumer(group_id="evertide", **_CONSUMER)
    try:
        return _read_all(consumer, topic, {one.partition: one for one in ranges}, rounds)
    finally:
        consumer.close()


def _read_all(consumer: Consumer, topic: str, ranges: Mapping[int, OffsetRange], rounds: int) -> list[PartitionRecords]:
    consumer.assign([TopicPartition(topic, one.partition, one.first) for one in ranges.values()])
    found: dict[int, list[Message]] = {number: [] for number in ranges}
    open_ones = {number for number, one in ranges.items() if one.records or one.last > one.first}
    while open_ones:
        messages = consumer.consume(_DRAIN_MAX, _WAIT_S)
        rounds -= not messages
        if rounds < 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the broker did not return the records"))  # noqa: SLF001 - its name
        for message in messages:
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
                is_complete = True  # the caller detects missing records by the count
            if is_complete or error is not None:
                open_ones.discard(number)
    return [to_partition_records(number, messages) for number, messages in found.items()]
