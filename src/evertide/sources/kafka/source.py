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
5. If the brokers are unreachable, the source stalls and retries with growing waits; librdkafka reconnects. No record is
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

from evertide.brokers import Brokers, Topic, cause, describe
from evertide.errors import InvalidInput, SourceAway, SourceChanged, SourceFailed, Unexpected
from evertide.journal.records import Fragment, Place
from evertide.problem import Problem
from evertide.runtime import Runtime
from evertide.sources.contract import Fault, Lag, Limit, Offer, Rows, TableDeclaration, to_problem
from evertide.sources.executors import Executors, WorkFailed
from evertide.sources.kafka.debezium import Truncated
from evertide.sources.kafka.fetch import Fetched, beginnings, ends, read_again, since
from evertide.sources.kafka.options import Asked, Start, read_options
from evertide.sources.kafka.place import START, Piece, Range, Records, position_text, read_position
from evertide.sources.kafka.rows import Decoder
from evertide.sources.kafka.schema_registry import RegistryAway
from evertide.sources.kafka.spread import Found, found_of, planned, spread
from evertide.sources.values.fit import rows_schema

__all__ = ["KafkaSource", "open_kafka"]

_AWAY_FIRST_S = 0.25
_AWAY_MAX_S = 5.0
_THREADS = 4
_MANY = 100_000
"""Executors read an offer with more records than this."""

Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class _Away:
    """Why the brokers are unreachable, the current wait, the time of the next retry, and since when (wall clock)."""

    why: SourceFailed
    wait_s: float
    again_s: float
    since_s: float


