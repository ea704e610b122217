"""A transaction in portions, so that one which does not fit into memory goes through as well (T7).

1. A portion is some whole batches of the input, in order. The tables' deltas of each are made against what those before
   it left; the deltas of all portions add up to that of the transaction.
2. As long as there is one portion, what it comes to stays in memory. From the second on it is stored as parts at once.
   No state names them until the one commit that names all of them (I4).
3. If storage does not answer in between, the portion under way is taken again, and those before it are not.
4. What the tables get is known before the views are computed. If it is much, it is stored meanwhile, by a thread.
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
from evertide.pipeline.transaction.members import Members, at_time
from evertide.pipeline.transaction.table_deltas import TableDeltas
from evertide.rows.changes import DIFF, TIME, check_changes, net
from evertide.rows.digest import ZERO, add, digest, to_hex
from evertide.settings import Settings
from evertide.shard.append import Append, Changes, append_together, store_parts, withdraw
from evertide.shard.parts.part import Part, decode_part
from evertide.shard.shard import Shard
from evertide.sources.contract import Rows
from evertide.store.retry import retry_read
from evertide.store.writers import Writer

__all__ = ["ContentSums", "Pending", "Portions", "TransactionOutcome", "content_of"]

logger = logging.getLogger(__name__)

Batch = tuple[str, Rows]

_EMPTY = Content(0, ZERO)


class Portions:
    """Of what `read` yields, which must be the same each time."""

    def __init__(self, read: Callable[[], Iterable[Batch]], settings: Settings) -> None:
        self._read = read
        self._settings = settings
        self._taken = 0
        self._left: Iterator[Batch] | None = None
        self._ahead: Batch | None = None
        self._current: list[Batch] | None = None

    def current(self) -> list[Batch]:
        """The same one until it is `done`. The first may be empty."""
        if self._current is None:
            try:
                self._current = self._gather()
            except BaseException:
                self._left = None  # where it stands is lost
                raise
        return self._current

    @property
    def is_last(self) -> bool:
        """Whether nothing comes after the current one."""
        return self._ahead is None

    @property
    def is_over(self) -> bool:
        """Whether all of them are done."""
        return self._current is None and self._left is not None and self._ahead is None

    def finish(self) -> None:
        self._taken += len(self._current or ())
        self._current = None

    def _gather(self) -> list[Batch]:
        if self._left is None:
            self._left = islice(self._read(), self._taken, None)
            self._ahead = next(self._left, None)
        found: list[Batch] = []
        rows, size = 0, 0
        while self._ahead is not None:
            given = self._ahead[1].rows
            rows, size = rows + given.num_rows, size + given.nbytes
            if found and (rows > self._settings.portion_rows_max or size > self._settings.portion_bytes_max):
                break
            found.append(self._ahead)
            self._ahead = next(self._left, None)
        return found


class ContentSums:
    """Counts and digests, which add up."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.all = dict.fromkeys(names, _EMPTY)

    def take(self, found: Mapping[str, Content]) -> None:
        for name, content in found.items():
            before = self.all.get(name, _EMPTY)
            self.all[name] = Content(before.rows + content.rows, add(before.digest, content.digest))


