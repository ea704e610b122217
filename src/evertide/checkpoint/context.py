"""`StorageContext`: a storage with the clock and the settings of the process that uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypeVar

from evertide.checkpoint.records import StateFile, make_state_file
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.shard_log import ShardLog
from evertide.store.blob import Blob
from evertide.store.meta import Guard, Meta, Stale, Write
from evertide.store.retry import commit_until_known, put_until_known, retry_read

T = TypeVar("T")


class CollectionKind(StrEnum):
    TABLE = "table"
    VIEW = "view"
    ERRORS = "errors"
    """The collection of dead letters."""


ShardCollections: TypeAlias = Mapping[str, tuple[CollectionKind, str]]
"""By shard, the kind and the name of its collection."""


@dataclass(frozen=True, slots=True)
class StorageContext:
    blob: Blob
    meta: Meta
    runtime: Runtime
    settings: Settings

    def retry_read(self, call: Callable[[], T]) -> T:
        return retry_read(call, self.runtime, self.settings)

    def put(self, key: str, content: bytes) -> StateFile:
        put_until_known(self.blob, key, content, self.runtime, self.settings)
        return make_state_file(key, content)

    def shard_log(self, name: str) -> ShardLog:
        return ShardLog(name, self.blob, self.meta, self.runtime, self.settings)

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None:
        return commit_until_known(self.meta, writes, guards, self.runtime, self.settings)
