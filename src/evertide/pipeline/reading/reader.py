"""`StorageReader`: reads a storage from a process that does not run its pipeline, without Spark.

Every call reads the current records, also while a pipeline runs: only immutable data is cached.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from evertide.checkpoint.catalog import Checkpoints
from evertide.errors import InvalidInput
from evertide.journal.journal import Journal
from evertide.observer import NO_OBSERVER, Observer
from evertide.pipeline.definition import Definition, read_definition
from evertide.pipeline.reading.collections import Collections
from evertide.pipeline.records.ownership import check_free
from evertide.pipeline.state.members import Members
from evertide.pipeline.status.status import Status, read_status
from evertide.runtime import Runtime, SystemRuntime
from evertide.settings import Settings
from evertide.shard.heartbeat import Heartbeat
from evertide.shard.shard import Shards
from evertide.store.observed import observe
from evertide.store.open import Storage, open_storage
from evertide.store.paths import FORMAT, META_FILE
from evertide.store.retry import retry_read


class StorageReader:
    """Reads the collections, the status and the journal of a storage."""

    def __init__(self, storage: Storage, *, runtime: Runtime, settings: Settings) -> None:
        self.storage = storage
        self.runtime = runtime
        self.settings = settings
        self.journal = Journal(storage.blob, storage.meta, runtime=runtime, settings=settings)
        self.checkpoints = Checkpoints(storage.blob, storage.meta, runtime=runtime, settings=settings)
        self.shards = Shards(storage.blob, storage.meta, runtime=runtime, settings=settings, reader="reader")
        self.collections = Collections(self._members)
        self._known: Members | None = None
        self._heartbeat = Heartbeat(settings, self.shards.leases).start()

    @classmethod
    def open(
        cls,
        location: str | Path,
        meta: str | None = None,
        *,
        settings: Settings | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> StorageReader:
        """Open an existing storage; a missing one is not created."""
        check_is_there(location)
        settings, runtime = settings or Settings(), SystemRuntime()
        opened = open_storage(location, meta, runtime=runtime, settings=settings)
        return cls(observe(opened, observer, runtime), runtime=runtime, settings=settings)

    @property
    def definition(self) -> Definition | None:
        """None if no pipeline ever ran on this storage."""
        meta = self.storage.meta
        return retry_read(lambda: read_definition(meta), self.runtime, self.settings)[1]

    def status(self) -> Status:
        return read_status(self.storage, self.shards, self.journal, self.checkpoints)

    def check_free(self) -> None:
        """Raise `Conflict`, with the process, if one runs the pipeline."""
        check_free(self.storage.meta, self.runtime, self.settings)

    def close(self) -> None:
        self._heartbeat.stop()
        self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _members(self) -> Members:
        definition = self.definition
        if definition is None:
            raise InvalidInput(where=self.storage.root, why="no pipeline ever ran on this storage")
        known = self._known
        if known is None or known.definition.change != definition.change:
            known = Members(self.shards, definition) if known is None else known.move_to(definition)
            self._known = known
        return known


def is_there(location: str | Path) -> bool:
    """Whether a directory is a storage. A remote location counts as one."""
    try:
        check_is_there(location)
    except InvalidInput:
        return False
    return True


def check_is_there(location: str | Path) -> None:
    """Raise `InvalidInput` if a directory has none of the files of a storage. Their content is not checked."""
    if "://" in str(location):
        return  # opening it creates nothing, and Meta reports a missing storage
    root = Path(location)
    if not root.is_dir():
        raise InvalidInput(where=str(root), why="no storage here: the directory does not exist")
    if not any((root / name).exists() for name in (FORMAT, META_FILE, "checkpoints", "parts", "state", "journal")):
        raise InvalidInput(where=str(root), why="no storage here: the directory has none of the files of a storage")
