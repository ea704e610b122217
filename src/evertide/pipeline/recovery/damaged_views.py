"""Removes damaged views from a storage, so that a backfill recomputes them from their tables (I1).

1. If a file or record of a view's shard is damaged, one commit makes the view `hydrating` without a shard, changes the
   generation, and removes the records of the shard.
2. Views that read a damaged view are recomputed, too; their old content stays readable meanwhile.
3. A sink of the shard starts over with the whole content under a new token, a shape with a new handle.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from evertide.checkpoint.context import CollectionKind
from evertide.errors import Damaged, EvertideError
from evertide.errors.running_errors import name_views
from evertide.pipeline.definition import (
    AwayReason,
    Definition,
    ViewRecord,
    make_definition_write,
    mark_redefined,
    read_definition,
)
from evertide.pipeline.names import ERRORS
from evertide.pipeline.sinks.sink_record import read_sinks
from evertide.problem import ComponentState
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.hold import read_holds
from evertide.shard.shard import Shards
from evertide.store.meta import Meta, Write, seal, unseal
from evertide.store.paths import (
    GENERATION,
    PIPELINE,
    hold_key,
    lease_prefix,
    rollup_key,
    shape_prefix,
    shard_key,
    sink_key,
)
from evertide.store.retry import retry_read
from evertide.store.writers import GenerationRecord, Writer
from evertide.types import Generation

logger = logging.getLogger(__name__)


class _ShapeShard(msgspec.Struct, frozen=True):
    """The fields that are read of a shape's record (`evertide.shapes.log.record`)."""

    shard: str


@dataclass(frozen=True, slots=True)
class PipelineCollections:
    """The collections of a storage's pipeline, for `evertide.checkpoint.repair`, which knows only shards."""

    meta: Meta
    runtime: Runtime
    settings: Settings

    def collections(self, record: bytes | None = None) -> dict[str, tuple[CollectionKind, str]]:
        """By shard, its kind and name, from `record` or else the definition in force.

        Empty if the record is missing or damaged.
        """
        try:
            definition = self._read() if record is None else unseal(record, Definition, self.meta.path(PIPELINE))
        except EvertideError:
            return {}
        if definition is None:
            return {}
        tables = {table.shard: (CollectionKind.TABLE, name) for name, table in definition.tables.items() if table.shard}
        views = {view.shard: (CollectionKind.VIEW, name) for name, view in definition.views.items() if view.shard}
        return {**tables, **views, definition.errors: (CollectionKind.ERRORS, ERRORS)}

    def renumber(self, record: bytes, generation: Generation) -> bytes:
        """The record of a definition, with another generation."""
        definition = unseal(record, Definition, self.meta.path(PIPELINE))
        return seal(msgspec.structs.replace(definition, generation=generation, change=self.runtime.new_id()))

    def renew_generation(self) -> bool:
        """Write the generation's record again from the definition. False if the definition is missing or damaged."""
        head = self.meta.head(GENERATION)
        try:
            number, definition = read_definition(self.meta)
        except EvertideError:
            return False
        if definition is None:
            return False
        next_number = max(definition.generation, head.seqno if head else 0) + 1
        seqno = head.seqno if head else 0
        changed = msgspec.structs.replace(definition, generation=seqno + 1, change=self.runtime.new_id())
        if next_number != seqno + 1:  # records are missing: a generation has the number of its record
            return False
        writes = [
            Write(GENERATION, seqno, seal(GenerationRecord(Generation(seqno + 1), changed.list_members(), "repair"))),
            make_definition_write(number, changed),
        ]
        return self.meta.commit(writes) is None

    def recompute(self, shards: Mapping[str, str], writer: Writer) -> tuple[str, ...]:
        """Remove the shards, each with a reason; return the names of the views that will be recomputed.

        A shard of no collection is removed, too.
        """
        number, definition = retry_read(lambda: read_definition(self.meta), self.runtime, self.settings)
        if definition is None:
            return ()
        views = {name: view for name, view in definition.views.items() if view.shard in shards}
        changed = dict(definition.views)
        for name in _find_dependents(definition.views, views):
            view = changed[name]
            reason = shards.get(view.shard, "a view that this view reads is computed again")
            away = AwayReason(
                ComponentState.HYDRATING,
                -1,
                f"the view is computed again from its tables: {reason}",
                self.runtime.wall_s(),
            )
            changed[name] = msgspec.structs.replace(
                view, shard="" if name in views else view.shard, away=mark_redefined(away, view)
            )
        changed_definition = msgspec.structs.replace(
            definition, views=changed, generation=writer.generation + 1, change=self.runtime.new_id()
        )
        removals = [*self._list_shard_removals(shards), *self._list_consumer_removals(shards)]
        writer.change_generation(
            changed_definition.list_members(), [make_definition_write(number, changed_definition), *removals]
        )
        return tuple(name for name, view in changed.items() if view != definition.views[name])

    def _read(self) -> Definition | None:
        return retry_read(lambda: read_definition(self.meta), self.runtime, self.settings)[1]

    def _list_shard_removals(self, shards: Collection[str]) -> Iterator[Write]:
        for name in shards:
            leases = self.meta.heads(lease_prefix(name))
            for key in (shard_key(name), rollup_key(name), hold_key(name), *leases):
                head = self.meta.head(key)
                if head is not None:
                    yield Write(key, head.seqno, None)

    def _list_consumer_removals(self, shards: Collection[str]) -> Iterator[Write]:
        for name, found in read_sinks(self.meta, self.runtime, self.settings).items():
            if found.record.shards & set(shards):
                logger.warning("sink %r will receive the whole content again, as its shard is damaged", name)
                yield Write(sink_key(name), found.number, None)
        for key, head in self.meta.heads(shape_prefix()).items():
            if unseal(head.data, _ShapeShard, self.meta.path(key)).shard in shards:
                yield Write(key, head.seqno, None)


def _find_dependents(views: Mapping[str, ViewRecord], damaged: Collection[str]) -> list[str]:
    """The damaged views, and those that read one of them, directly or indirectly."""
    found = set(damaged)
    while more := {name for name, view in views.items() if name not in found and found & set(view.reads)}:
        found |= more
    return sorted(found)


def mark_unreadable_views_hydrating(
    shards: Shards, definition: Definition, writer: Writer, runtime: Runtime, settings: Settings
) -> tuple[str, ...]:
    """Remove views with an unreadable shard before a pipeline opens: one of them would prevent the opening."""
    unreadable: dict[str, str] = {}
    for view in definition.views.values():
        if view.shard:
            try:
                read_holds(shards.open(view.shard).log)
            except Damaged as error:
                unreadable[view.shard] = error.message
    if not unreadable:
        return ()
    names = PipelineCollections(shards.meta, runtime, settings).recompute(unreadable, writer)
    logger.error("recomputing %s from the tables: %s", name_views(names), "; ".join(unreadable.values()))
    return names
