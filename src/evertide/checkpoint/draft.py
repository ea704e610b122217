"""`Draft`: what a pipeline hands over to be published as a checkpoint, and what it gets back when it restores one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evertide.checkpoint.manifest import Manifest, StateFile
from evertide.checkpoint.records import CatalogEntry
from evertide.errors import EvertideError, InvalidInput
from evertide.shard.state import ShardState
from evertide.store.paths import check_shard
from evertide.types import Generation

__all__ = ["Draft", "Restored", "Skipped"]


@dataclass(frozen=True)
class Draft:
    """The state between two transactions: everything below `time`, nothing of it or after it."""

    time: int
    fingerprint: str
    generation: Generation
    positions: Mapping[str, str]
    state: bytes
    """What the engine needs besides the parts; nobody else looks into it."""
    parts: tuple[StateFile, ...]
    """State parts, durable already."""
    shards: Mapping[str, ShardState]
    members: tuple[str, ...]
    pipeline: bytes
    """The record that says what the pipeline declares."""

    def check(self) -> None:
        """Refuse what would not be a checkpoint before anything is stored."""
        where = f"checkpoint at time {self.time}"
        if set(self.members) != set(self.shards):
            why = f"states of {sorted(self.shards)}, and members {sorted(self.members)}"
            raise InvalidInput(where=where, why=why)
        for name, state in self.shards.items():
            check_shard(name)
            if state.upper != self.time or state.shard != name:
                why = f"shard {name!r} is there as {state.shard!r} with upper {state.upper}"
                raise InvalidInput(where=where, why=why)


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that was not used, and what is wrong with it."""

    entry: CatalogEntry
    error: EvertideError


@dataclass(frozen=True)
class Restored:
    entry: CatalogEntry
    manifest: Manifest
    state: bytes
    pipeline: bytes
    skipped: tuple[Skipped, ...] = field(default=())
    """Newer ones that are damaged. Not empty: say it loudly (I13)."""
