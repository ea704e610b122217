"""The durable position of a sink.

Location: Meta key `sink/<sink>`, version 1; only the newest record counts. The leader writes it, guarded by its
registration (I16). The record of a sink that is no longer declared stays, with `is_declared` false.

1. The record is written before the target is, with the sink token under which the target stores numbers.
2. A hold named `sink-<sink>` keeps the shard readable from `position` on: taken before the record, moved after it.
3. Transactions up to `position` are in the target, or changed nothing. After a crash the target may be ahead of the
   record; `Sink.last` returns its last transaction.
4. `cut` is recorded before that transaction is written, so that a retry cuts it into the same pieces; or into twice as
   many, if a piece did not fit into memory and the target kept nothing. A retry of the first content has the same time.
   A transaction of one piece needs no `cut`, unless it is the first content or the target numbers several requests.
5. A shard that a record names is not finalized, as the sink received its content. Before a sink moves to another shard,
   `moving_to` and `moving_at` are recorded, so that it is known which shard a number in the target belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from evertide.errors import Conflict
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.meta import Meta, Write, seal, unseal
from evertide.store.paths import sink_key
from evertide.store.retry import commit_until_known, retry_read, truncate_sometimes
from evertide.store.writers import Writer
from evertide.types import SequenceNumber

SINK_HOLD_PREFIX = "sink-"


class SinkRecord(msgspec.Struct, frozen=True):
    token: str
    collection: str
    connector: str
    shard: str
    position: int = -1
    """The target has everything up to this transaction; -1 if it has nothing yet."""
    written: int = -1
    """The last transaction that was written to the target."""
    moving_to: str = ""
    """The next shard, to be used once the difference of the two is written as transaction `moving_at`."""
    moving_at: int = -1
    is_declared: bool = True
    change: str = ""
    """A unique id, by which a writer recognizes its own commit after an unknown outcome."""
    cut: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """The last transaction that was cut or was the first content, and its number of pieces."""

    @property
    def shards(self) -> set[str]:
        return {self.shard, self.moving_to} - {""} if self.is_declared else set()


class StoredSinkRecord(msgspec.Struct, frozen=True):
    """A record as read; the next write expects `number`."""

    number: SequenceNumber
    record: SinkRecord


def name_sink_hold(sink: str) -> str:
    return f"{SINK_HOLD_PREFIX}{sink}"


def read_sinks(meta: Meta, runtime: Runtime, settings: Settings) -> dict[str, StoredSinkRecord]:
    """The records of all sinks, declared or not, by name."""
    prefix = sink_key("")
    heads = retry_read(lambda: meta.heads(prefix), runtime, settings)
    return {
        key.removeprefix(prefix): StoredSinkRecord(head.seqno, unseal(head.data, SinkRecord, meta.path(key)))
        for key, head in heads.items()
    }


def find_shards_of_sinks(meta: Meta, runtime: Runtime, settings: Settings) -> set[str]:
    """The shards that declared sinks still need."""
    return {shard for found in read_sinks(meta, runtime, settings).values() for shard in found.record.shards}


@dataclass(frozen=True, slots=True)
class SinkRecords:
    meta: Meta
    writer: Writer
    runtime: Runtime
    settings: Settings

    def read_all(self) -> dict[str, StoredSinkRecord]:
        return read_sinks(self.meta, self.runtime, self.settings)

    def write(self, sink: str, number: SequenceNumber, record: SinkRecord) -> StoredSinkRecord:
        """Write the record that follows `number`; 0 if there is none yet."""
        key = sink_key(sink)
        record = msgspec.structs.replace(record, change=self.runtime.new_id())
        # Without the guard on the generation, which may change during a delivery.
        guards = self.writer.guards()[:1]
        write = Write(key, number, seal(record))
        stale = commit_until_known(self.meta, [write], guards, self.runtime, self.settings)
        if stale is not None:
            self.writer.check_registered()  # whichever key the answer names
            raise Conflict(where=self.meta.path(key), why=f"another process delivers to sink {sink!r}")
        truncate_sometimes(self.meta, key, number + 1)
        return StoredSinkRecord(SequenceNumber(number + 1), record)