class KafkaSource:
    def __init__(self, name: str, declaration: TableDeclaration, asked: Asked, runtime: Runtime) -> None:
        self.name = name
        self.tables: tuple[str, ...] = (declaration.name,)
        self._declaration = declaration
        self._asked = asked
        self._brokers: Brokers = asked.brokers
        self._decoder: Decoder = asked.decoder
        self._runtime = runtime
        self._admin = asked.brokers.admin()
        self._fetched = Fetched(asked.brokers, asked.topic, asked.group)
        self._pool = ThreadPoolExecutor(_THREADS, f"kafka-{name}")
        self._away: _Away | None = None
        self._bound: Mapping[int, int] = {}
        self._executors: Executors | None = None
        self._afar: tuple[str, list[Rows]] = ("", [])
        """The rows that executors read for the last offer, with its fragment."""

    def distribute(self, executors: Executors) -> None:
        is_wanted = self._asked.executors == "always" or (self._asked.executors == "auto" and executors.are_remote)
        self._executors = executors if is_wanted else None

    @property
    def start(self) -> str:
        return START

    @property
    def lag(self) -> Lag:
        """Counted in offsets, some of which may have no record; as of the last fetch."""
        return Lag() if self._away is not None else self._fetched.lag(self._bound, self._runtime.wall_s())

    @property
    def problems(self) -> tuple[Problem, ...]:
        away = self._away
        return () if away is None else (to_problem(away.why, away.since_s, away.wait_s),)

    # Offering

    def offer(self, position: str, limit: Limit) -> Offer | None:
        if self._away is not None and self._runtime.monotonic_s() < self._away.again_s:
            raise self._away.why
        try:
            offer = self._offered(position, limit)
        except KafkaException as error:
            raise self._is_away(error) from error
        self._away = None
        self._brokers.recent_errors.clear()
        return offer

    def _offered(self, position: str, limit: Limit) -> Offer | None:
        topic_id, known = read_position(position)
        self._bound = known
        topic = self._topic(topic_id)
        following = self._all_partitions(topic, known)
        if position == START:
            return Offer(position_text(topic.id, following), (), 0)
        if self._executors is not None and limit.rows > _MANY:
            first, last = (asked(self._admin, self._asked.topic, list(following)) for asked in (beginnings, ends))
            far = planned(following, first, last, limit)
            if sum(one.last - one.first for one in far) > _MANY:
                return self._offered_afar(topic, following, far, limit)
        self._fetched.follow(following)
        self._fetched.drain(limit)
        if self._fetched.is_empty:
            self._fetched.await_first(ends(self._admin, self._asked.topic, list(following)), limit)
        lost = self._passed_over(following)
        taken = self._fetched.taken(limit)
        self._topic(topic.id)  # verify that the topic was not deleted and recreated while its records were drained
        firsts = {one.partition: self._fetched.first(one.partition) for one in taken}
        ranges = tuple(one.range(firsts[one.partition]) for one in taken)
        after = {**following, **{one.partition: one.last for one in ranges}, **{one[0]: one[2] for one in lost}}
        rows = sum(one.records for one in ranges)
        text = position_text(topic.id, after)
        if text == position:
            return None
        piece = Piece(topic.id, ranges, lost)
        fragments = (Place(msgspec.json.encode(piece).decode()),) if ranges or lost else ()
        return Offer(text, fragments, rows)

    def _offered_afar(self, topic: Topic, following: Mapping[int, int], ranges: Sequence[Range], limit: Limit) -> Offer:
        """Offer ranges that executors read. A range whose records were all aborted only advances the position."""
        self._fetched.follow({})  # stop fetching in this process
        found = self._read_afar(ranges, limit.bytes)
        self._topic(topic.id)
        after = {**following, **{one.range.partition: one.range.last for one in found}}
        full = [one for one in found if one.range.records]
        piece = Piece(topic.id, tuple(one.range for one in full))
        fragment = Place(msgspec.json.encode(piece).decode())
        self._afar = (fragment.where, [one.rows for one in full])
        rows = sum(one.range.records for one in full)
        return Offer(position_text(topic.id, after), (fragment,) if full else (), rows)

    def _read_afar(self, ranges: Sequence[Range], bytes_max: int = 1 << 62) -> list[Found]:
        assert self._executors is not None  # noqa: S101 - the callers check it
        try:
            outcomes = spread(self._executors, self._brokers, self._asked.topic, self._decoder, ranges, bytes_max)
        except WorkFailed as error:
            where = f"topic {self._asked.topic}, read by Spark's executors"
            raise SourceFailed(source=self.name, where=where, why=self._brokers.explain(str(error))) from error
        return [
            self._told(one.partition, partial(found_of, outcome)) for one, outcome in zip(ranges, outcomes, strict=True)
        ]

    def _topic(self, expected: str) -> Topic:
        found = describe(self._admin, self._asked.topic)
        if expected and found.id != expected:
            why = f"expected the topic with the id {expected}, found {found.id}: it was deleted and made anew"
            raise self._changed(self._asked.topic, why)
        return found

    def _all_partitions(self, topic: Topic, known: Mapping[int, int]) -> dict[int, int]:
        """The offsets of known partitions, and of new ones; at the start, those that the option `start` determines."""
        if known and topic.partitions < len(known):
            why = f"expected {len(known)} partitions, found {topic.partitions}"
            raise self._changed(self._asked.topic, why)
        new = [number for number in range(topic.partitions) if number not in known]
        start = self._asked.start if not known else Start("earliest")
        found = self._started(start, new) if new else {}
        return {**known, **found}

    def _started(self, start: Start, partitions: Sequence[int]) -> dict[int, int]:
        if start.kind == "latest":
            return ends(self._admin, self._asked.topic, partitions)
        if start.kind == "timestamp":
            return since(self._admin, self._asked.topic, partitions, start.at_ms)
        earliest = beginnings(self._admin, self._asked.topic, partitions)
        return {number: start.offsets.get(number, earliest[number]) for number in partitions}

    def _passed_over(self, following: Mapping[int, int]) -> tuple[tuple[int, int, int], ...]:
        """Ranges that expired before they were read, if `on_expired` is 'skip'; else raises `SourceChanged`."""
        found = []
        for one in list(self._fetched.lost.values()):
            if self._fetched.has(one.partition):
                continue  # offer the records before the gap first
            earliest = beginnings(self._admin, self._asked.topic, [one.partition])[one.partition]
            latest = ends(self._admin, self._asked.topic, [one.partition])[one.partition]
            if earliest <= following[one.partition] <= latest:
                del self._fetched.lost[one.partition]  # the offset exists again: fetch it with the next `follow`
                self._fetched.follow({})
                continue
            if earliest > one.offset and self._asked.is_skipping_expired:
                found.append((one.partition, one.offset, earliest))
                continue
            where = f"{self._asked.topic}, partition {one.partition}"
            why = f"expected the offset {one.offset}, found only those from {earliest} to {latest}"
            hint = "; set the option on_expired to 'skip' to go on without them" if earliest > one.offset else ""
            raise self._changed(where, why + hint)
        return tuple(found)

    # Reading

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        piece = self._piece(fragment)
        if isinstance(fragment, Place) and fragment.where == self._afar[0]:
            yield from self._afar[1]
            return
        try:
            records = self._fetched.kept(piece.ranges)
            if records is None and self._executors is not None and sum(one.records for one in piece.ranges) > _MANY:
                found = self._read_afar(piece.ranges)
                self._topic(piece.topic_id)
                self._verify(piece.ranges, [one.range for one in found])
                yield from (one.rows for one in found)
                return
            if records is None:
                records = read_again(self._brokers, self._asked.topic, piece.ranges)
                self._topic(piece.topic_id)
                read = zip(piece.ranges, records, strict=True)
                self._verify(piece.ranges, [one.range(expected.first) for expected, one in read])
        except KafkaException as error:
            raise self._is_away(error) from error
        if piece.lost:
            yield self._lost_rows(piece)
        if len(records) == 1:
            yield self._rows(records[0])
        else:
            yield from self._pool.map(self._rows, records)

    def _rows(self, records: Records) -> Rows:
        return self._told(records.partition, partial(self._decoder.rows, records, self._place(records.partition)))

    def _place(self, partition: int) -> str:
        return f"{self._asked.topic}-{partition}"

    def _told(self, partition: int, decode: Callable[[], Decoded]) -> Decoded:
        """Return the decoded rows, or raise the error that stalls the source."""
        try:
            return decode()
        except RegistryAway as error:
            where = "the schema registry"
            raise SourceFailed(source=self.name, where=where, why=self._brokers.explain(str(error))) from error
        except Truncated as error:
            why = (
                "the table was truncated upstream, and a truncation has no changes of rows: delete its rows upstream, "
            )
            why += "or make the table and its topic anew"
            raise SourceFailed(source=self.name, where=self._place(partition), why=why) from error

    def _verify(self, ranges: Sequence[Range], read: Sequence[Range]) -> None:
        for expected, found in zip(ranges, read, strict=True):
            if (found.records, found.checksum) != (expected.records, expected.checksum):
                where = f"{self._asked.topic}, partition {expected.partition}"
                span = f"in the offsets from {expected.first} to {expected.last - 1}"
                why = f"expected {expected.records} records {span} with the checksum {expected.checksum}, "
                why += f"found {found.records} with {found.checksum}: they expired, were compacted, or are others"
                raise self._changed(where, why)

    def _lost_rows(self, piece: Piece) -> Rows:
        """A dead letter for each gap, so that skipped records are reported."""
        faults = [
            Fault(
                table=self._declaration.name,
                place=f"{self._asked.topic}-{partition}",
                line=first,
                reason=f"the offsets from {first} to {last - 1} expired before they were read",
                raw="",
            )
            for partition, first, last in piece.lost
        ]
        return Rows(self._declaration.name, rows_schema(self._declaration).empty_table(), faults)

    def _piece(self, fragment: Fragment) -> Piece:
        if not isinstance(fragment, Place):
            raise Unexpected(where=f"source {self.name!r}", why="a Kafka source received a staged fragment")
        try:
            return msgspec.json.decode(fragment.where, type=Piece)
        except msgspec.MsgspecError as error:
            why = f"{fragment.where!r} is not a fragment of a Kafka source: {error}"
            raise Unexpected(where=f"source {self.name!r}", why=why) from error

    # The rest

    def acknowledge(self, position: str) -> None:
        """Commit the offsets to the consumer group, if there is one, for monitoring only."""
        _, following = read_position(position)
        self._bound = following
        if self._asked.group and following:
            try:
                self._fetched.commit(following)
            except KafkaException as error:
                raise self._is_away(error) from error

    def close(self) -> None:
        self._pool.shutdown()
        self._fetched.close()

    def _changed(self, where: str, why: str) -> SourceChanged:
        return SourceChanged(source=self.name, where=f"topic {where}", why=why)

    def _is_away(self, error: KafkaException) -> SourceFailed:
        before, now_s = self._away, self._runtime.monotonic_s()
        wait_s = min(before.wait_s * 2, _AWAY_MAX_S) if before is not None else _AWAY_FIRST_S
        where = f"topic {self._asked.topic} at {self._brokers.address}"
        kind = SourceAway if self._brokers.are_away(error) else SourceFailed
        why: SourceFailed = kind(source=self.name, where=where, why=self._brokers.explain(error))
        if cause(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            why = self._changed(self._asked.topic, "expected it, found no such topic: it was deleted")
        since_s = before.since_s if before is not None and type(before.why) is type(why) else self._runtime.wall_s()
        self._away = _Away(why, wait_s, now_s + wait_s, since_s)
        return why


def open_kafka(name: str, tables: Sequence[TableDeclaration], runtime: Runtime, base: Path) -> KafkaSource:
    """`InvalidInput` if an option is invalid, no broker answers, or the topic does not exist."""
    (declaration,) = tables
    asked = read_options(declaration, base)
    asked.brokers.probe(asked.topic, asked.where)
    if asked.registry is not None:
        try:
            asked.registry.probe()
        except RegistryAway as error:
            why = f"the option 'schema_registry': {asked.brokers.explain(str(error))}"
            raise InvalidInput(where=asked.where, why=why) from error
    return KafkaSource(name, declaration, asked, runtime)
