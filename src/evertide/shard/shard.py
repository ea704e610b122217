"""`Shard`: a durable collection, exact for every time in [since, upper).

This is the face of the package: everything below is one small module each.

    state       what a shard is, and how a diff changes it (pure)
    log         its durable log: read, compare-and-set, roll-up
    append      compare_and_append, several shards at once, append for replicated writers
    read        windows, listing, fetching, snapshots
    frontier    how far a reader is (pure)
    source      a shard as a stream
    lease       a reader's hold on parts
    hold        since, and what keeps it
    compaction  merging batches
    collection  deleting what nobody needs
    inspect     looking inside
    heart, maintenance  the threads beside it (ticker: what they share)
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from evertide.errors import Conflict, InvalidInput
from evertide.rows.changes import DIFF, TIME, consolidate, empty
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.append import Append, Changes, Outcome, append_missing, append_together
from evertide.shard.compaction import Compaction, compact
from evertide.shard.garbage import Pinned, ShardGarbage, collect_garbage, pin_nothing
from evertide.shard.hold import advance_since, first_holds, read_holds, release_hold, set_hold
from evertide.shard.inspect import Inspection, inspect
from evertide.shard.lease import Leases
from evertide.shard.log import Proposal, ShardLog, commit
from evertide.shard.parts.part import Predicate
from evertide.shard.read import Snapshot, inline_changes, take_changes, take_snapshot, wait_for_upper
from evertide.shard.source import ShardSource
from evertide.shard.state import Created, Finalized, LogEntry, ShardState
from evertide.store.blob import Blob
from evertide.store.meta import Meta, Write
from evertide.store.paths import check_shard, hold_key, shard_key
from evertide.store.retry import commit_until_known, retry_read
from evertide.store.sealed import seal
from evertide.store.writers import Writer
from evertide.threads.stopping import IsStopping, never_stopping

__all__ = ["Shard", "Shards"]


class Shard:
    """One shard. Reading needs nothing else; whatever writes takes the process's `Writer`."""

    def __init__(self, log: ShardLog, leases: Leases) -> None:
        self.log = log
        self.name = log.shard
        self._leases = leases

    @property
    def schema(self) -> pa.Schema:
        return self.log.schema()

    @property
    def upper(self) -> int:
        return self.log.read().state.upper

    @property
    def since(self) -> int:
        return self.log.read().state.since

    @property
    def holds(self) -> dict[str, int]:
        return read_holds(self.log).holds

    def compare_and_append(self, changes: Changes, expected_upper: int, new_upper: int, writer: Writer) -> None:
        """Append the changes of [expected_upper, new_upper) if the upper is the expected one (I2)."""
        append_together([Append(self.log, changes, expected_upper, new_upper)], writer)

    def append(self, changes: pa.Table, lower: int, upper: int, writer: Writer) -> Outcome:
        """Append what is missing of [lower, upper): for writers that all have the same changes (I3)."""
        return append_missing(self.log, changes, lower, upper, writer)

    def wait_for_upper(self, above: int, timeout_s: float | None = None) -> int:
        """The upper, once it is above a time."""
        return wait_for_upper(self.log, above, timeout_s).state.upper

    def snapshot(
        self,
        as_of: int,
        *,
        where: Sequence[Predicate] = (),
        columns: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> Snapshot:
        """The content at a time. `where` skips parts that cannot match; it does not filter rows."""
        return take_snapshot(self.log, self._leases, as_of, where=where, columns=columns, timeout_s=timeout_s)

    def changes(self, lower: int, upper: int, *, timeout_s: float | None = None) -> pa.Table:
        """What changed at the times [lower, upper): rows with `__time` and `__diff`, each once per time."""
        tables = inline_changes(self.log, lower, upper)
        if tables is None:
            with take_changes(self.log, self._leases, lower, upper, timeout_s=timeout_s) as found:
                tables = [*found.scan()]
        return consolidate(pa.concat_tables([empty(self.schema), *tables]), self.name)

    def lease_changes(self, lower: int, upper: int) -> Snapshot:
        """A lease on the changes of [lower, upper): these can be read, in whatever steps, until it is closed."""
        return take_changes(self.log, self._leases, lower, upper)

    def listen(
        self, as_of: int, *, where: Sequence[Predicate] = (), columns: Sequence[str] | None = None
    ) -> ShardSource:
        """What changes after a time."""
        return ShardSource(self.log, self._leases, as_of, snapshot=False, where=where, columns=columns)

    def subscribe(
        self, as_of: int, *, where: Sequence[Predicate] = (), columns: Sequence[str] | None = None
    ) -> ShardSource:
        """The content at a time, then what changes after it."""
        return ShardSource(self.log, self._leases, as_of, snapshot=True, where=where, columns=columns)

    def hold(self, name: str, time: int) -> None:
        """Keep since at or below a time until the hold is moved or released; it never lapses."""
        set_hold(self.log, name, time)

    def release(self, name: str) -> None:
        release_hold(self.log, name)

    def advance_since(self, time: int, writer: Writer) -> int:
        """Let times below be forgotten, as far as holds and leases allow. Returns the since reached."""
        return advance_since(self.log, time, writer)

    def compact(self, writer: Writer, is_stopping: IsStopping = never_stopping) -> list[Compaction]:
        """Merge until nothing is left to merge, or whoever asked for it stops."""
        done = []
        while not is_stopping() and (one := compact(self.log, writer, is_stopping)) is not None:
            done.append(one)
        return done

    def collect_garbage(self, writer: Writer, pinned: Pinned = pin_nothing) -> ShardGarbage:
        """Delete what nobody needs. `pinned` names parts that are needed by others than this shard's readers."""
        return collect_garbage(self.log, writer, pinned)

    def inspect(self) -> Inspection:
        return inspect(self.log)

    def finalize(self, writer: Writer) -> None:
        """End the shard: it takes no more changes and has no content; its parts are left to collection."""

        def make(state: ShardState) -> Finalized | None:
            return None if state.finalized else Finalized(tuple(part.key for part in state.parts if part.key))

        commit([Proposal(self.log, make)], writer)


class Shards:
    """The shards of one storage, sharing what a process has once: leases, settings, clock."""

    def __init__(self, blob: Blob, meta: Meta, *, runtime: Runtime, settings: Settings, reader: str = "") -> None:
        self.blob = blob
        self.meta = meta
        self.runtime = runtime
        self.settings = settings
        self.leases = Leases(meta, runtime, settings, reader)

    def open(self, name: str) -> Shard:
        """A shard that exists; an error that names it otherwise."""
        shard = self._shard(name)
        shard.log.read()
        return shard

    def create(self, name: str, schema: pa.Schema, writer: Writer) -> Shard:
        """The shard with these columns, made now or by a peer earlier. Other columns are an error."""
        shard = self._shard(name)
        if shard.log.find() is None:
            self._create(name, _check_schema(name, schema), writer)
            shard.log.read()
        if not shard.schema.equals(schema):
            raise InvalidInput(where=f"shard {name!r}", why=f"it exists with other columns: {shard.schema}")
        return shard

    def names(self) -> list[str]:
        """All shards, finalized ones too."""
        prefix = shard_key("")
        found = retry_read(lambda: self.meta.heads(prefix), self.runtime, self.settings)
        return [key.removeprefix(prefix) for key in found]

    def append_together(self, appends: Sequence[tuple[Shard, Changes, int, int]], writer: Writer) -> None:
        """Append to several shards in one commit: all or none (I4)."""
        append_together([Append(shard.log, changes, lower, upper) for shard, changes, lower, upper in appends], writer)

    def _shard(self, name: str) -> Shard:
        return Shard(ShardLog(name, self.blob, self.meta, self.runtime, self.settings), self.leases)

    def _create(self, name: str, schema: pa.Schema, writer: Writer) -> None:
        created = Created(check_shard(name), schema.serialize().to_pybytes())
        token = writer.new_token()
        writes = [
            Write(shard_key(name), 0, seal(LogEntry(writer.id, token, created))),
            Write(hold_key(name), 0, first_holds(f"{writer.id}-{token}")),
        ]
        stale = commit_until_known(self.meta, writes, writer.guards(), self.runtime, self.settings)
        if stale is not None:
            writer.check(stale)
            if self._shard(name).log.find() is None:
                raise Conflict(where=self.meta.path(stale.key), why=f"holds exist, but shard {name!r} does not")


def _check_schema(name: str, schema: pa.Schema) -> pa.Schema:
    """Names, types and nullability; what else Arrow's fields may carry is not a shard's."""
    names = schema.names
    taken = sorted({column for column in names if names.count(column) > 1 or column in (TIME, DIFF)})
    if taken:
        raise InvalidInput(where=f"shard {name!r}", why=f"columns {taken} are there twice, or are Evertide's own")
    return pa.schema([field.remove_metadata() for field in schema])