class Pending:
    """Changes of one time, by shard, until they are appended: in memory, or stored as parts that no state names yet."""

    def __init__(self, time: int, writer: Writer) -> None:
        self.time = time
        self.deltas: dict[str, pa.Table] = {}
        """What is in memory."""
        self.parts: dict[str, list[Part]] = {}
        self._writer = writer
        self._claims: list[int] = []
        self._ahead: dict[str, Future[tuple[Part, ...]]] = {}

    def put(self, deltas: Mapping[str, pa.Table]) -> None:
        """Hold these deltas, by shard, in memory. Those held before must be stored."""
        self.deltas = dict(deltas)

    def store_ahead(self, deltas: Mapping[str, pa.Table], members: Members) -> None:
        """Begin to store the large ones of the deltas that the next `put` will hold."""
        self._forget_ahead(members)
        least = members.shards.settings.store_ahead_rows
        large = {name: delta for name, delta in deltas.items() if delta.num_rows >= least}
        if large:
            seq = self._claimed()
            pool = ThreadPoolExecutor(1, "evertide-store")
            self._ahead = {name: pool.submit(self._stored, name, delta, seq, members) for name, delta in large.items()}
            pool.shutdown(wait=False)  # when it has done that

    def store(self, members: Members) -> None:
        """What is in memory. May be called again if it fails."""
        if not self.deltas:
            return
        seq = self._claimed()
        for name, delta in list(self.deltas.items()):
            if not self._take_ahead(name) and delta.num_rows:
                self.parts.setdefault(name, []).extend(self._stored(name, delta, seq, members))
            self.deltas.pop(name, None)

    def forget(self, shard: str, members: Members) -> None:
        self._take_ahead(shard)
        self.deltas.pop(shard, None)
        withdraw(members.shards.blob, self.parts.pop(shard, ()))

    def changes(self, shard: str, schema: pa.Schema) -> Changes:
        """For the commit."""
        self._take_ahead(shard)
        if shard in self.parts:
            return self.parts[shard]
        return at_time(self.deltas.get(shard, _nothing(schema)), self.time)

    def _take_ahead(self, shard: str) -> bool:
        """Whether what was begun for the shard is stored now, in the place of what is in memory."""
        begun = self._ahead.pop(shard, None)
        if begun is None:
            return False
        try:
            found = begun.result()
        except EvertideError as error:
            logger.warning("shard %s: what was to be stored ahead is stored with the rest: %s", shard, error)
            return False
        self.parts.setdefault(shard, []).extend(found)
        self.deltas.pop(shard, None)
        return True

    def _forget_ahead(self, members: Members) -> None:
        """Of a try that did not come to its end."""
        begun, self._ahead = self._ahead, {}
        for future in begun.values():
            with suppress(EvertideError):
                withdraw(members.shards.blob, future.result())

    def _claimed(self) -> int:
        self._claims.append(self._writer.open_claim())
        return self._claims[-1]

    def fill(self, shards: Sequence[Shard], members: Members) -> None:
        """Append them to shards that are new.

        Such a shard has nothing to say of earlier times: a read of those is refused, and does not find it empty.
        """
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
        """They will not be appended."""
        for shard in {*self._ahead, *self.parts, *self.deltas}:
            self.forget(shard, members)
        self.settle()

    def settle(self) -> None:
        """They are appended, or never will be."""
        for seq in self._claims:
            self._writer.settle(seq)
        self._claims = []

    def _stored(self, shard: str, delta: pa.Table, seq: int, members: Members) -> tuple[Part, ...]:
        shards, schema = members.shards, members.shard(shard).schema
        return store_parts(
            check_changes(at_time(delta, self.time), schema, self.time, self.time + 1, f"shard {shard!r}"),
            shard=shard,
            blob=shards.blob,
            writer=self._writer.id,
            seq=seq,
            runtime=shards.runtime,
            settings=shards.settings,
        )


