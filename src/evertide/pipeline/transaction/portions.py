"""Computes a transaction in portions, so that it may be larger than memory (T7).

1. A portion is a sequence of whole batches of the input. Its table deltas are computed against the result of the
   portions before it; the deltas of all portions add up to that of the transaction.
2. The result of a single portion stays in memory; the results of several are stored as parts. No state names these
   parts until one commit names all of them (I4).
3. After a storage error only the current portion is repeated.
4. Table deltas of at least `store_ahead_rows` rows are stored by a thread while the views are computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

import pyarrow as pa

from evertide.errors import EvertideError, ViewFailed
from evertide.journal.records import Bound, Content
from evertide.pipeline.state.members import Members, add_time
from evertide.pipeline.state.table_deltas import TableDeltas, Tables, measure_content
from evertide.rows.changes import DIFF, TIME, check_changes, consolidate_delta
from evertide.rows.digest import ZERO, add_digests
from evertide.settings import Settings
from evertide.shard.append import Append, Changes, append_together, store_parts, withdraw
from evertide.shard.parts.part import Part, decode_part
from evertide.shard.shard import Shard
from evertide.sources.contract import Rows
from evertide.store.retry import retry_read
from evertide.store.writers import Writer

logger = logging.getLogger(__name__)

Batch = tuple[str, Rows]

_EMPTY = Content(0, ZERO)


class InputPortions:
    """Groups the batches that `read` yields, which must be the same at each call."""

    def __init__(self, read: Callable[[], Iterable[Batch]], settings: Settings) -> None:
        self._read = read
        self._settings = settings
        self._finished_batches = 0
        self._batches: Iterator[Batch] | None = None
        self._ahead: Batch | None = None
        self._current: list[Batch] | None = None

    def read_current(self) -> list[Batch]:
        """The current portion, until `finish`. The first may be empty."""
        if self._current is None:
            try:
                self._current = self._gather()
            except BaseException:
                self._batches = None  # the position of the iterator is lost
                raise
        return self._current

    @property
    def is_last(self) -> bool:
        return self._ahead is None

    @property
    def is_over(self) -> bool:
        return self._current is None and self._batches is not None and self._ahead is None

    def finish(self) -> None:
        self._finished_batches += len(self._current or ())
        self._current = None

    def reapply(self, tables: Tables) -> None:
        """Compute the finished portions again, for the state of tables with a key, which is as of the first."""
        again = InputPortions(self._read, self._settings)
        while again._finished_batches < self._finished_batches:
            deltas = tables.compute_deltas(again.read_current(), tables.make_empty)
            tables.apply(deltas.tables, deltas.errors)
            again.finish()

    def _gather(self) -> list[Batch]:
        if self._batches is None:
            self._batches = islice(self._read(), self._finished_batches, None)
            self._ahead = next(self._batches, None)
        found: list[Batch] = []
        rows, size = 0, 0
        while self._ahead is not None:
            given = self._ahead[1].rows
            rows, size = rows + given.num_rows, size + given.nbytes
            if found and (rows > self._settings.portion_rows_max or size > self._settings.portion_bytes_max):
                break
            found.append(self._ahead)
            self._ahead = next(self._batches, None)
        return found


class ContentSums:
    """Sums of counts and digests, by name."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.all = dict.fromkeys(names, _EMPTY)

    def take(self, found: Mapping[str, Content]) -> None:
        for name, content in found.items():
            before = self.all.get(name, _EMPTY)
            self.all[name] = Content(before.rows + content.rows, add_digests(before.digest, content.digest))


