"""One transaction after the other: bind, compute, commit; and what surrounds them.

The order, in which each step is durable before the next begins:

1. *Bind.* The journal takes the whole input of t (I7).
2. *Compute.* Sources' rows become deltas of tables, these deltas of views (`Machine`). If a view fails, the generation
   that goes on without it is committed first.
3. *Commit.* One commit appends to all member shards, t -> t+1, and records counts and digests (I4, I8).

If the commit did not happen (a full disk, storage away), what was computed is kept, and committed when the runner is
asked again: the machine has moved on and must not take t twice. If anything else fails, the runner is over; whoever
opens the storage again finds t bound, and completes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import msgspec
import pyarrow as pa

from evertide.checkpoint.catalog import Checkpoints
from evertide.errors import Damaged
from evertide.journal.journal import Journal
from evertide.journal.records import Bound, Committed, Content, Input
from evertide.journal.replay import Found
from evertide.pipeline.definition import Away, Definition, definition_write, read_definition
from evertide.pipeline.inputs import read_input
from evertide.pipeline.machine import Machine
from evertide.pipeline.members import Members, at_time
from evertide.pipeline.tables import TableDeltas
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.append import Append, append_together
from evertide.shard.changes import DIFF
from evertide.shard.digest import ZERO, add, digest, to_hex
from evertide.shard.part import Part
from evertide.sources.contract import Rows, Source
from evertide.store.meta import Meta, Write
from evertide.store.retry import reading
from evertide.store.writers import Writer

__all__ = ["Doing", "Runner"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Doing:
    """What a runner is at, for those who wonder why nothing moves."""

    what: str
    time: int
    since_s: float


@dataclass(frozen=True, slots=True)
class _Computed:
    time: int
    sources: Mapping[str, Content]
    deltas: Mapping[str, pa.Table]
    """By shard."""


class Runner:
    def __init__(
        self,
        *,
        meta: Meta,
        members: Members,
        machine: Machine,
        journal: Journal,
        checkpoints: Checkpoints,
        writer: Writer,
        sources: Mapping[str, Source],
        runtime: Runtime,
        settings: Settings,
    ) -> None:
        self.meta = meta
        self.members = members
        self.machine = machine
        self.journal = journal
        self.checkpoints = checkpoints
        self.writer = writer
        self.sources = dict(sources)
        self.runtime = runtime
        self.settings = settings
        self.doing = Doing("waiting", machine.time, runtime.monotonic_s())
        self._computed: _Computed | None = None

    @property
    def definition(self) -> Definition:
        return self.members.definition

    @property
    def time(self) -> int:
        """The first transaction that is not committed."""
        return self.machine.time if self._computed is None else self._computed.time

    def bind(self, inputs: Mapping[str, Input]) -> Bound:
        self._does("binding the input")
        return self.journal.bind(inputs, self.definition.generation, self.writer)

    def complete(self, bound: Bound, batches: Iterable[tuple[str, Rows]] | None = None) -> None:
        """Compute a transaction that is bound, and commit it. `batches` is its input, if that was read already."""
        if self._computed is None:
            if bound.time != self.machine.time:
                why = f"it has taken all transactions below {self.machine.time}, and {bound.time} is to be computed"
                raise Damaged(path="state of the pipeline", why=f"{why}; open the pipeline again")
            self._does("reading the input")
            batches = read_input(bound, self.journal, self.sources) if batches is None else batches
            deltas = self.machine.tables.deltas(batches, lambda name: self.members.table_content(name, bound.time))
            self._compute(bound, deltas)
        self.commit()

    def commit(self) -> None:
        """Append what was computed, if anything was. `Unavailable`: nothing happened, and it may be asked again."""
        computed = self._computed
        if computed is None:
            return
        self._does("committing")
        shards = self.members.all()
        empty = {name: self._nothing(shard.schema) for name, shard in shards.items() if name not in computed.deltas}
        deltas = {**empty, **computed.deltas}
        appends = [
            Append(shard.log, at_time(deltas[name], computed.time), computed.time, computed.time + 1)
            for name, shard in shards.items()
        ]
        append_together(appends, self.writer, writes=self._record(computed, tuple(shards)))
        self._computed = None
        self._does("waiting")

    def replay(self, bound: Bound, recorded: Committed) -> Found:
        """Take a transaction that is in the shards already, and say what it came to, for comparison."""
        self._does("replaying")
        deltas, errors = self.members.table_changes(bound.time)
        deltas = {name: delta for name, delta in deltas.items() if self.machine.tables.has(name)}
        unkept = {name for name, table in self.definition.tables.items() if table.is_declared and not table.shard}
        given: Mapping[str, Content] = {}
        if unkept:
            batches = read_input(bound, self.journal, self.sources, lambda table: table in unkept)
            read = self.machine.tables.deltas(batches, lambda _: self._nothing(pa.schema([])))
            deltas, given = {**deltas, **read.tables}, read.sources
        found = self.machine.step(deltas, errors)
        if self.machine.failures:
            raise self.machine.failures[0]
        return self._found(bound, recorded, found, given)

    def _found(
        self, bound: Bound, recorded: Committed, found: Mapping[str, pa.Table], given: Mapping[str, Content]
    ) -> Found:
        """Of a transaction of an older generation only what both know is compared."""
        shards: dict[str, Content | None] = dict.fromkeys(recorded.shards)
        if bound.generation == self.definition.generation:
            shards = dict.fromkeys(self.definition.members())
        for name, delta in found.items():
            shard = self.definition.views[name].shard
            if shard in recorded.shards or bound.generation == self.definition.generation:
                shards[shard] = _content(delta)
        unkept_only = self._sources_of_unkept()
        sources = {name: given.get(name, Content(0, ZERO)) if name in unkept_only else None for name in bound.inputs}
        return Found(bound.time, sources, shards)

    def _sources_of_unkept(self) -> set[str]:
        """Sources of which every row is read again in a replay."""
        kept = {name for name, table in self.definition.tables.items() if table.shard}
        return {name for name, source in self.sources.items() if not kept.intersection(source.tables)}

    def _compute(self, bound: Bound, deltas: TableDeltas) -> None:
        self._does("computing the views")
        found = self.machine.step(deltas.tables, deltas.errors)
        if self.machine.failures:
            self._leave()
        tables = self.definition.tables
        by_shard = {tables[name].shard: delta for name, delta in deltas.tables.items() if tables[name].shard}
        by_shard[self.definition.errors] = deltas.errors
        by_shard |= {self.definition.views[name].shard: delta for name, delta in found.items()}
        sources = {name: deltas.sources.get(name, Content(0, ZERO)) for name in bound.inputs}
        self._computed = _Computed(bound.time, sources, by_shard)

    def _leave(self) -> None:
        """The generation without the views that failed."""
        views = dict(self.definition.views)
        for error in self.machine.failures:
            logger.error("%s", error)
            for name in error.views:
                away = Away("failed", error.time, error.why, self.runtime.wall_s())
                views[name] = msgspec.structs.replace(views[name], away=away)
        self.change(views=views)

    def change(self, **changes: object) -> None:
        """Another definition, in force from one moment on for everybody (I16)."""
        number, _ = reading(lambda: read_definition(self.meta), self.runtime, self.settings)
        definition = msgspec.structs.replace(
            self.definition, generation=self.definition.generation + 1, change=self.runtime.new_id(), **changes
        )
        self.writer.change_generation(definition.members(), [definition_write(number, definition)])
        self.members = self.members.moved(definition)

    def _record(
        self, computed: _Computed, names: Sequence[str]
    ) -> Callable[[Sequence[tuple[Part, ...]]], Sequence[Write]]:
        def made(stored: Sequence[tuple[Part, ...]]) -> Sequence[Write]:
            contents = {
                name: Content(sum(part.rows for part in parts), reduce(add, (part.digest for part in parts), ZERO))
                for name, parts in zip(names, stored, strict=True)
            }
            record = Committed(computed.time, dict(computed.sources), contents, self.writer.id)
            return [self.journal.commit_write(record)]

        return made

    def _nothing(self, schema: pa.Schema) -> pa.Table:
        return pa.schema([*schema, pa.field(DIFF, pa.int64(), nullable=False)]).empty_table()

    def _does(self, what: str) -> None:
        self.doing = Doing(what, self.time, self.runtime.monotonic_s())


def _content(delta: pa.Table) -> Content:
    diffs = delta.column(DIFF).to_numpy()
    return Content(delta.num_rows, to_hex(digest(delta.drop_columns([DIFF]), diffs)))
