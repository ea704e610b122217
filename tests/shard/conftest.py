"""Two storages for tests of shards, in memory and on disk. Several "processes" can open each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evertide.runtime import SystemRuntime
from evertide.settings import Settings
from evertide.shard.shard import Shards
from evertide.store import Blob, LocalBlob, MemoryBlob, MemoryMeta, Meta, SqliteMeta
from tests.shard.damage_kit import Place
from tests.shard.hosts import Memory
from tests.shard.kit import INLINE, make_shards


@dataclass
class Storage:
    """A storage. Each `open` returns a connection of its own, as a process has."""

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
def shorten_stop_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of a source check more often whether they were stopped, so that `join` takes less than 250 ms."""
    monkeypatch.setattr("evertide.shard.source._WAIT_S", 0.01)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()
