"""What the tests of the journal share: processes on one storage, rows to stage, and inputs to bind.

`Host` is a process with a journal; positions are plain numbers as texts. `Site` is a storage in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from evertide.journal.journal import Journal
from evertide.journal.records import Bound, Committed, Content, Fragment, Input, Place, Staged
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.append import Append, append_together
from evertide.shard.shard import Shard
from evertide.store import Blob, MemoryBlob, MemoryMeta, Meta, Write
from evertide.store.paths import staged_prefix
from evertide.types import Generation, Time
from tests.kit.runtime import ManualRuntime
from tests.shard.hosts import SETTINGS, changes
from tests.shard.hosts import Host as ShardHost

TTL_S = 60.0

Sent = Mapping[str, tuple[int, Sequence[Fragment]]]
"""By source: how far its position moves, and its fragments."""


def rows_of(*numbers: int) -> pa.Table:
    return pa.table({"k": pa.array(numbers, pa.int64()), "__op": pa.array([0] * len(numbers), pa.int8())})


def make_place(where: str = "offsets") -> Place:
    return Place(where)


class Host(ShardHost):
    """One process: its journal, its shards, its writer."""

    def __init__(self, blob: Blob, meta: Meta, runtime: Runtime, settings: Settings = SETTINGS) -> None:
        super().__init__(blob, meta, runtime, settings)
        self.journal = Journal(blob, meta, runtime=runtime, settings=settings)

    def stage(self, *numbers: int, source: str = "push", table: str = "orders") -> Staged:
        return self.journal.stage(source, table, rows_of(*numbers), self.writer)

    def inputs(self, sent: Sent) -> dict[str, Input]:
        """Inputs of the sources in `sent`, and the other sources at their present positions."""
        stands = self.journal.positions()
        found = {source: Input(position, position) for source, position in stands.items()}
        for source, (steps, fragments) in sent.items():
            before = stands.get(source, "0")
            found[source] = Input(before, str(int(before) + steps), tuple(fragments))
        return found

    def bind(self, sent: Sent, generation: int = 1) -> Bound:
        return self.journal.bind(self.inputs(sent), Generation(generation), self.writer)

    def bind_rows(self, *numbers: int, source: str = "push") -> Bound:
        return self.bind({source: (1, [self.stage(*numbers, source=source)])})

    def outcome(self, time: int) -> Committed:
        return Committed(
            Time(time), {"push": Content(1, f"{time:032x}")}, {"a": Content(1, f"{time:032x}")}, self.writer.id
        )

    def commit(self, shard: Shard, rows: Mapping[int, int] | None = None) -> int:
        """Append the next transaction to the shard, with its commit record."""
        time = self.journal.committed_upper
        self.append_with(shard, rows or {time: 1}, time, self.journal.make_commit_write(self.outcome(time)))
        return time

    def append_with(self, shard: Shard, rows: Mapping[int, int], time: int, write: Write) -> None:
        appends = [Append(shard.log, changes(rows, time), time, time + 1)]
        append_together(appends, self.writer, writes=lambda _parts: [write])

    def rows_bound(self) -> list[int]:
        """All staged rows of the journal, in order of the transactions."""
        found: list[int] = []
        for bound in self.journal.read_from(0):
            found += rows_in(self.journal, bound)
        return found

    def staged_blobs(self) -> set[str]:
        return self.blobs(staged_prefix())

    def overwrite(self, key: str, data: bytes) -> None:
        self.blob.delete(key)
        self.blob.put(key, data)

    def append_newer(self, key: str) -> None:
        """One more record of that key, of a newer version."""
        head = self.meta.head(key)
        assert head is not None
        self.meta.commit([Write(key, head.seqno, b"\x02" + head.data[1:])])


def rows_in(journal: Journal, bound: Bound) -> list[int]:
    found: list[int] = []
    for given in bound.inputs.values():
        for fragment in given.fragments:
            if isinstance(fragment, Staged):
                found += journal.load(fragment, time=bound.time)["k"].to_pylist()
    return found


class Site:
    """A storage in memory, and the processes on it."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.blob = MemoryBlob()
        self.meta = MemoryMeta(self.runtime)

    def host(self, blob: Blob | None = None, meta: Meta | None = None) -> Host:
        return Host(blob or self.blob, meta or self.meta, self.runtime)

    def successor(self) -> Host:
        """The next process, after the previous one was silent for too long."""
        self.runtime.advance_s(TTL_S + 1)
        return self.host()
