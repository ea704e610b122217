"""`ProcessContext`: the components that a process has once: storage, writer registration, engine, sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from evertide.checkpoint.catalog import Checkpoints
from evertide.journal.journal import Journal
from evertide.observer import Observer
from evertide.pipeline.engine import Engine, StateStore
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.shard import Shards
from evertide.sources.contract import Source
from evertide.store.meta import Meta
from evertide.store.writers import Writer

OnProgress = Callable[[str, int, int], None]
"""Called with the name of the work, the amount done, and the total."""


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """The components that one process has for its storage and its pipeline."""

    meta: Meta
    shards: Shards
    journal: Journal
    checkpoints: Checkpoints
    writer: Writer
    runtime: Runtime
    settings: Settings
    engine: Engine
    store: StateStore
    sources: Mapping[str, Source]
    progress: OnProgress
    observer: Observer
