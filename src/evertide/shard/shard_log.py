"""The durable log of one shard's state: reading it, and changing it by compare-and-set.

Stored in Meta: the diffs under `shard/<shard>` (`evertide.shard.state`), and the address of the newest roll-up under
`rollup/<shard>`. The roll-up itself is the blob `rollups/<shard>/<writer>-<seq>.state`. Each has version 1. Any writer
rolls up every `rollup_every_diffs`; garbage collection deletes older roll-ups and the diffs that the newest covers.

A reader takes the newest roll-up, then the diffs above it. If the roll-up is gone, or diffs are missing, garbage
collection may have run between the two reads, so the reader starts again. If it finds the same a second time, it is
damage.

`commit` makes a diff against the known state and commits it with the writer's guards. The outcome is one of these:

1. committed: adopt the new state;
2. stale because of the writer's guards: raise `Fenced`;
3. stale because the log has a new diff: read again, and call the proposal's `make` again, which decides whether the
   change still applies. So a concurrent compaction or a new since costs a retry only;
4. "did not happen": wait, and try again;
5. "may have happened": look for the token above the state that the commit started from; if it is missing, try the same
   commit again. At most one of the two can succeed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import xxhash

from evertide.errors import (
    BlobDamaged,
    BlobMissing,
    Conflict,
    Damaged,
    EvertideError,
    OutcomeUnknown,
    RecordDamaged,
    Unavailable,
    Unexpected,
    UnsupportedFormat,
)
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.state import Diff, LogEntry, ShardState, apply
from evertide.store.blob import Blob
from evertide.store.meta import Guard, Meta, Record, Stale, Write, seal, unseal
from evertide.store.paths import Name, check_shard, rollup_blob_key, rollup_key, shard_key
from evertide.store.retry import Backoff, commit_until_known, put_until_known, retry_read
from evertide.store.writers import Writer
from evertide.threads.outage_log import OutageLog
from evertide.threads.steps import note_step
from evertide.types import SequenceNumber

logger = logging.getLogger(__name__)


class Rollup(msgspec.Struct, frozen=True):
    seqno: SequenceNumber
    key: str
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Version:
    """The state after diff `seqno`."""

    seqno: SequenceNumber
    state: ShardState


class ShardLog:
    """One shard's log, with the last state that this process saw. Safe to share between threads."""

    def __init__(self, shard: str, blob: Blob, meta: Meta, runtime: Runtime, settings: Settings) -> None:
        self.shard = check_shard(shard)
        self.key = shard_key(shard)
        self.path = meta.path(self.key)
        self.blob = blob
        self.meta = meta
        self.runtime = runtime
        self.settings = settings
        self._lock = threading.Lock()
        self._known: Version | None = None
        self._rolled_up = 0
        self._rollup_failure = OutageLog(logger, f"could not roll up shard {shard}", runtime)
        self._schema: pa.Schema | None = None

    def read_cached(self) -> Version:
        """The last state seen. It may be behind, but is never wrong about the past."""
        known = self._known
        return known if known is not None else self.read()

    def get_cached(self) -> Version | None:
        """Like `known`, but without a storage call; None if no state was seen."""
        return self._known

    def read(self) -> Version:
        found = self.find()
        if found is None:
            raise RecordDamaged(path=self.path, why=f"the log of shard {self.shard!r} is missing")
        return found

    def find(self) -> Version | None:
        """Read the present state; None if the shard was never created."""
        with self._lock:
            self._known = retry_read(self._advance, self.runtime, self.settings)
            return self._known

    def schema(self) -> pa.Schema:
        """The shard's columns. They never change, so they are decoded once."""
        if self._schema is None:
            self._schema = pa.ipc.read_schema(pa.py_buffer(self.read_cached().state.schema))
        return self._schema

    def reread(self) -> Version:
        """Read the state from storage alone, without what this process has cached."""
        with self._lock:
            found = retry_read(self._open, self.runtime, self.settings)
            if found is None:
                raise RecordDamaged(path=self.path, why="the shard's log has disappeared")
            self._known = found
            return found

    def adopt(self, version: Version) -> None:
        with self._lock:
            if self._known is None or self._known.seqno < version.seqno:
                self._known = version

    def _advance(self) -> Version | None:
        known = self._known
        if known is not None:
            records = self.meta.scan(self.key, after=known.seqno)
            if not records or records[0].seqno == known.seqno + 1:
                return self._replay(known.seqno, known.state, records)
        return self._open()

    def _open(self) -> Version | None:
        problem: EvertideError | None = None
        while True:
            base = self.read_newest_rollup()
            try:
                return self._open_from(base[1] if base else None)
            except (BlobMissing, RecordDamaged) as error:
                # The same error twice is damage; another one means that a collector worked between the two reads.
                if problem is not None and str(problem) == str(error):
                    raise
                problem = error

    def _open_from(self, base: Rollup | None) -> Version | None:
        state = self._read_rollup(base) if base else None
        start = base.seqno if base else SequenceNumber(0)
        records = self.meta.scan(self.key, after=start)
        if records and records[0].seqno != start + 1:
            why = f"diffs {start + 1} to {records[0].seqno - 1} are missing, and no roll-up covers them"
            raise RecordDamaged(path=self.path, why=why)
        if base and not records and self._read_head_number() < start:
            raise RecordDamaged(
                path=self.path, why=f"the log ends at {self._read_head_number()}, before roll-up {start}"
            )
        self._rolled_up = max(self._rolled_up, start)
        return None if state is None and not records else self._replay(start, state, records)

    def _read_head_number(self) -> int:
        record = self.meta.head(self.key)
        return record.seqno if record else 0

    def read_newest_rollup(self) -> tuple[int, Rollup] | None:
        """The record number of the newest address, and the address."""
        key = rollup_key(self.shard)
        record = self.meta.head(key)
        return (record.seqno, unseal(record.data, Rollup, self.meta.path(key))) if record else None

    def _read_rollup(self, base: Rollup) -> ShardState:
        content = self.blob.get(base.key)
        path = self.blob.path(base.key)
        found = xxhash.xxh3_128_hexdigest(content)
        if len(content) != base.bytes or found != base.checksum:
            raise BlobDamaged(path=path, why="the checksum of the roll-up differs", expected=base.checksum, found=found)
        return unseal(content, ShardState, path)

    def _replay(self, seqno: SequenceNumber, state: ShardState | None, records: Sequence[Record]) -> Version:
        for record in records:
            state = apply(state, self.decode_entry(record), f"{self.path} #{record.seqno}")
            seqno = record.seqno
        if state is None:
            raise RecordDamaged(path=self.path, why="the shard's log is empty")
        return Version(seqno, state)

    def decode_entry(self, record: Record) -> LogEntry:
        return unseal(record.data, LogEntry, f"{self.path} #{record.seqno}")

    def has_written(self, after: int, writer: str, token: str) -> bool:
        """Return whether the diff with this token is in the log above `after`."""
        records = retry_read(lambda: self.meta.scan(self.key, after=after), self.runtime, self.settings)
        if records and records[0].seqno == after + 1:
            return any((e.writer, e.token) == (writer, token) for e in map(self.decode_entry, records))
        found = self.find()
        return found is not None and token in found.state.tokens.get(writer, ())

    def roll_up(self, writer: Writer) -> Rollup | None:
        """Write the state as one blob. None if a peer wrote the same or a later state."""
        version = self.read()
        expected, base = retry_read(self.read_newest_rollup, self.runtime, self.settings) or (0, None)
        self._rolled_up = base.seqno if base else 0
        if version.seqno <= self._rolled_up:
            return None
        content = seal(version.state)
        with writer.claim() as seq:
            key = rollup_blob_key(self.shard, Name(writer.id, seq, "state"))
            rollup = Rollup(version.seqno, key, len(content), xxhash.xxh3_128_hexdigest(content))
            put_until_known(self.blob, key, content, self.runtime, self.settings)
            writes = [Write(rollup_key(self.shard), expected, seal(rollup))]
            stale = commit_until_known(self.meta, writes, writer.guards(), self.runtime, self.settings)
            if stale is not None:
                self.blob.delete(key)
                writer.check(stale)
                return None
        self._rolled_up = version.seqno
        return rollup

    def roll_up_if_due(self, writer: Writer, diffs: int | None = None) -> None:
        """Roll up if enough diffs have accumulated. A failure is logged, and fails nothing else."""
        known = self._known
        if known is None or known.seqno - self._rolled_up < (diffs or self.settings.rollup_every_diffs):
            return
        try:
            self.roll_up(writer)
        except EvertideError as error:
            self._rollup_failure.note(error)
        else:
            self._rollup_failure.end()


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change of one shard. `make` is called again whenever the state has changed.

    It returns None if there is nothing to do, and raises if the change no longer applies.
    """

    log: ShardLog
    make: Callable[[ShardState], Diff | None]


def commit(
    proposals: Sequence[Proposal], writer: Writer, *, writes: Sequence[Write] = (), guards: Sequence[Guard] = ()
) -> bool:
    """Change all shards or none (I4); see the header. Return False if no proposal makes a diff.

    `writes` and `guards` are part of the commit. If one of them is stale, raise `Conflict`: only the caller can make
    new ones.
    """
    with writer.open_token() as (token, settled):
        return _CommitAttempt(proposals, writer, token, settled).run(writes, guards)


class _CommitAttempt:
    """One call of `commit`: its token, and whether its outcome is in doubt."""

    def __init__(self, proposals: Sequence[Proposal], writer: Writer, token: str, settled: int) -> None:
        self._proposals = proposals
        self._logs = [proposal.log for proposal in proposals]
        self._writer = writer
        self._token = token
        self._settled = settled
        self._backoff = Backoff(self._logs[0].runtime, self._logs[0].settings)
        self._versions = [log.read_cached() for log in self._logs]
        self._changes: list[_NewRecord] = []
        self._doubt: tuple[OutcomeUnknown, ShardLog, int] | None = None
        """A commit that may have happened: the error, and where its diff would be."""

    def run(self, writes: Sequence[Write], guards: Sequence[Guard]) -> bool:
        while True:
            try:
                done = self._try_once(writes, guards)
            except OutcomeUnknown as error:
                change = self._changes[0]
                self._doubt = self._doubt or (error, change.log, change.write.expected)
                self._backoff.wait_after(error)
            except Unavailable as error:
                # In doubt, an unreachable storage leaves the outcome unknown: never "did not happen".
                self._backoff.wait_after(self._doubt[0] if self._doubt is not None else error)
            except (Damaged, UnsupportedFormat) as error:
                if self._doubt is not None:
                    raise self._doubt[0] from error
                raise
            else:
                note_step()
                if done is not None:
                    return done

    def _try_once(self, writes: Sequence[Write], guards: Sequence[Guard]) -> bool | None:
        """Return whether a diff was committed; None if the state has changed and the diff must be made again."""
        if self._has_happened():
            return True
        self._changes = self._make_changes()
        if not self._changes:
            return False
        ours = [change.write for change in self._changes]
        stale = self._logs[0].meta.commit([*ours, *writes], [*self._writer.guards(), *guards])
        if stale is None:
            for change in self._changes:
                change.log.adopt(change.after)
            return True
        if self._has_happened():
            return True
        self._doubt = None  # an earlier attempt expected the same or older records, so it can no longer succeed
        self._raise_unless_stale_log(stale)
        self._versions = [log.read() for log in self._logs]
        return None

    def _has_happened(self) -> bool:
        """Return whether the commit in doubt is in the log.

        False is valid only if the writer is still registered afterwards: collectors remove the tokens of other writers.
        """
        if self._doubt is None:
            return False
        _, log, base = self._doubt
        if log.has_written(base, self._writer.id, self._token):
            return True
        self._writer.check_registered()
        return False

    def _make_changes(self) -> list[_NewRecord]:
        """Make the diffs and apply them before the commit, so that an invalid diff never reaches the log."""
        changes = []
        for proposal, version in zip(self._proposals, self._versions, strict=True):
            diff = proposal.make(version.state)
            if diff is not None:
                log, seqno = proposal.log, SequenceNumber(version.seqno + 1)
                entry = LogEntry(self._writer.id, self._token, diff, self._settled)
                try:
                    after = Version(seqno, apply(version.state, entry, f"{log.path} #{seqno}"))
                except RecordDamaged as error:
                    raise Unexpected(where=f"commit to shard {log.shard!r}", why=error.why) from error
                changes.append(_NewRecord(log, Write(log.key, version.seqno, seal(entry)), after))
        return changes

    def _raise_unless_stale_log(self, stale: Stale) -> None:
        """Return if reading again can help; otherwise raise an error."""
        if any(log.key == stale.key for log in self._logs):
            return
        self._writer.check(stale)
        why = f"the newest record is {stale.found}, not {stale.expected}"
        raise Conflict(where=self._logs[0].meta.path(stale.key), why=why)


@dataclass(frozen=True, slots=True)
class _NewRecord:
    log: ShardLog
    write: Write
    after: Version