class TransactionOutcome:
    """What a transaction comes to, until it is committed: for each shard, its changes."""

    def __init__(self, bound: Bound, portions: Portions, writer: Writer) -> None:
        self.bound = bound
        self.time = bound.time
        self.portions = portions
        self.count = 0
        """Of the portions that are in it."""
        self.sources = ContentSums(bound.inputs)
        self.tables: set[str] = set()
        """Those that change."""
        self.failures: list[ViewFailed] = []
        """Of views that have failed in it, and are still in the definition."""
        self._pending = Pending(bound.time, writer)

    @property
    def is_computed(self) -> bool:
        """Whether the machine has taken all of it."""
        return self.portions.is_over

    @property
    def is_complete(self) -> bool:
        """Whether it can be committed."""
        return self.is_computed and not self.failures and not (self.count > 1 and self._pending.deltas)

    def store_ahead(self, deltas: Mapping[str, pa.Table], members: Members) -> None:
        """Of the portion under way, what is known already."""
        self._pending.store_ahead(deltas, members)

    def take(self, by_shard: Mapping[str, pa.Table], deltas: TableDeltas, failures: Iterable[ViewFailed] = ()) -> None:
        """What the portion under way came to. It must be kept (`keep`) before the next one is taken."""
        self._pending.put(by_shard)
        self.sources.take(deltas.sources)
        self.tables.update(deltas.tables)
        self.failures.extend(failures)
        self.count += 1
        self.portions.finish()

    def replace_failures(self, failures: Iterable[ViewFailed]) -> None:
        self.failures = list(failures)

    def keep(self, members: Members) -> None:
        """Store what is in memory, unless it is all there is. May be called again if it fails."""
        if not (self.count == 1 and self.portions.is_over):
            self._pending.store(members)

    def remove_views(self, shards: Iterable[str], members: Members) -> None:
        """The views that failed are no longer members: what their shards were to get is dropped."""
        for shard in shards:
            self._pending.forget(shard, members)
        self.failures = []

    def changes(self, shard: str, schema: pa.Schema) -> Changes:
        """For the commit."""
        return self._pending.changes(shard, schema)

    def stored(self, shard: str) -> Content:
        """What the commit would have said of it."""
        found = ContentSums()
        for part in self._pending.parts.get(shard, ()):
            found.take({shard: Content(part.rows, part.digest)})
        if shard in self._pending.deltas:
            found.take({shard: content_of(self._pending.deltas[shard])})
        return found.all.get(shard, _EMPTY)

    def table_deltas(self, members: Members) -> dict[str, pa.Table]:
        """Of the kept tables, by name: what all portions that were taken change."""
        found = {}
        for name in self.tables:
            shard = members.record(name).shard
            deltas = [_loaded(part, shard, members) for part in self._pending.parts.get(shard, ())]
            if shard in self._pending.deltas:
                deltas.append(self._pending.deltas[shard])
            if deltas:
                found[name] = net(pa.concat_tables(deltas), name) if len(deltas) > 1 else deltas[0]
        return found

    def add(self, deltas: Mapping[str, pa.Table], failures: Iterable[ViewFailed]) -> None:
        """What it comes to for views that joined after it was computed; it is kept with the next `keep`."""
        self._pending.put({**self._pending.deltas, **deltas})
        self.failures.extend(failures)

    def content(self, table: str, members: Members) -> pa.Table:
        """The rows of a kept table, with their counts, before the portion that is under way."""
        before = members.table_content(table, self.time)
        shard = members.collection(table)
        stored = [_loaded(part, shard.name, members) for part in self._pending.parts.get(shard.name, ())]
        return net(pa.concat_tables([before, *stored]), table) if stored else before

    def drop(self, members: Members) -> None:
        """It will not be committed."""
        self._pending.drop(members)

    def settle(self) -> None:
        """It is committed, or never will be."""
        self._pending.settle()


def content_of(delta: pa.Table) -> Content:
    diffs = delta.column(DIFF).to_numpy()
    return Content(delta.num_rows, to_hex(digest(delta.drop_columns([DIFF]), diffs)))


def _loaded(part: Part, shard: str, members: Members) -> pa.Table:
    shards = members.shards
    data = part.inline or retry_read(lambda: shards.blob.get(part.key), shards.runtime, shards.settings)
    return decode_part(part, data, members.shard(shard).schema, shards.blob.path(part.key)).drop_columns([TIME])


def _nothing(schema: pa.Schema) -> pa.Table:
    return pa.schema([*schema, pa.field(DIFF, pa.int64(), nullable=False)]).empty_table()
