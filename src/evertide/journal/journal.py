"""`Journal`: which input each transaction holds (I7), and whether it is in the shards.

Where it lies: `evertide.journal.records` and `evertide.journal.staging` say. Any registered writer binds and commits;
`truncate` and `drop_unbound` delete.

The way of a transaction t; each step is durable before the next names it:

1. `stage`: rows that their source cannot send again become blobs. Staged is not bound.
2. `bind`: one compare-and-set writes the complete record of t = upper. That record *is* the transaction. If a peer was
   first, t is the peer's, and so is the answer; what is still unbound is offered again, for t + 1.
3. The shards get t in one commit, which takes `commit_write` along.
4. `truncate`: once nobody replays t any more.

A process has one journal, and shares it between threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from evertide.errors import Conflict, InvalidInput, TimeCompacted
from evertide.journal import garbage as collection
from evertide.journal.binding import check_inputs
from evertide.journal.log import TimeLog
from evertide.journal.producers import Producers, with_before
from evertide.journal.records import Bound, Committed, Input, Staged
from evertide.journal.staging import Staging, settle_named, staged_of
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob
from evertide.store.meta import Guard, Meta, Write
from evertide.store.paths import COMMITTED, JOURNAL
from evertide.store.retry import commit_settled
from evertide.store.sealed import seal
from evertide.store.writers import Writer
from evertide.types import Generation, Time

__all__ = ["Journal", "Line"]


@dataclass(frozen=True, slots=True)
class Line:
    """One transaction, for people."""

    time: int
    generation: Generation
    positions: dict[str, str]
    """Where each source stands after it."""
    moved: tuple[str, ...]
    """The sources that gave it something, or moved on."""
    fragments: int
    rows: int | None
    """None if nobody knows before reading: places are not counted, and it is not committed."""
    bytes: int
    """Of the staged fragments."""
    committed: bool
    writer: str
    bound_at_s: float


class Journal:
    def __init__(self, blob: Blob, meta: Meta, *, runtime: Runtime, settings: Settings) -> None:
        self.path = meta.path(JOURNAL)
        self._blob = blob
        self._meta = meta
        self._runtime = runtime
        self._settings = settings
        self._bound = TimeLog(JOURNAL, Bound, meta, runtime, settings)
        self._committed = TimeLog(COMMITTED, Committed, meta, runtime, settings)
        self._staging = Staging(blob, self._bound, runtime, settings)
        self.producers = Producers(meta, runtime, settings)
        self._turn = threading.Lock()
        """Held by a bind and by a drop: what one is about to name the other must not delete."""

    # Staging

    def stage(self, source: str, table: str, rows: pa.Table, writer: Writer) -> Staged:
        """Store rows, durably. No collector touches them until they are bound or dropped, or the writer is gone."""
        return self._staging.stage(source, table, rows, writer)

    def load(self, staged: Staged, *, time: int | None = None) -> pa.Table:
        """The rows as they were staged. `BlobMissing` and `BlobDamaged` name the path, and the transaction if given."""
        return self._staging.load(staged, time)

    def drop(self, fragments: Iterable[Staged], writer: Writer) -> list[str]:
        """Give up what this writer staged and did not bind: its source took it back. The keys of what is gone.

        What is bound already stays. What a bind in doubt may have named stays too, and is told in the log.
        """
        with self._turn:
            return self._staging.drop(fragments, writer)

    def may_be_bound(self, fragments: Iterable[Staged], writer: Writer) -> bool:
        """Whether a bind whose outcome was unknown names one of these, which were not dropped."""
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
        """Where each source stands after everything that is bound; nothing, if nothing is."""
        head = self.head()
        return _positions(head) if head else {}

    def read(self, time: int) -> Bound:
        """`TimeCompacted` if it is not kept any more."""
        found = self._bound.find(time)
        if found is None:
            raise InvalidInput(where=f"{self.path}, transaction {time}", why="it is not bound yet")
        return found

    def bound_at_s(self, time: int) -> float:
        """When a transaction was bound. If its record is no longer kept, when the oldest kept one was."""
        try:
            return self.read(time).bound_at_s
        except TimeCompacted as gone:
            return self.read(gone.since).bound_at_s

    def records(self, first: int) -> list[Bound]:
        """All that is bound from a time on. `TimeCompacted` if that time is not kept any more."""
        return self._bound.start(first)

    def bind(self, inputs: Mapping[str, Input], generation: Generation, writer: Writer) -> Bound:
        """Make these the input of the next transaction, t = upper. Answers with what t holds.

        If the answer's `writer` is another, a peer bound t first, and nothing of `inputs` is bound. `Conflict` if a
        source does not start where the transaction before left it: read the positions again, and offer what lies
        after them. `InvalidInput` if a source is missing or too many; `Fenced`, once and for all.
        """
        with self._turn:
            self._staging.end_doubts(writer)
            head = self._bound.head()
            number, last = (head.number, head.value) if head else (0, None)
            check_inputs(inputs, generation, last, self.path)
            time = Time(last.time + 1 if last else 0)
            for source, given in inputs.items():
                staged = [fragment for fragment in given.fragments if isinstance(fragment, Staged)]
                self._staging.check_open(source, staged, writer)
            while True:
                known = self.producers.known(inputs)
                made = self._made(time, with_before(inputs, known), generation, writer)
                numbers = self.producers.writes(made, known)
                writes = [Write(JOURNAL, number, seal(made)), *numbers]
                with self._staging.doubt(number + 1, made):
                    stale = commit_settled(self._meta, writes, writer.guards(), self._runtime, self._settings)
                if stale is None:
                    break
                if stale.key not in {write.key for write in numbers}:
                    writer.check(stale)
                    return self.read(time)
                # A producer has just been forgotten: of a peer's bind the journal's own key would tell.
            settle_named([made], writer)
            self.producers.written(numbers)
            return made

    def begin(self, time: int, positions: Mapping[str, str], generation: Generation, writer: Writer) -> Bound:
        """For a repair or an import: everything up to `time` is in the shards, and the sources stand there.

        Both keys begin with a record of that time. `Conflict` if the journal has begun already.
        """
        if time < -1:
            raise InvalidInput(where=f"{self.path}, transaction {time}", why="times are 0 and up; -1 is before all")
        head, outcome = self._bound.head(), self._committed.head()
        if head is not None:
            raise Conflict(where=self.path, why=f"it has begun already, and is at transaction {head.value.time}")
        inputs = {source: Input(position, position) for source, position in positions.items()}
        made = self._made(Time(time), inputs, generation, writer)
        writes = [Write(JOURNAL, 0, seal(made))]
        if outcome is None:
            writes.append(Write(COMMITTED, 0, seal(Committed(Time(time), {}, {}, writer.id))))
        elif outcome.value.time != time:
            why = f"the last commit is of transaction {outcome.value.time}, and the journal should begin after {time}"
            raise InvalidInput(where=self._committed.path, why=why)
        stale = commit_settled(self._meta, writes, writer.guards(), self._runtime, self._settings)
        if stale is not None:
            writer.check(stale)
            raise Conflict(where=self._meta.path(stale.key), why="a peer has just begun it")
        return made

    # What is committed

    @property
    def committed_upper(self) -> int:
        """The first time that is not in the shards."""
        return self._committed.upper()

    def committed(self, time: int) -> Committed | None:
        """What a transaction came to; None if it is not committed. `TimeCompacted` if that is not kept any more."""
        return self._committed.find(time)

    def commit_guard(self, time: int) -> Guard:
        """For a commit that must come before the one of a transaction. `Conflict` if that one is committed already."""
        head = self._committed.head()
        expected = head.value.time + 1 if head else 0
        if expected != time:
            why = f"the next transaction to be committed is {expected}"
            raise Conflict(where=f"{self._committed.path}, transaction {time}", why=why)
        return Guard(COMMITTED, head.number if head else 0)

    def commit_write(self, committed: Committed) -> Write:
        """What the commit that appends a transaction to all shards takes along (`append_together(..., writes=...)`).

        If a peer is first, that commit is a `Conflict` at this key, or an `UpperMismatch`: it says the same.
        """
        head = self._committed.head()
        expected = head.value.time + 1 if head else 0
        where = f"{self._committed.path}, transaction {committed.time}"
        if committed.time < expected:
            raise Conflict(where=where, why=f"a peer committed it: the next one is {expected}")
        if committed.time > expected:
            raise InvalidInput(where=where, why=f"transaction {expected} is not committed, and comes first")
        if committed.time >= self.upper:
            raise InvalidInput(where=where, why="it is not bound: nothing leaves the pipeline before that (I7)")
        return Write(COMMITTED, head.number if head else 0, seal(committed))

    def producers_before(self, time: int) -> dict[str, tuple[int, int]]:
        """By name, the last number of every producer in the transactions below a time, and its transaction."""
        return self.producers.before(time, lambda: self.records(time))

    # Housekeeping

    def truncate(self, below: int, writer: Writer) -> list[str]:
        """Forget the transactions below a time, and delete their staged rows: the keys of the blobs deleted.

        The newest record stays whatever the time. What is not committed cannot be forgotten: `InvalidInput`.
        """
        return collection.truncate(self._blob, self._bound, self._committed, below, writer)

    def drop_unbound(self, writer: Writer) -> list[str]:
        """Delete staged rows that no transaction names and none ever will, and say so in the log: their keys."""
        return collection.drop_unbound(self._blob, self._bound, writer)

    def describe(self, first: int = 0, last: int | None = None) -> list[Line]:
        """The transactions from `first` to `last` that are kept, oldest first."""
        upper = self._committed.upper()  # before the outcomes, so that none of them is of a later time
        bound = self._bound.kept(first, self.upper - 1 if last is None else last)
        done = min(upper, bound[-1].time + 1) if bound else 0
        outcomes = {outcome.time: outcome for outcome in self._committed.kept(first, done - 1)}
        return [_line(each, outcomes, upper) for each in bound]

    def _made(self, time: Time, inputs: Mapping[str, Input], generation: Generation, writer: Writer) -> Bound:
        ordered = dict(sorted(inputs.items()))
        return Bound(time, generation, ordered, writer.id, writer.new_token(), self._runtime.wall_s())


def _positions(bound: Bound) -> dict[str, str]:
    return {source: given.after for source, given in bound.inputs.items()}


def _line(bound: Bound, outcomes: Mapping[Time, Committed], upper: int) -> Line:
    inputs = bound.inputs.items()
    count = sum(len(given.fragments) for _, given in inputs)
    staged = staged_of(bound)
    outcome = outcomes.get(bound.time)
    rows = sum(fragment.rows for fragment in staged) if len(staged) == count else None
    if outcome is not None and outcome.sources:
        rows = sum(content.rows for content in outcome.sources.values())
    return Line(
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
