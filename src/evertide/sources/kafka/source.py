"""The connector `kafka`: a topic's records as rows of a table.

    CREATE TABLE t (...) USING kafka OPTIONS (brokers 'host:port', topic 't', format 'json', envelope 'upsert')

docs/kafka.md has all options. How it keeps the contract:

1. A position has the next offset of each partition. Where to begin (`start`) is found out once and bound by itself at
   once, so that 'latest' is one moment, whatever is restarted.
2. Rows come partition by partition, by offset. Producers put a key into one partition, always the same as long as their
   number stays; so the last change of a key wins (U5).
3. A partition that is new is read from its beginning.
4. What was bound is read again as it was, or is `SourceChanged` (J4): another topic of that name, offsets that expired,
   records that were compacted away or differ. All of it shows in counts and checksums.
5. Brokers that are away stall the source, which asks again after a while, longer each time; librdkafka connects again
   by itself. Nothing is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
from confluent_kafka import KafkaError, KafkaException

from evertide.brokers import Brokers, Topic, cause, describe
from evertide.errors import InvalidInput, SourceChanged, SourceFailed
from evertide.journal.records import Fragment, Place
from evertide.runtime import Runtime
from evertide.sources.contract import Fault, Limit, Offer, Rows, TableDeclaration
from evertide.sources.fit import rows_schema
from evertide.sources.kafka.debezium import Truncated
from evertide.sources.kafka.fetch import Fetched, beginnings, ends, read_again, since
from evertide.sources.kafka.options import Asked, Start, read_options
from evertide.sources.kafka.place import START, Piece, Range, Records, position_text, read_position
from evertide.sources.kafka.rows import Decoder
from evertide.sources.kafka.schema_registry import RegistryAway

__all__ = ["KafkaSource", "open_kafka"]

_AWAY_FIRST_S = 0.25
_AWAY_MAX_S = 5.0
_THREADS = 4


@dataclass(frozen=True, slots=True)
class _Away:
    """Why the brokers cannot be asked, and when they are asked again."""

    why: SourceFailed
    wait_s: float
    again_s: float


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

    @property
    def start(self) -> str:
        return START

    # Offering

    def offer(self, position: str, limit: Limit) -> Offer | None:
        if self._away is not None and self._runtime.monotonic_s() < self._away.again_s:
            raise self._away.why
        try:
            offer = self._offered(position, limit)
        except KafkaException as error:
            raise self._is_away(error) from error
        self._away = None
        self._brokers.heard.clear()
        return offer

    def _offered(self, position: str, limit: Limit) -> Offer | None:
        topic_id, known = read_position(position)
        topic = self._topic(topic_id)
        following = self._all_partitions(topic, known)
        if position == START:
            return Offer(position_text(topic.id, following), (), 0)
        self._fetched.follow(following)
        self._fetched.drain(limit)
        if self._fetched.is_empty:
            self._fetched.await_first(ends(self._admin, self._asked.topic, list(following)), limit)
        lost = self._passed_over(following)
        taken = self._fetched.taken(limit)
        self._topic(topic.id)  # what was drained is of this topic, and not of one that was made anew meanwhile
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

    def _topic(self, expected: str) -> Topic:
        found = describe(self._admin, self._asked.topic)
        if expected and found.id != expected:
            why = f"expected the topic with the id {expected}, found {found.id}: it was deleted and made anew"
            raise self._changed(self._asked.topic, why)
        return found

    def _all_partitions(self, topic: Topic, known: Mapping[int, int]) -> dict[int, int]:
        """Those that the position has, and new ones; at the very beginning all, from where the option start says."""
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
        """Offsets that expired before they were read, if the option on_expired says to go on after them."""
        found = []
        for one in list(self._fetched.lost.values()):
            if self._fetched.has(one.partition):
                continue  # first what came before the gap
            earliest = beginnings(self._admin, self._asked.topic, [one.partition])[one.partition]
            latest = ends(self._admin, self._asked.topic, [one.partition])[one.partition]
            if earliest <= following[one.partition] <= latest:
                del self._fetched.lost[one.partition]  # it is there again: `follow` sees to it
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
        try:
            records = self._fetched.kept(piece.ranges)
            if records is None:
                records = read_again(self._brokers, self._asked.topic, piece.ranges)
                self._topic(piece.topic_id)
                self._verify(piece.ranges, records)
        except KafkaException as error:
            raise self._is_away(error) from error
        if piece.lost:
            yield self._lost_rows(piece)
        if len(records) == 1:
            yield self._rows(records[0])
        else:
            yield from self._pool.map(self._rows, records)

    def _rows(self, records: Records) -> Rows:
        place = f"{self._asked.topic}-{records.partition}"
        try:
            return self._decoder.rows(records, place)
        except RegistryAway as error:
            where = "the schema registry"
            raise SourceFailed(source=self.name, where=where, why=self._brokers.said(str(error))) from error
        except Truncated as error:
            why = (
                "the table was truncated upstream, which a change of single rows cannot say: delete its rows upstream, "
            )
            why += "or make the table and its topic anew"
            raise SourceFailed(source=self.name, where=place, why=why) from error

    def _verify(self, ranges: Sequence[Range], records: Sequence[Records]) -> None:
        for expected, found in zip(ranges, records, strict=True):
            digest = found.checksum()
            if (len(found.offsets), digest) != (expected.records, expected.checksum):
                where = f"{self._asked.topic}, partition {expected.partition}"
                span = f"in the offsets from {expected.first} to {expected.last - 1}"
                why = f"expected {expected.records} records {span} with the checksum {expected.checksum}, "
                why += f"found {len(found.offsets)} with {digest}: they expired, were compacted, or are others"
                raise self._changed(where, why)

    def _lost_rows(self, piece: Piece) -> Rows:
        """A dead letter for each gap, so that nothing is lost without a word."""
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
            raise InvalidInput(where=f"source {self.name!r}", why="a staged fragment is none of a source of Kafka")
        try:
            return msgspec.json.decode(fragment.where, type=Piece)
        except msgspec.MsgspecError as error:
            raise InvalidInput(where=f"source {self.name!r}", why=f"{fragment.where!r} is no piece: {error}") from error

    # The rest

    def acknowledge(self, position: str) -> None:
        """For others to see how far we are, if a group is given. Nothing rests on it."""
        _, following = read_position(position)
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
        wait_s = min(self._away.wait_s * 2, _AWAY_MAX_S) if self._away is not None else _AWAY_FIRST_S
        where = f"topic {self._asked.topic} at {self._brokers.address}"
        why = SourceFailed(source=self.name, where=where, why=self._brokers.said(error))
        if cause(error).code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            why = self._changed(self._asked.topic, "expected it, found no such topic: it was deleted")
        self._away = _Away(why, wait_s, self._runtime.monotonic_s() + wait_s)
        return why


def open_kafka(name: str, tables: Sequence[TableDeclaration], runtime: Runtime, base: Path) -> KafkaSource:
    """`InvalidInput` if an option means nothing, no broker answers, or there is no such topic."""
    (declaration,) = tables
    asked = read_options(declaration, base)
    asked.brokers.probe(asked.topic, asked.where)
    if asked.registry is not None:
        try:
            asked.registry.probe()
        except RegistryAway as error:
            why = f"the option 'schema_registry': {asked.brokers.said(str(error))}"
            raise InvalidInput(where=asked.where, why=why) from error
    return KafkaSource(name, declaration, asked, runtime)
