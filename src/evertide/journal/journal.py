"""`Journal`: which input each transaction has (I7), and whether it is committed to the shards.

`evertide.journal.records` and `evertide.journal.staging` describe what is stored. Any registered writer binds and
commits; `truncate` and `drop_unbound` delete.

A transaction t takes these steps. Each is durable before the next one refers to it:

1. `stage` stores rows that their source cannot send again as blobs, or prepares a few for the record. Staged rows are
   not bound.
2. `bind` writes the complete record of t = upper by compare-and-set. If a peer is first, t is the peer's transaction,
   and `bind` returns the peer's record; the caller offers its input again for t + 1.
3. One commit appends t to all shards and includes `make_commit_write`.
4. `truncate` deletes the record once no process can need it for a replay.

Input may be bound after the last record under these rules (`check_inputs`):

1. A source continues exactly where the last record left it: `before` equals the last `after`. So input that is already
   bound is refused if the source offers it again (J10).
2. A source whose position does not change gives no fragments: no position could tell whether they are bound.
3. A record names all sources of its generation, whether their positions change or not. Within a generation the sources
   stay the same (J4); a new generation may add and remove some. A new source chooses its first position.
4. A record names each fragment once.

A process has one journal and shares it between threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from evertide.errors import Conflict, GenerationMoved, TimeCompacted, Unexpected
from evertide.journal import garbage
from evertide.journal.producers import Producers, add_before
from evertide.journal.records import Bound, Committed, Input, Staged
from evertide.journal.staging import StagingArea, list_staged, never_inline, settle_named
from evertide.journal.time_log import TimeLog
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob
from evertide.store.meta import Guard, Meta, Write, seal
from evertide.store.paths import COMMITTED, JOURNAL
from evertide.store.retry import commit_until_known
from evertide.store.writers import Writer
from evertide.types import Generation, Time


@dataclass(frozen=True, slots=True)
class TransactionSummary:
    time: Time
    generation: Generation
    positions: dict[str, str]
    """The position of each source after the transaction."""
    moved: tuple[str, ...]
    """The sources whose position changed."""
    fragments: int
    rows: int | None
    """None if unknown: the transaction is not committed, and its source stores places instead of staged rows."""
    bytes: int
    """The size of the staged fragments."""
    committed: bool
    writer: str
    bound_at_s: float


class Journal:
    """Binds input to transactions, and records which of them are committed."""

    def __init__(self, blob: Blob, meta: Meta, *, runtime: Runtime, settings: Settings) -> None:
        self.path = meta.path(JOURNAL)
        self._blob = blob
        self._meta = meta
        self._runtime = runtime
        self._settings = settings
        self._bound = TimeLog(JOURNAL, Bound, meta, runtime, settings)
        self._committed = TimeLog(COMMITTED, Committed, meta, runtime, settings)
        self._staging = StagingArea(blob, self._bound, runtime, settings)
        self.producers = Producers(meta, runtime, settings)
        self._turn = threading.Lock()
        """Held by `bind` and `drop`, so that no fragment is dropped while a record that names it is written."""

    # Staging

    def stage(
        self, source: str, table: str, rows: pa.Table, writer: Writer, is_inline: Callable[[int], bool] = never_inline
    ) -> Staged:
        """Store rows durably. Garbage collection keeps them until they are bound or dropped, or the writer is gone.

        `is_inline` decides from the size of their content whether it becomes durable only with the record that binds
        it.
        """
        return self._staging.stage(source, table, rows, writer, is_inline)

    def load(self, staged: Staged, *, time: int | None = None) -> pa.Table:
        """Return staged rows. `BlobMissing` and `BlobDamaged` name the path, and the transaction if it is given."""
        return self._staging.load(staged, time)

    def drop(self, fragments: Iterable[Staged], writer: Writer) -> list[str]:
        """Delete fragments that this writer staged and has not bound; return the keys of the deleted blobs.

        Bound fragments stay. A fragment that a bind with unknown outcome may name stays, too, and is logged.
        """
        with self._turn:
            return self._staging.drop(fragments, writer)

    def may_be_bound(self, fragments: Iterable[Staged], writer: Writer) -> bool:
        """Return whether a bind with unknown outcome names one of these fragments, which were not dropped."""
        return self._staging.may_be_bound(fragments, writer)

    # What is bound

    def head(self) -> Bound | None:
        found = self._bound.head()
        return found.value if found else None

    @property
    def upper(self) -> Time:
        """The first time that is not bound."""
        return self._bound.upper()

    def positions(self) -> dict[str, str]:
        """The position of each source after the last bound transaction; empty if none is bound."""
        head = self.head()
        return _positions(head) if head else {}

    def read(self, time: int) -> Bound:
        """Raise `TimeCompacted` if the record was deleted."""
        found = self._bound.find(time)
        if found is None:
            raise Unexpected(where="Journal.read", why=f"transaction {time} is not bound")
        return found

    def read_bound_at_s(self, time: int) -> float:
        """When a transaction was bound. If its record was deleted, when the oldest remaining one was."""
        try:
            return self.read(time).bound_at_s
        except TimeCompacted as gone:
            return self.read(gone.since).bound_at_s

    def read_from(self, first: int) -> list[Bound]:
        """Return all records from a time on. Raise `TimeCompacted` if the record of that time was deleted."""
        return self._bound.read_from(first)

    def bind(self, inputs: Mapping[str, Input], generation: Generation, writer: Writer) -> Bound:
        """Bind `inputs` as the next transaction, t = upper, and return the record of t.

        If the record has another `writer`, a peer bound t first, and nothing of `inputs` is bound. Raise `Conflict` if
        a source does not start where the previous transaction left it: read the positions again, and offer the input
        after them. Raise `Fenced` if the writer may not bind any more.
        """
        with self._turn:
            self._staging.end_unknown_binds(writer)
            head = self._bound.head()
            number, last = (head.number, head.value) if head else (0, None)
            check_inputs(inputs, generation, last, path=self.path, writer=writer.id)
            time = Time(last.time + 1 if last else 0)
            for source, given in inputs.items():
                staged = [fragment for fragment in given.fragments if isinstance(fragment, Staged)]
                self._staging.check_open(source, staged, writer)
            while True:
                known = self.producers.read_known(inputs)
                record = self._make_record(time, add_before(inputs, known), generation, writer)
                numbers = self.producers.make_writes(record, known)
                writes = [Write(JOURNAL, number, seal(record)), *numbers]
                with self._staging.unknown_bind(number + 1, record):
                    stale = commit_until_known(self._meta, writes, writer.guards(), self._runtime, self._settings)
                if stale is None:
                    break
                if stale.key not in {write.key for write in numbers}:
                    writer.check(stale)
                    return self.read(time)
                # A producer was forgotten meanwhile; a peer's bind would make the journal's own key stale.
            settle_named([record], writer)
            self.producers.truncate_old(numbers)
            return record

    # What is committed

    @property
    def committed_upper(self) -> int:
        """The first time that is not committed to the shards."""
        return self._committed.upper()

    def read_outcome(self, time: int) -> Committed | None:
        """Return the outcome of a transaction; None if it is not committed. Raise `TimeCompacted` if it was deleted."""
        return self._committed.find(time)

    def make_commit_guard(self, time: int) -> Guard:
        """A guard for a commit that must precede that of transaction `time`. Raise `Conflict` if that is committed."""
        head = self._committed.head()
        expected = head.value.time + 1 if head else 0
        if expected != time:
            why = f"the commit must precede transaction {time}, but the next transaction to commit is {expected}"
            raise Conflict(where=self._committed.path, why=why)
        return Guard(COMMITTED, head.number if head else 0)

    def make_commit_write(self, committed: Committed) -> Write:
        """The write to include in the commit that appends a transaction to all shards.

        If a peer commits first, that commit fails with `Conflict` at this key, or with `UpperMismatch`.
        """
        head = self._committed.head()
        expected = head.value.time + 1 if head else 0
        where, time = self._committed.path, committed.time
        if time < expected:
            why = f"a peer has committed transaction {time}; the next transaction to commit is {expected}"
            raise Conflict(where=where, why=why)
        if time > expected:
            why = f"cannot commit transaction {time}: the next transaction to commit is {expected}"
            raise Unexpected(where=where, why=why)
        if time >= self.upper:
            raise Unexpected(where=where, why=f"transaction {time} is not bound (I7)")
        return Write(COMMITTED, head.number if head else 0, seal(committed))

    def read_producers_before(self, time: int) -> dict[str, tuple[int, int]]:
        """By name, the last sequence number of each producer below a time, and the transaction that has it."""
        return self.producers.read_before(time, lambda: self.read_from(time))

    # Housekeeping

    def truncate(self, below: int, writer: Writer) -> list[str]:
        """Delete the records below a time and their staged rows; return the keys of the deleted blobs.

        The newest record always stays. Every transaction below the time must be committed.
        """
        return garbage.truncate(self._blob, self._bound, self._committed, below, writer)

    def drop_unbound(self, writer: Writer) -> list[str]:
        """Delete staged rows that no record names or can name; return their keys."""
        return garbage.drop_unbound(self._blob, self._bound, writer)

    def describe(self, first: int = 0, last: int | None = None) -> list[TransactionSummary]:
        """Summarize the transactions from `first` to `last` whose records remain, oldest first."""
        upper = self._committed.upper()  # before the outcomes, so that none of them is of a later time
        bound = self._bound.read_range(first, self.upper - 1 if last is None else last)
        done = min(upper, bound[-1].time + 1) if bound else 0
        outcomes = {outcome.time: outcome for outcome in self._committed.read_range(first, done - 1)}
        return [_summarize(each, outcomes, upper) for each in bound]

    def _make_record(self, time: Time, inputs: Mapping[str, Input], generation: Generation, writer: Writer) -> Bound:
        ordered = dict(sorted(inputs.items()))
        return Bound(time, generation, ordered, writer.id, writer.new_token(), self._runtime.wall_s())


def _positions(bound: Bound) -> dict[str, str]:
    return {source: given.after for source, given in bound.inputs.items()}


def _summarize(bound: Bound, outcomes: Mapping[Time, Committed], upper: int) -> TransactionSummary:
    inputs = bound.inputs.items()
    count = sum(len(given.fragments) for _, given in inputs)
    staged = list_staged(bound)
    outcome = outcomes.get(bound.time)
    rows = sum(fragment.rows for fragment in staged) if len(staged) == count else None
    if outcome is not None and outcome.sources:
        rows = sum(content.rows for content in outcome.sources.values())
    return TransactionSummary(
        time=bound.time,
        generation=bound.generation,
        positions=_positions(bound),
        moved=tuple(source for source, given in inputs if given.before != given.after),
        fragments=count,
        rows=rows,
        bytes=sum(fragment.bytes for fragment in staged),
        committed=bound.time < upper,
        writer=bound.writer,
        bound_at_s=bound.bound_at_s,
    )


def check_inputs(
    inputs: Mapping[str, Input], generation: Generation, last: Bound | None, *, path: str, writer: str
) -> None:
    """Raise an error if `inputs` cannot be bound after `last`. `path` and `writer` are for the error."""
    _check_fragments(inputs)
    if last is None:
        return
    if generation < last.generation:
        why = f"transaction {last.time} has generation {last.generation}; this writer still has generation {generation}"
        raise GenerationMoved(writer=writer, why=why)
    if generation == last.generation and inputs.keys() != last.inputs.keys():
        why = f"the input has the sources {sorted(inputs)}, but generation {generation} has {sorted(last.inputs)}"
        raise Unexpected(where="Journal.bind", why=why)
    for source, given in inputs.items():
        known = last.inputs.get(source)
        if known is not None and given.before != known.after:
            why = f"transaction {last.time} ends at {known.after}, but the input starts at {given.before}"
            raise Conflict(where=f"{path}, source {source!r}", why=why)


def _check_fragments(inputs: Mapping[str, Input]) -> None:
    seen: set[str] = set()
    for source, given in inputs.items():
        if given.fragments and given.before == given.after:
            why = f"source {source!r} offers {len(given.fragments)} fragments, but its position stays {given.after}"
            raise Unexpected(where="Journal.bind", why=why)
        for fragment in given.fragments:
            if isinstance(fragment, Staged):
                if fragment.key in seen:
                    raise Unexpected(where="Journal.bind", why=f"source {source!r} offers {fragment.key} twice")
                seen.add(fragment.key)
