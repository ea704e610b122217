"""`sweep`: garbage collection of a whole storage whose pipeline does not run. A running pipeline does this itself.

The sweep registers as the process that runs the pipeline, so that no other process starts it meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evertide.checkpoint.catalog import Checkpoints
from evertide.errors import EvertideError
from evertide.journal.journal import Journal
from evertide.pipeline.records.ownership import take_over
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.shard import Shards
from evertide.store.open import Storage

if TYPE_CHECKING:  # imports Spark
    from evertide.pipeline.process_context import OnProgress


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The keys of the deleted blobs, by kind, and the errors of what could not be checked."""

    parts: tuple[str, ...]
    """Parts of shards that were merged, finalized, or never named by a state."""
    rollups: tuple[str, ...]
    state: tuple[str, ...]
    checkpoints: tuple[str, ...]
    """Files of checkpoints that are not in the catalog."""
    staged: tuple[str, ...]
    refused: tuple[EvertideError, ...]

    @property
    def count(self) -> int:
        return sum(map(len, (self.parts, self.rollups, self.state, self.checkpoints, self.staged)))


def sweep(storage: Storage, progress: OnProgress, *, runtime: Runtime, settings: Settings) -> SweepResult:
    shards = Shards(storage.blob, storage.meta, runtime=runtime, settings=settings)
    checkpoints = Checkpoints(storage.blob, storage.meta, runtime=runtime, settings=settings)
    journal = Journal(storage.blob, storage.meta, runtime=runtime, settings=settings)
    writer = take_over(storage.meta, runtime=runtime, settings=settings)
    parts: list[str] = []
    rollups: list[str] = []
    refused: list[EvertideError] = []
    try:
        staged = tuple(journal.drop_unbound(writer))
        collected = checkpoints.collect_garbage(frozenset, writer)  # the pipeline does not run: nothing is in use
        if collected.refused is not None:
            refused.append(collected.refused)
        names = shards.names()
        for at, name in enumerate(names, 1):
            try:
                shard = shards.open(name)
                shard.compact(writer)
                found = shard.collect_garbage(writer, checkpoints.find_pins)
            except EvertideError as error:
                refused.append(error)
                continue
            parts += [*found.parts, *found.orphans]
            rollups += found.rollups
            progress("shards", at, len(names))
    finally:
        writer.unregister()
    return SweepResult(tuple(parts), tuple(rollups), collected.parts, collected.files, staged, tuple(refused))
