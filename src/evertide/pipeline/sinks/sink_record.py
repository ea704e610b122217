"""How far a sink durably is.

Where it lies: Meta key `sink/<sink>`, version 1; only the newest record counts. Written by the process that runs the
pipeline, guarded by its registration (I16). It is never removed: of a sink that is no longer declared it says so.

1. It is there before anything is written to the target, with the token that the target keeps numbers under.
2. A hold named `sink-<sink>` keeps the shard readable from `position` on: taken before the record, moved after it.
3. Numbers up to `position` are in the target, or changed nothing. The target may be ahead of it, by what was written
   before a crash, and knows so itself (`Sink.last`).
4. `cut` is recorded before anything of that transaction is written: if it has to be written again, it is cut into the
   same pieces; or into twice as many, if a piece did not fit into memory and the target kept nothing. The first content
   is written again as the same transaction.
5. A shard that a record names is not ended, whoever else needs it no more: what the sink got was its content. To go
   from one shard to another, `moving_to` and `moving_at` are recorded first: so it is known from which shard a number
   came that the target has.
"""

from __future__ import annotations

import msgspec

from evertide.errors import Conflict
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, Write
from evertide.store.paths import sink_key
from evertide.store.retry import commit_until_known, retry_read, truncate_sometimes
from evertide.store.sealed import seal, unseal
from evertide.store.writers import Writer

__all__ = ["SinkRecord", "SinkRecords", "StoredSinkRecord", "held_by_sinks", "hold_name", "read_sinks"]


class SinkRecord(msgspec.Struct, frozen=True):
    token: str
    collection: str
    connector: str
    shard: str
    position: int = -1
    """Up to this transaction the target has everything; -1: it has nothing yet."""
    written: int = -1
    """The last transaction that changed something for it."""
    moving_to: str = ""
    """The shard that it goes on with, after the difference of the two was written as transaction `moving_at`."""
    moving_at: int = -1
    is_declared: bool = True
    change: str = ""
    """A unique id: tells a commit whose outcome was unknown from another's."""
    cut: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """The last transaction that was cut into pieces, or given as the first content, and into how many."""

    @property
    def shards(self) -> set[str]:
        return {self.shard, self.moving_to} - {""} if self.is_declared else set()


class StoredSinkRecord(msgspec.Struct, frozen=True):
    """A record as read: `number` is what the next change expects."""

    number: int
    record: SinkRecord


def hold_name(sink: str) -> str:
    return f"sink-{sink}"


def read_sinks(meta: Meta, runtime: Runtime, settings: Settings) -> dict[str, StoredSinkRecord]:
    """All that there ever were, by name."""
    prefix = sink_key("")
    heads = retry_read(lambda: meta.heads(prefix), runtime, settings)
    return {
        key.removeprefix(prefix): StoredSinkRecord(head.seqno, unseal(head.data, SinkRecord, meta.path(key)))
        for key, head in heads.items()
    }


def held_by_sinks(meta: Meta, runtime: Runtime, settings: Settings) -> set[str]:
    """Shards that sinks have not done with."""
    return {shard for found in read_sinks(meta, runtime, settings).values() for shard in found.record.shards}


class SinkRecords:
    """Those of one storage, as one process reads and writes them."""

    def __init__(self, meta: Meta, writer: Writer, runtime: Runtime, settings: Settings) -> None:
        self.meta = meta
        self.writer = writer
        self.runtime = runtime
        self.settings = settings

    def all(self) -> dict[str, StoredSinkRecord]:
        return read_sinks(self.meta, self.runtime, self.settings)

    def write(self, sink: str, number: int, record: SinkRecord) -> StoredSinkRecord:
        """Append to the record of that number; 0 if there is none yet."""
        key = sink_key(sink)
        record = msgspec.structs.replace(record, change=self.runtime.new_id())
        # The generation is no matter of sinks: it may move on beside them.
        guards = self.writer.guards()[:1]
        write = Write(key, number, seal(record))
        stale = commit_until_known(self.meta, [write], guards, self.runtime, self.settings)
        if stale is not None:
            self.writer.check_registered()  # whichever key the answer names
            raise Conflict(where=self.meta.path(key), why="another process delivers to this sink")
        truncate_sometimes(self.meta, key, number + 1)
        return StoredSinkRecord(number + 1, record)
