"""Find the newest transaction of a sink among the committed records at the end of a topic.

1. Numbers increase in each partition, so the sink's last record has the largest. Records of other producers and aborted
   ones may follow it: a partition is searched from ever further back, until a record of the sink is found, the
   beginning is reached, or `_LOOK_BACK_MAX` offsets were searched. Then the number that the pipeline recorded counts.
2. A read_committed consumer stops before the first open transaction of any producer. `init_transactions` has ended
   those of the sink, but committed ones may lie behind an open transaction of another producer. `has_hidden_records`
   detects this with a read_uncommitted consumer; the sink then waits until that transaction ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from evertide.sinks.kafka.records import SINK_HEADER, TIME_HEADER

logger = logging.getLogger(__name__)

_LOOK_BACK = 200
"""In offsets, which include transaction markers."""

_FURTHER = 20
_LOOK_BACK_MAX = 2_000_000
_ANSWER_S = 10.0
_WAIT_S = 0.05
_ROUNDS = 600
"""The number of polls without a message after which the broker counts as unreachable."""


def read_topic_ends(consumer: Consumer, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
    """The first offset of each partition, and the offset after the last."""
    places = [TopicPartition(topic, number) for number in partitions]
    return {one.partition: consumer.get_watermark_offsets(one, timeout=_ANSWER_S) for one in places}


def find_newest_number(consumer: Consumer, topic: str, ends: Mapping[int, tuple[int, int]], token: str) -> int | None:
    """None if the sink has no record there. `KafkaException` if the broker does not answer."""
    newest: dict[int, int] = {}
    look_back = _LOOK_BACK
    left = {number for number, (low, high) in ends.items() if high > low}
    while left:
        begins = {number: max(ends[number][0], ends[number][1] - look_back) for number in left}
        newest |= _read_numbers(consumer, topic, begins, token.encode())
        left = {number for number in left if number not in newest and begins[number] > ends[number][0]}
        if left and look_back >= _LOOK_BACK_MAX:
            text = "topic %s, partitions %s: this sink wrote none of the last %d records"
            logger.warning(text, topic, sorted(left), look_back)
            break
        look_back *= _FURTHER
    return max(newest.values(), default=None)


def has_hidden_records(uncommitted: Consumer, topic: str, ends: Mapping[int, tuple[int, int]], token: str) -> bool:
    """Whether records of the sink lie at or after the ends, where a read_committed consumer does not see them yet."""
    now = read_topic_ends(uncommitted, topic, ends)
    begins = {number: end for number, (_, end) in ends.items() if now[number][1] > end}
    return bool(begins and _read_numbers(uncommitted, topic, begins, token.encode()))


def _read_numbers(consumer: Consumer, topic: str, begins: Mapping[int, int], token: bytes) -> dict[int, int]:
    """The last transaction number of the sink from the offsets on, by partition."""
    consumer.assign([TopicPartition(topic, number, offset) for number, offset in begins.items()])
    found: dict[int, int] = {}
    left, rounds = set(begins), _ROUNDS
    while left:
        messages = consumer.consume(10_000, _WAIT_S)
        rounds -= not messages
        if rounds < 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the broker did not return the end of the topic"))  # noqa: SLF001
        for message in messages:
            error, number = message.error(), int(message.partition() or 0)
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                    left.discard(number)
                continue
            headers: dict[str, Any] = dict(message.headers() or ())
            if headers.get(SINK_HEADER) == token:
                found[number] = int(headers[TIME_HEADER])
    consumer.unassign()
    return found