class PendingChanges:
    """The changes of one time, by shard, before their append: in memory, or in parts that no state names yet."""

    def __init__(self, time: int, writer: Writer) -> None:
        self.time = time
        self.deltas: dict[str, pa.Table] = {}
        """The changes in memory."""
        self.parts: dict[str, list[Part]] = {}
        self._writer = writer
        self._claims: list[int] = []
        self._ahead: dict[str, Future[tuple[Part, ...]]] = {}

    def put(self, deltas: Mapping[str, pa.Table]) -> None:
        """Hold these deltas, by shard, in memory. The previous ones must be stored before."""
        self.deltas = dict(deltas)

    def store_ahead(self, deltas: Mapping[str, pa.Table], members: Members) -> None:
        """Start to store those deltas of the next `put` that have at least `store_ahead_rows` rows."""
        self._forget_ahead(members)
        least = members.shards.settings.store_ahead_rows
        large = {name: delta for name, delta in deltas.items() if delta.num_rows >= least}
        if large:
            seq = self.open_claim()
            pool = ThreadPoolExecutor(1, "evertide-store")
            self._ahead = {
                name: pool.submit(self._store_parts, name, delta, seq, members) for name, delta in large.items()
            }
            pool.shutdown(wait=False)  # its thread ends after these tasks

    def store(self, members: Members) -> None:
        """Store the changes in memory as parts. Can be repeated after a failure."""
        if not self.deltas:
            return
        seq = self.open_claim()
        for name, delta in list(self.deltas.items()):
            if not self._take_ahead(name) and delta.num_rows:
                self.parts.setdefault(name, []).extend(self._store_parts(name, delta, seq, members))
            self.deltas.pop(name, None)

    def take_parts(self, parts: Mapping[str, Sequence[Part]]) -> None:
        """Add parts that executors have stored under a claim of these changes."""
        for name, found in parts.items():
            if found:
                self.parts.setdefault(name, []).extend(found)

    def forget(self, shard: str, members: Members) -> None:
        self._take_ahead(shard)
        self.deltas.pop(shard, None)
        withdraw(members.shards.blob, self.parts.pop(shard, ()))

    def changes(self, shard: str, schema: pa.Schema) -> Changes:
        self._take_ahead(shard)
        if shard in self.parts:
            return self.parts[shard]
        return add_time(self.deltas.get(shard, _make_empty(schema)), self.time)

    def _take_ahead(self, shard: str) -> bool:
        """Use the parts that were stored ahead for the shard, instead of memory. False if there are none."""
        begun = self._ahead.pop(shard, None)
        if begun is None:
            return False
        try:
            found = begun.result()
        except EvertideError as error:
            logger.warning("could not store rows of shard %s ahead of the commit; the commit will: %s", shard, error)
            return False
        self.parts.setdefault(shard, []).extend(found)
        self.deltas.pop(shard, None)
        return True

    def _forget_ahead(self, members: Members) -> None:
        """Delete what an interrupted try stored ahead."""
        begun, self._ahead = self._ahead, {}
        for future in begun.values():
            with suppress(EvertideError):
                withdraw(members.shards.blob, future.result())

    def open_claim(self) -> int:
        """The number for names of parts; it is settled with these changes."""
        self._claims.append(self._writer.open_claim())
        return self._claims[-1]

    def fill(self, shards: Sequence[Shard], members: Members) -> None:
        """Append the changes to new shards, and advance since, so that reads of earlier times are refused."""
        if self.parts:
            self.store(members)
        end = self.time + 1
        append_together(
            [Append(shard.log, self.changes(shard.name, shard.schema), 0, end) for shard in shards], self._writer
        )
        self.settle()
        for shard in shards:
            shard.advance_since(self.time, self._writer)

    def drop(self, members: Members) -> None:
        """Delete the changes, which will not be appended."""
        for shard in {*self._ahead, *self.parts, *self.deltas}:
            self.forget(shard, members)
        self.settle()

    def settle(self) -> None:
        """End the claims: the changes are appended, or never will be."""
        for seq in self._claims:
            self._writer.settle(seq)
        self._claims = []

    def _store_parts(self, shard: str, delta: pa.Table, seq: int, members: Members) -> tuple[Part, ...]:
        shards, schema = members.shards, members.shard(shard).schema
        return store_parts(
            check_changes(add_time(delta, self.time), schema, self.time, self.time + 1, f"shard {shard!r}"),
            shard=shard,
            blob=shards.blob,
            writer=self._writer.id,
            seq=seq,
            runtime=shards.runtime,
            settings=shards.settings,
        )


