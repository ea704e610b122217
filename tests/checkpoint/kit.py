"""What the tests of checkpoints share: a process with shards, a toy engine, and its checkpoints.

The engine's state is a list of parts: every transaction adds one, and `merge` replaces all by one. The content of a
part lists its transactions, so that restored state can be compared with the expected one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from evertide.checkpoint.catalog import Checkpoints
from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.publication import Draft, RestoredCheckpoint
from evertide.checkpoint.records import CatalogEntry, StateFile, make_state_file
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.shard import Shard
from evertide.store import Blob, MemoryBlob, MemoryMeta, Meta
from evertide.store.paths import Name, state_part_key
from evertide.store.writers import Writer
from evertide.types import Generation, Time
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import SETTINGS, HookedBlob, HookedMeta, Host, changes

TTL_S = 60.0
SHARDS = ("orders", "revenue")


class Process:
    """One process on a storage, with one shard per table and view."""

    def __init__(self, blob: Blob, meta: Meta, runtime: Runtime, settings: Settings = SETTINGS) -> None:
        self.host = Host(blob, meta, runtime, settings)
        self.blob, self.meta, self.runtime = blob, meta, runtime
        self.checkpoints = Checkpoints(blob, meta, runtime=runtime, settings=settings)
        self.place = self.checkpoints.place
        self.parts: list[StateFile] = []
        self._count = 0

    @property
    def writer(self) -> Writer:
        return self.host.writer

    @property
    def upper(self) -> int:
        return self.shard("orders").upper

    def shard(self, name: str) -> Shard:
        return self.host.open(name)

    def create(self) -> None:
        for name in SHARDS:
            self.host.create(name)

    def step(self) -> int:
        """One transaction: into both shards, and into the engine's state. Returns its time."""
        time = self.upper
        opened = [self.shard(name) for name in SHARDS]
        self.host.shards.append_together(
            [(shard, changes({time: 1}, time), time, time + 1) for shard in opened], self.writer
        )
        self.add_part([time])
        return time

    def add_part(self, times: Sequence[int]) -> None:
        self._count += 1
        key = state_part_key("by_customer", Name(self.writer.id, self._count, "parquet"))
        content = msgspec.json.encode(list(times)) * 10
        self.blob.put(key, content)
        self.parts.append(make_state_file(key, content))

    def merge(self) -> None:
        """Merge all parts into one; the previous ones are not used any more."""
        times = list(range(self.upper))
        self.parts.clear()
        self.add_part(times)

    def live(self) -> set[str]:
        return {part.key for part in self.parts}

    def draft(self) -> Draft:
        upper = self.upper
        return Draft(
            time=Time(upper),
            fingerprint="f1",
            generation=Generation(0),
            positions={"files": f'{{"at": {upper}}}'},
            state=f"state at {upper}".encode(),
            parts=tuple(self.parts),
            shards={name: self.shard(name).log.read().state for name in SHARDS},
            members=SHARDS,
            pipeline=b"CREATE TABLE orders",
        )

    def publish(self, keep: int = 2) -> CatalogEntry:
        return self.checkpoints.publish(self.upper, self.draft, self.writer, keep)

    def collect_garbage(self) -> tuple[set[str], set[str]]:
        """The state parts and files of checkpoints that a garbage collection deleted."""
        found = self.checkpoints.collect_garbage(self.live, self.writer)
        return set(found.parts), set(found.files)

    def restore(self, *, reads_parts: bool = False) -> RestoredCheckpoint | None:
        """Restore as a process that starts: its engine uses the restored parts."""
        found = self.checkpoints.restore(self.writer, reads_parts=reads_parts)
        if found is not None:
            self.parts = list(found.manifest.state_parts)
        return found

    def restored_time(self) -> int:
        """Restore, check that every part exists and has the expected content, and return the time."""
        found = self.restore()
        assert found is not None
        self.check_state(found)
        return found.entry.time

    def check_state(self, found: RestoredCheckpoint) -> None:
        time = found.entry.time
        assert found.state == f"state at {time}".encode()
        assert found.manifest.positions == {"files": f'{{"at": {time}}}'}
        held: set[int] = set()
        for part in self.parts:
            content = self.blob.get(part.key)
            assert make_state_file(part.key, content) == part
            held |= set(msgspec.json.decode(content[: len(content) // 10]))
        assert held == set(range(time))

    def blobs(self, prefix: str = "") -> set[str]:
        return self.host.blobs(prefix)


class Memory:
    """A storage in memory, and the processes on it."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.blob = MemoryBlob()
        self.meta = MemoryMeta(self.runtime)

    def process(self, blob: Blob | None = None, meta: Meta | None = None) -> Process:
        return Process(blob or self.blob, meta or self.meta, self.runtime)

    def start_process(self, steps: int = 3) -> Process:
        """A process that created the shards, and has made `steps` transactions."""
        process = self.process()
        process.create()
        for _ in range(steps):
            process.step()
        return process

    def damage(self, key: str, content: bytes) -> None:
        """Replace the bytes under an existing key."""
        self.blob.delete(key)
        self.blob.put(key, content)

    def corrupt(self, key: str) -> None:
        """Replace the content under a key by other bytes of the same length."""
        self.damage(key, bytes(byte ^ 0x5A for byte in self.blob.get(key)))

    def forget(self, *keys: str) -> None:
        """Remove these keys, or all, from Meta, as a failing disk might."""
        for key in keys or tuple(self.meta.heads("")):
            self.meta._log.pop(key, None)

    def put_record(self, key: str, content: bytes) -> None:
        """Replace the bytes of the newest record of a key."""
        record = self.meta._log[key][-1]
        self.meta._log[key][-1] = type(record)(record.seqno, content)

    def place(self) -> StorageContext:
        return StorageContext(self.blob, self.meta, self.runtime, SETTINGS)


def each_step(run: Callable[[int], int], least: int) -> None:
    """Call `run(at)` for at = 1, 2, ... up to the count that it returns: once per operation of the watched work."""
    at, count = 0, 1
    while at < count:
        at += 1
        count = run(at)
    assert at >= least, f"only {at} operations were watched"


class Watched:
    """A process whose storage operations are counted during `run`; `act` runs before the operation with number `at`."""

    def __init__(self, memory: Memory, at: int, act: Callable[[], object]) -> None:
        self.at = at
        self.act = act
        self.count = 0
        self._armed = False
        blob, meta = HookedBlob(memory.blob, self._before), HookedMeta(memory.meta, self._before)
        self.process = Process(blob, meta, memory.runtime)

    def run(self, work: Callable[[Process], object]) -> int:
        """Run the work, and return the number of its operations."""
        self._armed = True
        try:
            work(self.process)
        finally:
            self._armed = False
        return self.count

    def _before(self, _operation: str, _key: str) -> None:
        if not self._armed:
            return
        self.count += 1
        if self.count == self.at:
            self._armed = False  # the operations of `act` itself are not counted
            self.act()
            self._armed = True
