"""`Draft`: the state that a pipeline publishes as a checkpoint, and `RestoredCheckpoint`: the result of a restore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evertide.checkpoint.manifest import Manifest, StateFile
from evertide.checkpoint.records import CatalogEntry
from evertide.errors import EvertideError, Unexpected
from evertide.shard.state import ShardState
from evertide.types import Generation, Time

__all__ = ["Draft", "RestoredCheckpoint", "SkippedCheckpoint"]


@dataclass(frozen=True)
class Draft:
    """The state between two transactions: everything below `time`, and nothing of `time` or later."""

    time: Time
    fingerprint: str
    generation: Generation
    positions: Mapping[str, str]
    state: bytes
    """What the engine needs besides the parts; only the engine interprets it."""
    parts: tuple[StateFile, ...]
    """State parts; already durable."""
    shards: Mapping[str, ShardState]
    members: tuple[str, ...]
    pipeline: bytes
    """The definition of the pipeline."""

    def check(self) -> None:
        """Raise an error for an invalid draft before anything is stored."""
        where = f"checkpoint at time {self.time}"
        if set(self.members) != set(self.shards):
            why = f"the draft has the states of {sorted(self.shards)}, but the members are {sorted(self.members)}"
            raise Unexpected(where=where, why=why)
        for name, state in self.shards.items():
            if state.upper != self.time or state.shard != name:
                why = f"the state of shard {name!r} is that of {state.shard!r} with upper {state.upper}"
                raise Unexpected(where=where, why=why)


@dataclass(frozen=True)
class SkippedCheckpoint:
    entry: CatalogEntry
    error: EvertideError


@dataclass(frozen=True)
class RestoredCheckpoint:
    entry: CatalogEntry
    manifest: Manifest
    state: bytes
    pipeline: bytes
    skipped: tuple[SkippedCheckpoint, ...] = field(default=())
    """Newer, damaged checkpoints. If there are any, the caller must report them (I13)."""
