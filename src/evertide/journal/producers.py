"""`Producers`: the last number of every producer that numbers its pushes (J10).

Where it lies: Meta key `producer/<name>`, version 1, one `Producer` each, of which the newest record counts.

1. The record is written in the commit that binds the transaction, so that both are there or neither.
2. The record of a transaction names only the producers that are in it, each with what was known of it before
   (`Number`). So what was known at an earlier time follows from the newest records and from the transactions since.
3. A producer is forgotten when it has sent nothing for `producers_kept_days`, unless it is one of the
   `producers_kept_min` newest. What it repeats after that is taken as new.
4. A key may be removed, and written again later: whoever writes one also writes the journal's next record, so that no
   commit takes the new key for the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from evertide.journal.records import Bound, Input, Number
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, Record, Write
from evertide.store.paths import producer_key
from evertide.store.retry import commit_settled, reading, truncate_sometimes
from evertide.store.sealed import seal, unseal
from evertide.store.writers import Writer

__all__ = ["Known", "Producer", "Producers", "with_before"]

_DAY_S = 86_400.0
_FORGET_AT_ONCE = 500
_MANY = 100
"""More keys than this are read together with all the others."""


class Producer(msgspec.Struct, frozen=True):
    name: str
    number: int
    time: int
    """The transaction that bound the number."""
    at_s: float
    """When it was bound."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a key held when it was read."""

    seqno: int = 0
    producer: Producer | None = None


class Producers:
    """Safe to share between threads."""

    def __init__(self, meta: Meta, runtime: Runtime, settings: Settings) -> None:
        self._meta = meta
        self._runtime = runtime
        self._settings = settings

    def last(self, name: str) -> Producer | None:
        """None if nothing is known of it."""
        return self._known(name).producer

    def known(self, inputs: Mapping[str, Input]) -> dict[str, Known]:
        """Of all producers in these."""
        names = {name for given in inputs.values() for name in _numbers(given)}
        if len(names) > _MANY:
            everyone = self._all()
            return {name: everyone.get(name, Known()) for name in names}
        return {name: self._known(name) for name in names}

    def before(self, time: int, since: Callable[[], Iterable[Bound]]) -> dict[str, tuple[int, int]]:
        """By name, number and time, as they were before a time.

        `since` has all transactions from that time on. It is called after the newest records were read, so that none
        of those is of a transaction that it lacks.
        """
        found = {
            name: (known.producer.number, known.producer.time)
            for name, known in self._all().items()
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

    def writes(self, bound: Bound, known: Mapping[str, Known]) -> list[Write]:
        """For the commit that binds a transaction."""
        return [
            Write(
                producer_key(name),
                known[name].seqno,
                seal(Producer(name, number.number, number.time, bound.bound_at_s)),
            )
            for name, number in _all_numbers(bound).items()
        ]

    def written(self, writes: Iterable[Write]) -> None:
        """The commit happened: what came before is superfluous."""
        for write in writes:
            truncate_sometimes(self._meta, write.key, write.expected + 1)

    def forget(self, writer: Writer) -> int:
        """Forget those that have been silent for too long: how many."""
        settings = self._settings
        before_s = self._runtime.wall_s() - settings.producers_kept_days * _DAY_S
        known = [one for one in self._all().values() if one.producer is not None]
        known.sort(key=lambda one: one.producer.at_s if one.producer else 0.0)
        old = [
            Write(producer_key(one.producer.name), one.seqno, None)
            for one in known[: max(0, len(known) - settings.producers_kept_min)]
            if one.producer is not None and one.producer.at_s < before_s
        ]
        count = 0
        for first in range(0, len(old), _FORGET_AT_ONCE):
            some = old[first : first + _FORGET_AT_ONCE]
            stale = commit_settled(self._meta, some, writer.guards(), self._runtime, settings)
            if stale is not None:
                writer.check(stale)  # or one of them has just sent something: the next time will do
                continue
            count += len(some)
        return count

    def _known(self, name: str) -> Known:
        key = producer_key(name)
        record = reading(lambda: self._meta.head(key), self._runtime, self._settings)
        return self._read(key, record) if record else Known()

    def _all(self) -> dict[str, Known]:
        heads = reading(lambda: self._meta.heads(producer_key("")), self._runtime, self._settings)
        found = [self._read(key, record) for key, record in heads.items()]
        return {known.producer.name: known for known in found if known.producer is not None}

    def _read(self, key: str, record: Record) -> Known:
        return Known(record.seqno, unseal(record.data, Producer, self._meta.path(key)))


def with_before(inputs: Mapping[str, Input], known: Mapping[str, Known]) -> dict[str, Input]:
    """The inputs with what was known of their producers."""
    made = dict(inputs)
    for source, given in inputs.items():
        numbers = {name: _with_before(number, known[name].producer) for name, number in _numbers(given).items()}
        if numbers:
            made[source] = msgspec.structs.replace(given, producers=numbers)
    return made


def _with_before(number: Number, known: Producer | None) -> Number:
    if number.before is not None or known is None:
        return number
    return msgspec.structs.replace(number, before=(known.number, known.time))


def _all_numbers(bound: Bound) -> dict[str, Number]:
    return {name: number for given in bound.inputs.values() for name, number in _numbers(given).items()}


def _numbers(given: Input) -> Mapping[str, Number]:
    return {} if isinstance(given.producers, msgspec.UnsetType) else given.producers
