"""The source of pushed rows. It cannot repeat its input, so the input is staged before it is bound, except for a few
rows: these are stored with the record that binds them.

1. A *push transaction* has rows for one or more tables; all of them become part of one transaction, or none.
2. It may have the name of a producer and a sequence number, so that a repeated push takes effect once (J10). A
   producer's numbers must increase: the producer waits for each answer before it sends the next push.
3. The position is the number of push transactions that were bound. The journal stores the last number of each producer
   (`evertide.journal.producers`). A position has these numbers only in a checkpoint, or if an earlier version wrote it;
   the next bind then moves them to the journal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import EvertideError, InvalidInput, NotAllowedNow, OutcomeUnknown, TimeCompacted, Unexpected
from evertide.journal.journal import Journal
from evertide.journal.records import Fragment, ProducerNumber, Staged
from evertide.journal.staging import list_staged
from evertide.journal.xids import PUSH
from evertide.settings import Settings
from evertide.sources.contract import DELETE, OP, Limit, Offer, Rows, TableDeclaration
from evertide.sources.values.rows import convert_push
from evertide.store.writers import Writer
from evertide.types import Time

__all__ = ["PUSH", "PushTransaction", "Pushes", "complete_position"]

logger = logging.getLogger(__name__)


_IN_JOURNAL = 2
"""Stands in place of the producers, which the journal stores. An earlier version of Evertide refuses it."""


class _PushPosition(msgspec.Struct, frozen=True):
    pushes: int = 0
    producers: dict[str, tuple[int, int]] | int = {}

    @property
    def own(self) -> Mapping[str, tuple[int, int]] | None:
        """Per producer, the last number and the time that bound it; None if the journal stores them."""
        return self.producers if isinstance(self.producers, dict) else None


def complete_position(position: str, producers: Mapping[str, tuple[int, int]]) -> str:
    """The position with the producers in it. `producers` are those of the journal at that position."""
    at = msgspec.json.decode(position, type=_PushPosition)
    return msgspec.json.encode(_PushPosition(at.pushes, dict(producers if at.own is None else at.own))).decode()


class PushTransaction:
    """A context manager: the rows are dropped if the block fails. Not safe to share between threads."""

    def __init__(self, pushes: Pushes, producer: str = "", sequence: int = 0) -> None:
        self._pushes = pushes
        self.producer = producer
        self.sequence = sequence
        self._waiting: dict[str, list[pa.Table]] = {}
        self._bytes = 0
        self.fragments: list[Staged] = []
        self.inline_bytes = 0
        """Space that its fragments need in the record of a transaction, until they are bound or dropped."""
        self.rows = 0
        self.time: int | None = None
        """The time that bound the rows, once the bind is durable."""
        self.is_repeated = False
        """Whether an earlier push of the same producer and number was bound, so that this one has no effect."""

    def push(self, table: str, rows: Any = (), *, deletes: Any = ()) -> None:
        """Add rows to upsert, and rows or keys to delete. A call that fails adds none, so it can be repeated."""
        batch = self._pushes.convert(table, rows, deletes)
        if batch.rows.num_rows == 0:
            return
        before = self._waiting.pop(batch.table, [])
        self._waiting[batch.table] = [*before, batch.rows]  # the last table, so that these rows are staged last
        self._bytes += batch.rows.nbytes
        if self._bytes > self._pushes.settings.push_buffer_bytes:
            try:
                self.stage()
            except BaseException:
                self._waiting[batch.table] = before
                self._bytes -= batch.rows.nbytes
                raise
        self.rows += batch.rows.num_rows

    def stage(self) -> None:
        """Store the rows in memory as staged fragments, one per table. If it fails, a repeated call stores the rest."""
        for table, waiting in [*self._waiting.items()]:
            if waiting:
                self.fragments.append(self._pushes.stage_rows(table, pa.concat_tables(waiting)))
                self.inline_bytes += len(self.fragments[-1].inline)
            del self._waiting[table]
            self._bytes -= sum(rows.nbytes for rows in waiting)

    def abort(self) -> None:
        self._pushes.release_inline(self)
        self._pushes.drop(self.fragments)
        self._waiting, self.fragments, self.rows, self._bytes = {}, [], 0, 0

    def mark_bound(self, time: int, *, is_repeated: bool = False) -> None:
        self.time, self.is_repeated = time, is_repeated

    def __enter__(self) -> PushTransaction:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self._pushes.offer_pushed(self)
        except BaseException:
            self.abort()
            raise


class Pushes:
    """The source of all tables without a connector. Safe to share between threads."""

    name = PUSH
    start = msgspec.json.encode(_PushPosition()).decode()

    def __init__(
        self,
        declarations: Mapping[str, TableDeclaration],
        journal: Journal,
        writer: Writer,
        settings: Settings,
        without_deletes: Collection[str] = (),
    ) -> None:
        """`without_deletes` are the tables that cannot apply deletes."""
        self.tables = tuple(declarations)
        self.settings = settings
        self._declarations = {name.lower(): one for name, one in declarations.items()}
        self._without_deletes = frozenset(without_deletes)
        self._journal = journal
        self._writer = writer
        self._lock = threading.Lock()
        self._ready: list[PushTransaction] = []
        self._offered: list[PushTransaction] = []
        self._repeats: list[PushTransaction] = []
        """Repeats of offered push transactions; they are settled once the bind is durable."""
        self._offered_time = 0
        self._inline_bytes = 0
        """Of fragments that are neither bound nor dropped: what the next record will contain."""
        self._begun: list[PushTransaction] = []
        """Offered by `Pipeline.commit`, which has not succeeded yet."""

    def find_declaration(self, table: str) -> TableDeclaration:
        found = self._declarations.get(table.lower())
        if found is None:
            why = f"rows can be pushed only to tables without a connector: {', '.join(sorted(self.tables)) or 'none'}"
            raise InvalidInput(where=f"table {table!r}", why=why)
        return found

    def convert(self, table: str, rows: Any, deletes: Any) -> Rows:
        declaration = self.find_declaration(table)
        batch = convert_push(declaration, rows, deletes)
        if declaration.name in self._without_deletes and pc.any(pc.equal(batch.rows[OP], DELETE)).as_py():
            why = "a table without a key that is not kept cannot apply deletes; declare a key, or keep the table"
            raise InvalidInput(where=f"table {declaration.name!r}", why=why)
        return batch

    def offer_pushed(self, pushed: PushTransaction) -> None:
        """Stage a complete push transaction for the next transaction."""
        if pushed.rows:
            pushed.stage()
            with self._lock:
                self._ready.append(pushed)

    @contextmanager
    def begin_commit(self, pushed: PushTransaction) -> Iterator[list[PushTransaction]]:
        """Offer the rows, and return all that are offered, for the block to commit. If it fails, they stay offered
        until `abort`."""
        self.offer_pushed(pushed)
        self._begun.append(pushed)
        with self._lock:
            offered = [*dict.fromkeys([*self._begun, *self._ready])]
        yield offered
        self._begun.clear()

    def is_to_be_committed(self, pushed: PushTransaction, time: int) -> bool:
        """Whether its rows are to be committed by a transaction after `time`, the last one.

        `OutcomeUnknown` if they were dropped (`_forget_bound`).
        """
        if pushed.time is not None or not pushed.rows:
            return pushed.time is not None and pushed.time > time
        with self._lock:
            if pushed in self._ready:
                return True
        why = "the journal no longer has the record of the transaction that may have the rows"
        raise OutcomeUnknown(path=self._journal.path, why=why)

    def abort(self, waiting: PushTransaction) -> None:
        """Drop the rows that wait, and those of commits that failed; `NotAllowedNow` if a transaction has these."""
        for pushed in [*self._begun]:
            time = self._read_bound_time(pushed) if pushed.time is None else pushed.time
            if time is not None:
                why = (
                    f"transaction {time} has the rows of the commit that failed; commit again instead of pushing again"
                )
                raise NotAllowedNow(where="abort", why=why)
            self._forget([pushed])
            self.drop(pushed.fragments)
            self._begun.remove(pushed)
        waiting.abort()

    def stage_rows(self, table: str, rows: pa.Table) -> Staged:
        """Rows whose content is in memory until they are bound, if it fits beside that of others that wait."""
        return self._journal.stage(PUSH, table, rows, self._writer, self._reserve_inline)

    def _reserve_inline(self, size: int) -> bool:
        """Reserve space in the record of the next transaction. False if there is none left."""
        with self._lock:
            has_space = self._inline_bytes + size <= self.settings.inline_bytes_max
            self._inline_bytes += size if has_space else 0
        return has_space

    def release_inline(self, pushed: PushTransaction) -> None:
        """Its rows are bound, or never will be, so they need no space in a later record."""
        with self._lock:
            self._inline_bytes -= pushed.inline_bytes
            pushed.inline_bytes = 0

    def drop(self, fragments: list[Staged]) -> None:
        if fragments:
            try:
                self._journal.drop(fragments, self._writer)
            except EvertideError as error:  # no record names them, and the client receives another error
                logger.warning("could not delete staged rows; garbage collection will: %s", error)

    def _find_repeat(self, at: _PushPosition, pushed: PushTransaction) -> int | None:
        """The time that bound the producer's last number; None if this number is higher."""
        if at.own is not None:
            number, time = at.own.get(pushed.producer, (-1, -1))
        else:
            last = self._journal.producers.read_last(pushed.producer)
            number, time = (last.number, last.time) if last is not None else (-1, -1)
        return time if pushed.sequence <= number else None

    @contextmanager
    def withdraw_on_error(self, pushed: PushTransaction) -> Iterator[None]:
        """After an error the client retries, so withdraw the push transaction unless it is bound already."""
        try:
            yield
        except BaseException as error:
            if pushed.time is None:
                self._forget([pushed])
                time = self._read_bound_time(pushed, error)
                if time is None:
                    self.drop(pushed.fragments)
                else:
                    pushed.mark_bound(time)
            raise

    def _read_bound_time(self, pushed: PushTransaction, error: BaseException | None = None) -> int | None:
        """The time that bound it, if the bind was durable before the error; None if it will not be bound.
        `OutcomeUnknown` if the journal cannot be read, or if an earlier bind may still arrive."""
        if pushed not in self._offered or not isinstance(error, Exception | None):
            return None
        time, keys = self._offered_time, {fragment.key for fragment in pushed.fragments}
        try:
            is_recorded = self._journal.upper > time
            bound = self._journal.read(time).inputs.get(PUSH) if is_recorded else None
        except EvertideError as other:
            why = f"the rows were offered to transaction {time}, whose record cannot be read: {other.message}"
            raise OutcomeUnknown(path=self._journal.path, why=why) from error
        if not is_recorded and self._journal.may_be_bound(pushed.fragments, self._writer):
            why = f"the rows were offered to transaction {time}; storage may still write its record"
            raise OutcomeUnknown(path=self._journal.path, why=why) from error
        fragments = bound.fragments if bound is not None else ()
        return time if keys & {one.key for one in fragments if isinstance(one, Staged)} else None

    def offer(self, position: str, limit: Limit) -> Offer | None:  # noqa: ARG002 - a commit takes all pushed rows
        self._forget_bound()
        with self._lock:
            ready = list(self._ready)
        at = msgspec.json.decode(position, type=_PushPosition)
        time = self._journal.upper
        numbers: dict[str, ProducerNumber] = {}
        offered: list[PushTransaction] = []
        repeats: list[PushTransaction] = []
        for pushed in ready:
            if not pushed.producer:
                offered.append(pushed)
            elif pushed.producer in numbers and pushed.sequence <= numbers[pushed.producer].number:
                repeats.append(pushed)
            elif pushed.producer not in numbers and (bound := self._find_repeat(at, pushed)) is not None:
                self._mark_repeated([pushed], bound)
            else:
                before = (at.own or {}).get(pushed.producer)
                numbers[pushed.producer] = ProducerNumber(pushed.sequence, Time(time), before)
                offered.append(pushed)
        self._offered, self._repeats, self._offered_time = offered, repeats, time
        if not offered:
            return None
        after = msgspec.json.encode(_PushPosition(at.pushes + len(offered), _IN_JOURNAL)).decode()
        fragments = tuple(fragment for pushed in offered for fragment in pushed.fragments)
        moved = {
            name: ProducerNumber(number, Time(bound), (number, bound))
            for name, (number, bound) in (at.own or {}).items()
        }
        return Offer(after, fragments, sum(pushed.rows for pushed in offered), producers={**moved, **numbers})

    def read(self, fragment: Fragment) -> Iterator[Rows]:
        if not isinstance(fragment, Staged):
            raise Unexpected(where="Pushes.read", why=f"{fragment} is not a staged fragment")
        yield Rows(fragment.table, self._journal.load(fragment))

    def acknowledge(self, position: str) -> None:  # noqa: ARG002 - the last offer is bound
        for pushed in self._offered:
            pushed.mark_bound(self._offered_time)
        self._forget(self._offered)
        self._mark_repeated(self._repeats, self._offered_time)
        self._offered, self._repeats = [], []

    def _forget_bound(self) -> None:
        """After a bind of unknown outcome: do not offer again what the journal shows as bound."""
        doubtful = [pushed for pushed in self._ready if self._journal.may_be_bound(pushed.fragments, self._writer)]
        if not doubtful or self._journal.upper <= self._offered_time:
            return  # the next bind has the same number, so at most one of the two succeeds
        try:
            named = {fragment.key for fragment in list_staged(self._journal.read(self._offered_time))}
        except TimeCompacted:
            rows = sum(pushed.rows for pushed in doubtful)
            why = f"transaction {self._offered_time} may have them, and the journal no longer has its record"
            logger.error("dropping %d pushed rows of unknown outcome: %s", rows, why)  # noqa: TRY400 - no bug
            self._forget(doubtful)
            self._begun[:] = [pushed for pushed in self._begun if pushed not in doubtful]
            return
        bound = [pushed for pushed in doubtful if pushed.fragments[0].key in named]
        for pushed in bound:
            pushed.mark_bound(self._offered_time)
        self._forget(bound)

    def _mark_repeated(self, several: Iterable[PushTransaction], bound: int) -> None:
        for pushed in several:
            pushed.mark_bound(bound, is_repeated=True)
            self._forget([pushed])
            self.drop(pushed.fragments)

    def _forget(self, several: list[PushTransaction]) -> None:
        for pushed in several:
            self.release_inline(pushed)
        with self._lock:
            self._ready = [pushed for pushed in self._ready if pushed not in several]

    def close(self) -> None:
        if self._ready:
            rows = sum(pushed.rows for pushed in self._ready)
            logger.warning("discarding %d pushed rows that were never committed", rows)
        for pushed in self._ready:
            pushed.abort()
