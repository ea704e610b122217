"""Positions and fragments of a Kafka source.

1. Both are JSON, version 1: the position of the source, and `Place.where` of a fragment.
2. A position has the next offset of each partition, and the id of the topic, which detects a topic that was deleted and
   created again.
3. A fragment has a range of offsets per partition, with the number of records in the range when it was offered, and
   their checksum. The offsets alone are not enough: they have gaps (aborted records, markers, compacted records).
4. A fragment names the records that expired before they were read, and were skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import xxhash
from confluent_kafka import Message

from evertide.errors import RecordDamaged, UnsupportedFormat

_VERSION = 1


class _KafkaPosition(msgspec.Struct, frozen=True):
    version: int
    topic_id: str
    next: dict[int, int]


class OffsetRange(msgspec.Struct, frozen=True, array_like=True):
    partition: int
    first: int
    last: int
    """The first offset after the range."""
    records: int
    checksum: str


class TopicFragment(msgspec.Struct, frozen=True, omit_defaults=True):
    topic_id: str
    ranges: tuple[OffsetRange, ...]
    lost: tuple[tuple[int, int, int], ...] = ()
    """Partition, first expired offset, and the offset after the last one: skipped because `on_expired` is 'skip'."""


def encode_position(topic_id: str, following: Mapping[int, int]) -> str:
    return msgspec.json.encode(_KafkaPosition(_VERSION, topic_id, dict(sorted(following.items())))).decode()


START = encode_position("", {})


@lru_cache(maxsize=8)
def decode_position(position: str) -> tuple[str, Mapping[int, int]]:
    """The topic's id, empty before the first offer, and the next offset of each partition."""
    where = "position of a Kafka source"
    try:
        found = msgspec.json.decode(position, type=_KafkaPosition)
    except msgspec.MsgspecError as error:
        raise RecordDamaged(path=where, why=str(error)) from error
    if found.version != _VERSION:
        raise UnsupportedFormat(path=where, found=found.version, supported=_VERSION)
    return found.topic_id, found.next


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """Records of one partition, in order, column by column."""

    partition: int
    messages: Sequence[Message]
    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]

    def checksum(self) -> str:
        """XXH3-128 of offsets, keys and values. None and empty differ."""
        state: Any = xxhash.xxh3_128()
        state.update(np.array(self.offsets, "<i8").tobytes())
        for column in (self.keys, self.values):
            sizes = [-1 if each is None else len(each) for each in column]
            state.update(np.array(sizes, "<i8").tobytes())
            state.update(b"".join(each for each in column if each))
        return str(state.hexdigest())

    def range(self, first: int) -> OffsetRange:
        last = self.offsets[-1] + 1 if self.offsets else first
        return OffsetRange(self.partition, first, last, len(self.offsets), self.checksum())


def to_partition_records(partition: int, messages: Sequence[Message]) -> PartitionRecords:
    offsets: list[Any] = [message.offset() for message in messages]
    return PartitionRecords(
        partition, messages, offsets, [each.key() for each in messages], [each.value() for each in messages]
    )