class TransactionOutcome:
    """The result of a transaction before its commit: the changes of each shard."""

    def __init__(self, bound: Bound, portions: InputPortions, writer: Writer) -> None:
        self.bound = bound
        self.time = bound.time
        self.portions = portions
        self.count = 0
        """The number of portions in the outcome."""
        self.sources = ContentSums(bound.inputs)
        self.tables: set[str] = set()
        """The tables that change."""
        self.failures: list[ViewFailed] = []
        """Of views that failed in this transaction, and have not left the definition yet."""
        self.pending = PendingChanges(bound.time, writer)

    @property
    def is_computed(self) -> bool:
        """Whether the machine has applied all portions."""
        return self.portions.is_over

    @property
    def is_complete(self) -> bool:
        """Whether the outcome can be committed."""
        return self.is_computed and not self.failures and not (self.count > 1 and self.pending.deltas)

    def take(self, by_shard: Mapping[str, pa.Table], deltas: TableDeltas, failures: Iterable[ViewFailed] = ()) -> None:
        """Add the result of the current portion. Call `keep` before the next one."""
        self.pending.put(by_shard)
        self.sources.take(deltas.sources)
        self.tables.update(deltas.tables)
        self.failures.extend(failures)
        self.count += 1
        self.portions.finish()

    def replace_failures(self, failures: Iterable[ViewFailed]) -> None:
        self.failures = list(failures)

    def keep(self, members: Members) -> None:
        """Store the changes in memory, unless there is only one portion. Can be repeated after a failure."""
        if not (self.count == 1 and self.portions.is_over):
            self.pending.store(members)

    def remove_views(self, shards: Iterable[str], members: Members) -> None:
        """Drop the changes of failed views, which are no longer members."""
        for shard in shards:
            self.pending.forget(shard, members)
        self.failures = []

    def sum_content(self, shard: str) -> Content:
        """The count and digest that the commit would record for a shard."""
        found = ContentSums()
        for part in self.pending.parts.get(shard, ()):
            found.take({shard: Content(part.rows, part.digest)})
        if shard in self.pending.deltas:
            found.take({shard: measure_content(self.pending.deltas[shard])})
        return found.all.get(shard, _EMPTY)

    def read_table_deltas(self, members: Members) -> dict[str, pa.Table]:
        """The deltas of kept tables, by name, over all portions so far."""
        found = {name: self._read_delta(members.find_record(name).shard, members) for name in self.tables}
        return {name: delta for name, delta in found.items() if delta is not None}

    def reapply(self, tables: Tables, members: Members) -> None:
        """Apply the deltas of kept tables, and of the dead letters, over all portions so far."""
        tables.apply(self.read_table_deltas(members), self._read_delta(members.definition.errors, members))

    def _read_delta(self, shard: str, members: Members) -> pa.Table | None:
        deltas = [_load_part(part, shard, members) for part in self.pending.parts.get(shard, ())]
        if shard in self.pending.deltas:
            deltas.append(self.pending.deltas[shard])
        return consolidate_delta(pa.concat_tables(deltas), shard) if len(deltas) > 1 else next(iter(deltas), None)

    def add(self, deltas: Mapping[str, pa.Table], failures: Iterable[ViewFailed]) -> None:
        """Add the deltas of views that joined after the computation; the next `keep` stores them."""
        self.pending.put({**self.pending.deltas, **deltas})
        self.failures.extend(failures)

    def read_table(self, table: str, members: Members) -> pa.Table:
        """The rows of a kept table, with their counts, before the current portion."""
        before = members.read_table(table, self.time)
        shard = members.open_collection(table)
        stored = [_load_part(part, shard.name, members) for part in self.pending.parts.get(shard.name, ())]
        return consolidate_delta(pa.concat_tables([before, *stored]), table) if stored else before


def _load_part(part: Part, shard: str, members: Members) -> pa.Table:
    shards = members.shards
    data = part.inline or retry_read(lambda: shards.blob.get(part.key), shards.runtime, shards.settings)
    return decode_part(part, data, members.shard(shard).schema, shards.blob.path(part.key)).drop_columns([TIME])


def _make_empty(schema: pa.Schema) -> pa.Table:
    return pa.schema([*schema, pa.field(DIFF, pa.int64(), nullable=False)]).empty_table()
