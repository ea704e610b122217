"""Read and decode ranges of offsets on Spark's executors: one task per partition.

1. A range gives the same records, count and checksum, which the journal binds (J4), and the same rows, on any machine.
2. Spark replaces an executor that is lost: a task only reads, and starts again at its first offset.
3. A problem with the topic does not fail the task. It is returned as `RangeFailure`, and raised in the driver. So
   Spark does not repeat a task that must fail again, and the error is the same as if the driver had read the range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import accumulate
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException

from evertide.brokers import Brokers, find_cause
from evertide.secrets import Secrets
from evertide.sources.contract import Limit, Rows
from evertide.sources.executors import Executors
from evertide.sources.kafka.debezium import Truncated
from evertide.sources.kafka.fetch import estimate_sizes, read_again
from evertide.sources.kafka.positions import OffsetRange, PartitionRecords
from evertide.sources.kafka.rows import Decoder
from evertide.sources.kafka.schema_registry import RegistryAway


@dataclass(frozen=True, slots=True)
class RangeTask:
    brokers: Brokers
    topic: str
    decoder: Decoder
    range: OffsetRange
    """Count and checksum are empty, or those that are expected."""
    bytes: int
    """Records beyond this size are left out, except the first."""


class RangeFailureKind(Enum):
    KAFKA = auto()
    REGISTRY = auto()
    TRUNCATED = auto()


@dataclass(frozen=True, slots=True)
class RangeFailure:
    kind: RangeFailureKind
    code: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class RangeRows:
    range: OffsetRange
    """The range that was read, with count and checksum."""
    rows: Rows


def plan_ranges(
    following: Mapping[int, int], first: Mapping[int, int], last: Mapping[int, int], limit: Limit
) -> list[OffsetRange]:
    """The ranges to read next, a fair share of each partition; none if an offset is out of range."""
    if any(not first[number] <= offset <= last[number] for number, offset in following.items()):
        return []
    waiting = sorted((last[number] - offset, number) for number, offset in following.items() if last[number] > offset)
    found, rows = [], limit.rows
    for left, (count, number) in zip(range(len(waiting), 0, -1), waiting, strict=True):
        share = min(count, max(1, rows // left))
        found.append(OffsetRange(number, following[number], following[number] + share, 0, ""))
        rows -= share
        if rows <= 0:
            break
    return sorted(found, key=lambda one: one.partition)


def read_on_executors(  # noqa: PLR0917
    executors: Executors, brokers: Brokers, topic: str, decoder: Decoder, ranges: Sequence[OffsetRange], bytes_max: int
) -> list[RangeRows | RangeFailure]:
    """Read the ranges on the executors. Sends only the secrets that the Kafka client needs."""
    stripped = replace(
        brokers,
        secrets=Secrets(Path(), {}),
        recent_errors=type(brokers.recent_errors)(maxlen=brokers.recent_errors.maxlen),
    )
    share = max(1, bytes_max // max(1, len(ranges)))
    return executors.map(read_range, [RangeTask(stripped, topic, decoder, one, share) for one in ranges])


def read_range(task: RangeTask) -> RangeRows | RangeFailure:
    """Read and decode one range, in an executor."""
    try:
        (records,) = read_again(task.brokers, task.topic, [task.range])
        kept = _within(records, task.bytes)
        last = task.range.last if kept is records else kept.offsets[-1] + 1
        checked = OffsetRange(records.partition, task.range.first, last, len(kept.offsets), kept.checksum())
        return RangeRows(checked, task.decoder.rows(kept, f"{task.topic}-{records.partition}"))
    except KafkaException as error:
        return RangeFailure(RangeFailureKind.KAFKA, find_cause(error).code(), find_cause(error).str())
    except RegistryAway as error:
        return RangeFailure(RangeFailureKind.REGISTRY, text=str(error))
    except Truncated:
        return RangeFailure(RangeFailureKind.TRUNCATED)


def unwrap_outcome(outcome: RangeRows | RangeFailure) -> RangeRows:
    """Return the result, or raise the error of the executor's problem."""
    if isinstance(outcome, RangeRows):
        return outcome
    if outcome.kind is RangeFailureKind.REGISTRY:
        raise RegistryAway(outcome.text)
    if outcome.kind is RangeFailureKind.TRUNCATED:
        raise Truncated
    raise KafkaException(KafkaError(outcome.code, outcome.text))


def _within(records: PartitionRecords, most: int) -> PartitionRecords:
    sizes = accumulate(estimate_sizes(records.keys, records.values))
    count = max(1, bisect_right(list(sizes), most))
    if count >= len(records.offsets):
        return records
    return PartitionRecords(
        records.partition,
        records.messages[:count],
        records.offsets[:count],
        records.keys[:count],
        records.values[:count],
    )
