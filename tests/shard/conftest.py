"""Two storages for tests of shards: one in memory, one on disk, each to be opened by several "processes"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.shard.shard import Shards
from evertide.store import Blob, LocalBlob, MemoryBlob, MemoryMeta, Meta, SqliteMeta
from tests.shard.kit import INLINE, make_shards


@dataclass
class Storage:
    """Each `open` is what one process has: its own connection to the one storage."""

    kind: str
    root: Path
    blob: Blob
    shared: Meta | None = None
    opened: list[Meta] = field(default_factory=list)

    def meta(self, settings: Settings = INLINE) -> Meta:
        if self.shared is not None:
            return self.shared
        self.opened.append(SqliteMeta(self.root / "meta.db", SystemRuntime(), settings))
        return self.opened[-1]

    def open(self, settings: Settings = INLINE) -> Shards:
        return make_shards(self.blob, self.meta(settings), settings=settings)


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "memory":
        yield Storage("memory", tmp_path, MemoryBlob(), MemoryMeta())
        return
    blob = LocalBlob(tmp_path)
    blob.make_root()
    made = Storage("sqlite", tmp_path, blob)
    yield made
    for meta in made.opened:
        meta.close()


@pytest.fixture
def quick_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a source look more often whether it was stopped: `join` costs a test no quarter of a second."""
    monkeypatch.setattr("evertide.shard.source._WAIT_S", 0.01)
