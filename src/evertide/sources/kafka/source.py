"""The connector `kafka`: reads the records of a topic as rows of a table.

    CREATE TABLE t (...) USING kafka OPTIONS (brokers 'host:port', topic 't', format 'json', envelope 'upsert')

docs/kafka.md has all options. How the source implements the contract:

1. A position has the next offset of each partition. The offsets where reading starts (`start`) are determined once and
   bound immediately, so that 'latest' means the same moment after a restart.
2. Rows are read partition by partition, by offset. Producers write all records of a key to one partition, as long as
   the number of partitions does not change; so the last change of a key wins (U5).
3. A new partition is read from its beginning.
4. Bound input is read again exactly as it was, or the error is `SourceChanged` (J4): another topic of the same name,
   expired offsets, records that were compacted or differ. Counts and checksums detect all of these.
5. A batch that cannot be decompressed stalls the source when everything else has been read; it is not skipped.
6. If the brokers are unreachable, the source stalls and retries with growing waits; librdkafka reconnects. No record is
   skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from confluent_kafka import KafkaError, KafkaException

from evertide.brokers import Brokers, Topic, describe, find_cause
from evertide.errors import InvalidInput, SourceAway, SourceChanged, SourceFailed
from evertide.journal.records import Fragment, Place
from evertide.problem import Problem
from evertide.runtime import Runtime
from evertide.sources.contract import Fault, Lag, Limit, Offer, Rows, TableDeclaration, decode_place, to_problem
from evertide.sources.executors import Executors, WorkFailed
from evertide.sources.kafka.debezium import Truncated
from evertide.sources.kafka.fetch import TopicReader, read_again, read_beginnings, read_ends, read_offsets_since
from evertide.sources.kafka.options import ExecutorUse, KafkaOptions, Start, StartKind, read_options
from evertide.sources.kafka.positions import (
    START,
    OffsetRange,
    PartitionRecords,
    TopicFragment,
    decode_position,
    encode_position,
)
from evertide.sources.kafka.rows import Decoder
from evertide.sources.kafka.schema_registry import RegistryAway
from evertide.sources.kafka.spread import RangeRows, plan_ranges, read_on_executors, unwrap_outcome
from evertide.sources.values.fit import make_rows_schema

_AWAY_FIRST_S = 0.25
_AWAY_MAX_S = 5.0
_THREADS = 4
_EXECUTOR_RECORDS_MIN = 100_000
"""Executors read an offer with more records than this."""

Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class _Outage:
    """Why the brokers are unreachable, the current wait, the time of the next retry, and since when (wall clock)."""

    why: SourceFailed
    wait_s: float
    retry_at_s: float
    since_s: float


class KafkaSource:
    def __init__(self, name: str, declaration: TableDeclaration, options: KafkaOptions, runtime: Runtime) -> None:
        self.name = name
        self.tables: tuple[str, ...] = (declaration.name,)
        self._declaration = declaration
        self._options = options
        self._brokers: Brokers = options.brokers
        self._decoder: Decoder = options.decoder
        self._runtime = runtime
        self._admin = options.brokers.admin()
        self._reader = TopicReader(options.brokers, options.topic, options.group)
        self._pool = ThreadPoolExecutor(_THREADS, f"kafka-{name}")
        self._outage: _Outage | None = None
        self._unreadable: dict[int, tuple[SourceFailed, float]] = {}
        """Why a partition cannot be read further, and since when (wall clock)."""
        self._bound: Mapping[int, int] = {}
        self._executors: Executors | None = None
        self._executor_rows: tuple[str, list[Rows]] = ("", [])
        """The rows that executors read for the last offer, with its fragment."""

    def distribute(self, executors: Executors) -> None:
        use = self._options.executors
        is_wanted = use is ExecutorUse.ALWAYS or (use is ExecutorUse.AUTO and executors.are_remote)
        self._executors = executors if is_wanted else None

    @property
    def start(self) -> str:
        return START

    @property
    def lag(self) -> Lag:
        """Counted in offsets, some of which may have no record; as of the last fetch."""
        return Lag() if self._outage is not None else self._reader.lag(self._bound, self._runtime.wall_s())

    @property
    def problems(self) -> tuple[Problem, ...]:
        if (outage := self._outage) is not None:
            return (to_problem(outage.why, outage.since_s, outage.wait_s),)
        return tuple(to_problem(why, since_s) for why, since_s in list(self._unreadable.values()))

    # Offering

    def offer(self, position: str, limit: Limit) -> Offer | None:
        if self._outage is not None and self._runtime.monotonic_s() < self._outage.retry_at_s:
            raise self._outage.why
        try:
            offer = self._make_offer(position, limit)
        except KafkaException as error:
            raise self._note_failure(error) from error
        self._outage = None
        self._brokers.recent_errors.clear()
        return offer

    def _make_offer(self, position: str, limit: Limit) -> Offer | None:
        topic_id, known = decode_position(position)
        self._bound = known
        topic = self._describe_topic(topic_id)
        following = self._all_partitions(topic, known)
        if position == START:
            return Offer(encode_position(topic.id, following), (), 0)
        if self._executors is not None and limit.rows > _EXECUTOR_RECORDS_MIN:
            first, last = (
                asked(self._admin, self._options.topic, list(following)) for asked in (read_beginnings, read_ends)
            )
            ranges_to_read = plan_ranges(following, first, last, limit)
            if sum(one.last - one.first for one in ranges_to_read) > _EXECUTOR_RECORDS_MIN:
                return self._offer_from_executors(topic, following, ranges_to_read, limit)
        self._reader.follow(following)
        self._reader.drain(limit)
        if self._reader.is_empty:
            self._reader.await_first(read_ends(self._admin, self._options.topic, list(following)), limit)
        self._note_unreadable()
        lost = self._find_expired(following)
        taken = self._reader.choose(limit)
        self._describe_topic(
            topic.id
        )  # verify that the topic was not deleted and recreated while its records were drained
        firsts = {one.partition: self._reader.first(one.partition) for one in taken}
        ranges = tuple(one.range(firsts[one.partition]) for one in taken)
        after = {**following, **{one.partition: one.last for one in ranges}, **{one[0]: one[2] for one in lost}}
        rows = sum(one.records for one in ranges)
        text = encode_position(topic.id, after)
        if text == position:
            for why, _ in self._unreadable.values():
                raise why
            return None
        topic_fragment = TopicFragment(topic.id, ranges, lost)
        fragments = (Place(msgspec.json.encode(topic_fragment).decode()),) if ranges or lost else ()
        return Offer(text, fragments, rows)

    def _note_unreadable(self) -> None:
        found, now_s = {}, self._runtime.wall_s()
        for number, error in self._reader.unreadable.items():
            where = f"topic {self._options.topic}, partition {number}, offset {self._reader.next(number)}"
            why = (
                f"{self._brokers.explain(error)}; if the batch is intact, it is too large when decompressed:"
                " raise the option kafka.receive.message.max.bytes"
            )
            since_s = self._unreadable[number][1] if number in self._unreadable else now_s
            found[number] = (SourceFailed(source=self.name, where=where, why=why), since_s)
        self._unreadable = found

    def _offer_from_executors(
        self, topic: Topic, following: Mapping[int, int], ranges: Sequence[OffsetRange], limit: Limit
    ) -> Offer:
        """Offer ranges that executors read. A range whose records were all aborted only advances the position."""
        self._reader.follow({})  # stop fetching in this process
        found = self._read_on_executors(ranges, limit.bytes)
        self._describe_topic(topic.id)
        after = {**following, **{one.range.partition: one.range.last for one in found}}
        full = [one for one in found if one.range.records]
        topic_fragment = TopicFragment(topic.id, tuple(one.range for one in full))
        fragment = Place(msgspec.json.encode(topic_fragment).decode())
        self._executor_rows = (fragment.where, [one.rows for one in full])
        rows = sum(one.range.records for one in full)
        return Offer(encode_position(topic.id, after), (fragment,) if full else (), rows)

    def _read_on_executors(self, ranges: Sequence[OffsetRange], bytes_max: int = 1 << 62) -> list[RangeRows]:
        assert self._executors is not None  # noqa: S101 - the callers check it
        try:
            outcomes = read_on_executors(
                self._executors, self._brokers, self._options.topic, self._decoder, ranges, bytes_max
            )
        except WorkFailed as error:
            where = f"topic {self._options.topic}, read by Spark's executors"
            raise SourceFailed(source=self.name, where=where, why=self._brokers.explain(str(error))) from error
        return [
            self._decode(one.partition, partial(unwrap_outcome, outcome))
            for one, outcome in zip(ranges, outcomes, strict=True)
        ]

    def _describe_topic(self, expected: str) -> Topic:
        found = describe(self._admin, self._options.topic)
        if expected and found.id != expected:
            why = f"the topic was deleted and created again: its id is {found.id}, not {expected}"
            raise self._make_changed_error(self._options.topic, why)
        return found

    def _all_partitions(self, topic: Topic, known: Mapping[int, int]) -> dict[int, int]:
        """The offsets of known partitions, and of new ones; at the start, those that the option `start` determines."""
        if known and topic.partitions < len(known):
            why = (
                f"the topic has {topic.partitions} partitions, but Evertide has read {len(known)}: "
                "partitions were removed, or the topic was created again"
            )
            raise self._make_changed_error(self._options.topic, why)
        new = [number for number in range(topic.partitions) if number not in known]
        start = self._options.start if not known else Start(StartKind.EARLIEST)
        found = self._find_start(start, new) if new else {}
        return {**known, **found}

    def _find_start(self, start: Start, partitions: Sequence[int]) -> dict[int, int]:
        if start.kind is StartKind.LATEST:
            return read_ends(self._admin, self._options.topic, partitions)
        if start.kind is StartKind.TIMESTAMP:
            return read_offsets_since(self._admin, self._options.topic, partitions, start.at_ms)
        earliest = read_beginnings(self._admin, self._options.topic, partitions)
        return {number: start.offsets.get(number, earliest[number]) for number in partitions}

    def _find_expired(self, following: Mapping[int, int]) -> tuple[tuple[int, int, int], ...]:
        """Ranges that expired before they were read, if `on_expired` is 'skip'; else raises `SourceChanged`."""
        found = []
        for one in list(self._reader.lost.values()):
            if self._reader.has(one.partition):
                continue  # offer the records before the gap first
            earliest = read_beginnings(self._admin, self._options.topic, [one.partition])[one.partition]
            latest = read_ends(self._admin, self._options.topic, [one.partition])[one.partition]
            if earliest <= following[one.partition] <= latest:
                self._reader.follow({})  # the offset exists again: the next `follow` fetches it, and all others
                break
            if earliest > one.offset and self._options.is_skipping_expired:
                found.append((one.partition, one.offset, earliest))
                continue
            where = f"{self._options.topic}, partition {one.partition}"
            why = f"offset {one.offset} is missing; the partition has the offsets from {earliest} to {latest}"
            if earliest > one.offset:
                why += "; set the option on_expired to 'skip' to continue without the missing records"
            raise self._make_changed_error(where, why)
        return tuple(found)

    # Reading

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        topic_fragment = decode_place(fragment, TopicFragment, self.name)
        if isinstance(fragment, Place) and fragment.where == self._executor_rows[0]:
            yield from self._executor_rows[1]
            return
        try:
            records = self._reader.find_ranges(topic_fragment.ranges)
            if (
                records is None
                and self._executors is not None
                and sum(one.records for one in topic_fragment.ranges) > _EXECUTOR_RECORDS_MIN
            ):
                found = self._read_on_executors(topic_fragment.ranges)
                self._describe_topic(topic_fragment.topic_id)
                self._verify(topic_fragment.ranges, [one.range for one in found])
                yield from (one.rows for one in found)
                return
            if records is None:
                records = read_again(self._brokers, self._options.topic, topic_fragment.ranges)
                self._describe_topic(topic_fragment.topic_id)
                read = zip(topic_fragment.ranges, records, strict=True)
                self._verify(topic_fragment.ranges, [one.range(expected.first) for expected, one in read])
        except KafkaException as error:
            raise self._note_failure(error) from error
        if topic_fragment.lost:
            yield self._report_lost(topic_fragment)
        if len(records) == 1:
            yield self._rows(records[0])
        else:
            yield from self._pool.map(self._rows, records)

    def _rows(self, records: PartitionRecords) -> Rows:
        return self._decode(records.partition, partial(self._decoder.rows, records, self._place(records.partition)))

    def _place(self, partition: int) -> str:
        return f"{self._options.topic}-{partition}"

    def _decode(self, partition: int, decode: Callable[[], Decoded]) -> Decoded:
        """Return the decoded rows, or raise the error that stalls the source."""
        try:
            return decode()
        except RegistryAway as error:
            where = "the schema registry"
            raise SourceFailed(source=self.name, where=where, why=self._brokers.explain(str(error))) from error
        except Truncated as error:
            why = "the table was truncated upstream, and the topic does not name the removed rows; delete them upstream"
            why += " one by one, or create the table and its topic again"
            raise SourceFailed(source=self.name, where=self._place(partition), why=why) from error

    def _verify(self, ranges: Sequence[OffsetRange], read: Sequence[OffsetRange]) -> None:
        for expected, found in zip(ranges, read, strict=True):
            if (found.records, found.checksum) != (expected.records, expected.checksum):
                where = f"{self._options.topic}, partition {expected.partition}"
                had = f"{expected.records} records with checksum {expected.checksum}"
                why = f"offsets {expected.first} to {expected.last - 1} had {had}, and now have {found.records} with"
                why += f" {found.checksum}: records expired, were compacted, or were replaced"
                raise self._make_changed_error(where, why)

    def _report_lost(self, topic_fragment: TopicFragment) -> Rows:
        """A dead letter for each gap, so that skipped records are reported."""
        faults = [
            Fault(
                table=self._declaration.name,
                place=f"{self._options.topic}-{partition}",
                line=first,
                reason=f"the offsets from {first} to {last - 1} expired before they were read",
                raw="",
            )
            for partition, first, last in topic_fragment.lost
        ]
        return Rows(self._declaration.name, make_rows_schema(self._declaration).empty_table(), faults)

    # The rest

    def acknowledge(self, position: str) -> None:
        """Commit the offsets to the consumer group, if there is one, for monitoring only."""
        _, following = decode_position(position)
        self._bound = following
        if self._options.group and following:
            try:
                self._reader.commit(following)
            except KafkaException as error:
                raise self._note_failure(error) from error

    def close(self) -> None:
        self._pool.shutdown()
        self._reader.close()

    def _make_changed_error(self, where: str, why: str) -> SourceChanged:
        return SourceChanged(source=self.name, where=f"topic {where}", why=why)

    def _note_failure(self, error: KafkaException) -> SourceFailed:
        before, now_s = self._outage, self._runtime.monotonic_s()
        wait_s = min(before.wait_s * 2, _AWAY_MAX_S) if before is not None else _AWAY_FIRST_S
        where = f"topic {self._options.topic} at {self._brokers.address}"
        kind = SourceAway if self._brokers.is_away(error) else SourceFailed
        why: SourceFailed = kind(source=self.name, where=where, why=self._brokers.explain(error))
        if find_cause(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            why = self._make_changed_error(self._options.topic, "the topic does not exist any more")
        since_s = before.since_s if before is not None and type(before.why) is type(why) else self._runtime.wall_s()
        self._outage = _Outage(why, wait_s, now_s + wait_s, since_s)
        return why


def open_kafka(name: str, tables: Sequence[TableDeclaration], runtime: Runtime, base: Path) -> KafkaSource:
    """`InvalidInput` if an option is invalid, no broker answers, or the topic does not exist."""
    (declaration,) = tables
    options = read_options(declaration, base)
    options.brokers.probe(options.topic, options.where)
    if options.registry is not None:
        try:
            options.registry.probe()
        except RegistryAway as error:
            why = f"the option 'schema_registry': {options.brokers.explain(str(error))}"
            raise InvalidInput(where=options.where, why=why) from error
    return KafkaSource(name, declaration, options, runtime)
