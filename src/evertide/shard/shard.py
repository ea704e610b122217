"""`Shard`: a durable collection, exact for every time in [since, upper), and `Shards`: those of one storage."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from evertide.errors import InvalidInput, RecordDamaged
from evertide.rows.changes import DIFF, TIME, consolidate, make_empty_changes
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.append import Append, Changes, append_together
from evertide.shard.compaction import compact
from evertide.shard.garbage import Pinned, ShardGarbage, collect_garbage, pin_nothing
from evertide.shard.hold import advance_since, encode_first_holds, read_holds, release_hold, set_hold
from evertide.shard.inspect import Inspection, inspect
from evertide.shard.lease import Leases
from evertide.shard.read import Snapshot, read_inline_changes, take_changes, take_snapshot, wait_for_upper
from evertide.shard.shard_log import Proposal, ShardLog, commit
from evertide.shard.source import ShardSource
from evertide.shard.state import Created, Finalized, LogEntry, ShardState
from evertide.store.blob import Blob
from evertide.store.meta import Meta, Write, seal
from evertide.store.paths import check_shard, hold_key, shard_key
from evertide.store.retry import commit_until_known, retry_read
from evertide.store.writers import Writer
from evertide.threads.stopping import IsStopping, never_stopping
from evertide.types import Time


class Shard:
    """One shard. Methods that write take the process's `Writer`."""

    def __init__(self, log: ShardLog, leases: Leases) -> None:
        self.log = log
        self.name = log.shard
        self._leases = leases

    @property
    def schema(self) -> pa.Schema:
        return self.log.schema()

    @property
    def upper(self) -> Time:
        return self.log.read().state.upper

    @property
    def since(self) -> Time:
        return self.log.read().state.since

    @property
    def holds(self) -> dict[str, int]:
        return read_holds(self.log).holds

    def compare_and_append(self, changes: Changes, expected_upper: int, new_upper: int, writer: Writer) -> None:
        """Append the changes of [expected_upper, new_upper) if the upper is the expected one (I2)."""
        append_together([Append(self.log, changes, expected_upper, new_upper)], writer)

    def wait_for_upper(self, above: int, timeout_s: float | None = None) -> Time:
        """Return the upper as soon as it is above a time, or when the timeout is over."""
        return wait_for_upper(self.log, above, timeout_s).state.upper

    def snapshot(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> Snapshot:
        """The content at a time."""
        return take_snapshot(self.log, self._leases, as_of, columns=columns, timeout_s=timeout_s)

    def changes(self, lower: int, upper: int, *, timeout_s: float | None = None) -> pa.Table:
        """The changes at the times [lower, upper), with `__time` and `__diff`: each distinct row once per time."""
        tables = read_inline_changes(self.log, lower, upper)
        if tables is None:
            with take_changes(self.log, self._leases, lower, upper, timeout_s=timeout_s) as found:
                tables = [*found.scan()]
        return consolidate(pa.concat_tables([make_empty_changes(self.schema), *tables]), self.name)

    def lease_changes(self, lower: int, upper: int) -> Snapshot:
        """Take a lease on the changes of [lower, upper), so that they can be read in several steps."""
        return take_changes(self.log, self._leases, lower, upper)

    def listen(self, as_of: int) -> ShardSource:
        """Stream the changes after a time."""
        return ShardSource(self.log, self._leases, as_of, snapshot=False)

    def subscribe(self, as_of: int) -> ShardSource:
        """Stream the content at a time, then the changes after it."""
        return ShardSource(self.log, self._leases, as_of, snapshot=True)

    def hold(self, name: str, time: int) -> None:
        """Keep since at or below a time until the hold is moved or released. It never expires."""
        set_hold(self.log, name, time)

    def release(self, name: str) -> None:
        release_hold(self.log, name)

    def advance_since(self, time: int, writer: Writer) -> Time:
        """Move since up to a time, as far as holds and leases allow. Return the new since."""
        return advance_since(self.log, time, writer)

    def compact(self, writer: Writer, is_stopping: IsStopping = never_stopping) -> bool:
        """Merge until nothing is left to merge, or `is_stopping` returns true. Return whether anything was merged."""
        has_merged = False
        while not is_stopping() and compact(self.log, writer, is_stopping):
            has_merged = True
        return has_merged

    def collect_garbage(self, writer: Writer, pinned: Pinned = pin_nothing) -> ShardGarbage:
        """Delete what is not needed. `pinned` names parts that others than this shard's readers need."""
        return collect_garbage(self.log, writer, pinned)

    def inspect(self) -> Inspection:
        return inspect(self.log)

    def finalize(self, writer: Writer) -> None:
        """End the shard: it accepts no more changes and has no content. Garbage collection deletes its parts."""

        def make(state: ShardState) -> Finalized | None:
            return None if state.finalized else Finalized(tuple(part.key for part in state.parts if part.key))

        commit([Proposal(self.log, make)], writer)


class Shards:
    """The shards of one storage, with the leases, settings and clock that they share."""

    def __init__(self, blob: Blob, meta: Meta, *, runtime: Runtime, settings: Settings, reader: str = "") -> None:
        self.blob = blob
        self.meta = meta
        self.runtime = runtime
        self.settings = settings
        self.leases = Leases(meta, runtime, settings, reader)

    def open(self, name: str) -> Shard:
        """Open an existing shard; raise an error if there is none."""
        shard = self._shard(name)
        shard.log.read()
        return shard

    def create(self, name: str, schema: pa.Schema, writer: Writer) -> Shard:
        """Open the shard, or create it. Raise `InvalidInput` if it exists with other columns."""
        shard = self._shard(name)
        if shard.log.find() is None:
            self._create(name, _check_schema(name, schema), writer)
            shard.log.read()
        if not shard.schema.equals(schema):
            raise InvalidInput(where=f"shard {name!r}", why=f"the shard exists with other columns: {shard.schema}")
        return shard

    def names(self) -> list[str]:
        """The names of all shards, including finalized ones."""
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
            Write(hold_key(name), 0, encode_first_holds(f"{writer.id}-{token}")),
        ]
        stale = commit_until_known(self.meta, writes, writer.guards(), self.runtime, self.settings)
        if stale is not None:
            writer.check(stale)
            if self._shard(name).log.find() is None:
                why = f"holds of shard {name!r} exist, but its log is missing"
                raise RecordDamaged(path=self.meta.path(stale.key), why=why)


def _check_schema(name: str, schema: pa.Schema) -> pa.Schema:
    """Return the schema without metadata: a shard stores names, types and nullability only."""
    names = schema.names
    refused = sorted({column for column in names if names.count(column) > 1 or column in (TIME, DIFF)})
    if refused:
        raise InvalidInput(where=f"shard {name!r}", why=f"the columns {refused} are duplicates or reserved names")
    return pa.schema([field.remove_metadata() for field in schema])
