"""A storage with one shard to damage, and checks of the errors that report the damage."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from evertide.errors import (
    EvertideError,
)
from evertide.store import Storage, open_storage
from tests.kit.runtime import ManualRuntime, RandomStream
from tests.shard.hosts import SETTINGS, Host

TIMES = 6
ROLLED_UP = 4
NAME = "a"


class Place:
    """A storage on a real directory: times 0 to 5, rolled up in between, so that state is both roll-up and diffs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runtime = ManualRuntime()
        self.storages: list[Storage] = []
        self.host = self.process()
        self.shard = self.host.create()
        for time in range(TIMES):
            if time == ROLLED_UP:
                assert self.shard.log.roll_up(self.host.writer)
            self.host.append(self.shard, {time: 1})
        self.host.writer.beat()

    def process(self) -> Host:
        storage = open_storage(self.root, runtime=self.runtime, settings=SETTINGS)
        self.storages.append(storage)
        return Host(storage.blob, storage.meta, self.runtime)

    def close(self) -> None:
        for storage in self.storages:
            storage.close()

    def part(self, time: int) -> Path:
        [part] = self.shard.log.read_cached().state.batches[time].parts
        return self.root / part.key

    def rollup(self) -> Path:
        [path] = (self.root / "rollups" / NAME).iterdir()
        return path

    def sql(self, statement: str, *values: object) -> None:
        connection = sqlite3.connect(self.root / "meta.db", isolation_level=None)
        try:
            connection.execute(statement, values)
        finally:
            connection.close()

    def read_durable_state(self) -> tuple[dict[str, bytes], list[tuple[str, int, bytes]]]:
        """Everything that may not change: all blobs, and the shard's records in Meta."""
        files = [path for path in self.root.rglob("*") if path.is_file() and not path.name.startswith("meta.db")]
        connection = sqlite3.connect(self.root / "meta.db")
        try:
            records = connection.execute(
                "SELECT key, seqno, data FROM log WHERE key NOT LIKE 'beat/%' AND key NOT LIKE 'writer/%' ORDER BY 1, 2"
            ).fetchall()
        finally:
            connection.close()
        return {str(path): path.read_bytes() for path in files}, records


def check_error_names(error: EvertideError, path: str | Path) -> None:
    assert str(path) in str(error), f"{error} does not name {path}"
    assert str(error).endswith(error.remedy)


def flip_byte(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


def make_noise(length: int) -> bytes:
    rng = RandomStream(5)
    return b"".join(rng.bits().to_bytes(8, "big") for _ in range(length // 8 + 1))[:length]


def by_name(value: object) -> str:
    return str(getattr(value, "__name__", value))
