"""`Producers`: the last sequence number of each producer (J10).

Stored as Meta key `producer/<name>`, version 1, one `Producer` each; the newest record counts.

1. The record is written in the commit that binds the transaction, so both exist or neither does.
2. The record of a transaction names only its own producers, each with its previous number (`ProducerNumber.before`).
   The numbers at an earlier time therefore follow from the newest records and the transactions since.
3. A producer that has sent nothing for `producers_kept_days` is forgotten, unless it is one of the `producers_kept_min`
   newest. If it then repeats a push, the push counts as new.
4. A key may be removed and written again. The commit that writes it also writes the journal's next record, so no commit
   mistakes the new key for the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from evertide.journal.records import Bound, Input, ProducerNumber
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, Record, Write, seal, unseal
from evertide.store.paths import producer_key
from evertide.store.retry import commit_until_known, retry_read, truncate_sometimes
from evertide.store.writers import Writer
from evertide.types import SequenceNumber, Time

_DAY_S = 86_400.0
_FORGET_BATCH = 500
_SINGLE_READS_MAX = 100
"""More keys than this are read with one scan over all producers."""


class Producer(msgspec.Struct, frozen=True):
    name: str
    number: int
    time: Time
    """The transaction that bound the number."""
    at_s: float
    """When the transaction was bound."""


@dataclass(frozen=True, slots=True)
class StoredProducer:
    """The record number and the content of a key, as read."""

    seqno: SequenceNumber
    producer: Producer | None = None


_NEW_PRODUCER = StoredProducer(SequenceNumber(0))


@dataclass(frozen=True, slots=True)
class Producers:
    """Safe to share between threads."""

    meta: Meta
    runtime: Runtime
    settings: Settings

    def read_last(self, name: str) -> Producer | None:
        """None if the producer is unknown."""
        return self._read_one(name).producer

    def read_known(self, inputs: Mapping[str, Input]) -> dict[str, StoredProducer]:
        names = {name for given in inputs.values() for name in _numbers(given)}
        if len(names) > _SINGLE_READS_MAX:
            all_known = self._read_all()
            return {name: all_known.get(name, _NEW_PRODUCER) for name in names}
        return {name: self._read_one(name) for name in names}

    def read_before(self, time: int, since: Callable[[], Iterable[Bound]]) -> dict[str, tuple[int, int]]:
        """By name, the number and the transaction of each producer as they were before a time.

        `since` returns all records from that time on. It is called after the newest producer records are read, so that
        it has every transaction that those name.
        """
        found: dict[str, tuple[int, int]] = {
            name: (known.producer.number, known.producer.time)
            for name, known in self._read_all().items()
            if known.producer is not None
        }
        seen: set[str] = set()
        for bound in since():
            for name, number in _all_numbers(bound).items():
                if bound.time >= time and name not in seen:
                    seen.add(name)
                    found.pop(name, None)
                    if number.before is not None:
                        found[name] = number.before
        return found

    def make_writes(self, bound: Bound, known: Mapping[str, StoredProducer]) -> list[Write]:
        """The writes to include in the commit that binds a transaction."""
        return [
            Write(
                producer_key(name),
                known[name].seqno,
                seal(Producer(name, number.number, number.time, bound.bound_at_s)),
            )
            for name, number in _all_numbers(bound).items()
        ]

    def truncate_old(self, writes: Iterable[Write]) -> None:
        for write in writes:
            truncate_sometimes(self.meta, write.key, write.expected + 1)

    def forget(self, writer: Writer) -> int:
        """Forget producers that have been silent for too long; return how many."""
        settings = self.settings
        before_s = self.runtime.wall_s() - settings.producers_kept_days * _DAY_S
        known = [one for one in self._read_all().values() if one.producer is not None]
        known.sort(key=lambda one: one.producer.at_s if one.producer else 0.0)
        old = [
            Write(producer_key(one.producer.name), one.seqno, None)
            for one in known[: max(0, len(known) - settings.producers_kept_min)]
            if one.producer is not None and one.producer.at_s < before_s
        ]
        count = 0
        for first in range(0, len(old), _FORGET_BATCH):
            some = old[first : first + _FORGET_BATCH]
            stale = commit_until_known(self.meta, some, writer.guards(), self.runtime, settings)
            if stale is not None:
                writer.check(stale)  # otherwise a producer has just sent something: retry in the next sweep
                continue
            count += len(some)
        return count

    def _read_one(self, name: str) -> StoredProducer:
        key = producer_key(name)
        record = retry_read(lambda: self.meta.head(key), self.runtime, self.settings)
        return self._decode(key, record) if record else _NEW_PRODUCER

    def _read_all(self) -> dict[str, StoredProducer]:
        heads = retry_read(lambda: self.meta.heads(producer_key("")), self.runtime, self.settings)
        found = [self._decode(key, record) for key, record in heads.items()]
        return {known.producer.name: known for known in found if known.producer is not None}

    def _decode(self, key: str, record: Record) -> StoredProducer:
        return StoredProducer(record.seqno, unseal(record.data, Producer, self.meta.path(key)))


def add_before(inputs: Mapping[str, Input], known: Mapping[str, StoredProducer]) -> dict[str, Input]:
    """Add the known number of each producer to the inputs as `before`."""
    completed = dict(inputs)
    for source, given in inputs.items():
        numbers = {name: _add_before(number, known[name].producer) for name, number in _numbers(given).items()}
        if numbers:
            completed[source] = msgspec.structs.replace(given, producers=numbers)
    return completed


def _add_before(number: ProducerNumber, known: Producer | None) -> ProducerNumber:
    if number.before is not None or known is None:
        return number
    return msgspec.structs.replace(number, before=(known.number, known.time))


def _all_numbers(bound: Bound) -> dict[str, ProducerNumber]:
    return {name: number for given in bound.inputs.values() for name, number in _numbers(given).items()}


def _numbers(given: Input) -> Mapping[str, ProducerNumber]:
    return {} if isinstance(given.producers, msgspec.UnsetType) else given.producers
