"""The error tree.

There are separate kinds only where a caller acts differently; a subclass of a kind tells people more precisely what
happened.

    EvertideError
    ├── InvalidInput            the caller's input is wrong: correct it; nothing was changed
    ├── NotAllowedNow           right input at the wrong moment (paused, read-only): change that state, then retry
    ├── Closed                  the pipeline or connection was closed: open it again
    ├── Conflict                another process changed the same object first: read it again and decide
    │   ├── UpperMismatch       the shard's upper is not the expected one
    │   └── TimeCompacted       the requested time lies below the shard's since
    ├── Fenced                  this process lost its right to write: stop, discard, register again
    │   └── GenerationMoved     another replica changed the definition: a replica adopts it and continues
    ├── LeaseLost               a reader's lease expired: restart the read from the time named
    ├── Unavailable             "did not happen": safe to retry
    │   ├── StorageFull         no space left: free some
    │   ├── StorageForbidden    read-only, or no permission
    │   ├── ScratchUnavailable  temporary files cannot be written or read: free some space
    │   ├── SystemRefused       the operating system refused a call of a transaction: Evertide retries
    │   ├── SparkAway           Spark lost executors, or failed a job for a reason that is not a row
    │   ├── Recomputing         view state has diverged several times: Evertide waits, then recomputes it
    │   └── QueryEnded          the query process ended before it answered: send the query again
    ├── OutcomeUnknown          "may have happened": read back before anything else
    ├── SourceFailed            a source cannot continue: it stalls, the others do not
    │   ├── SourceAway          the source cannot be reached: wait, or check the network
    │   └── SourceChanged       the source no longer returns what was read from it before
    ├── SinkFailed              a sink cannot continue: it stalls, nothing else does
    ├── Diverged                a replay computed something else than what is recorded: stop, discard the state
    ├── SparkEnded              Spark has ended as a whole: restart this process
    ├── ViewFailed              a row makes a view fail: correct the row
    │   └── StateDiverged       the state of views is wrong: Evertide recomputes it
    ├── Damaged                 storage no longer holds what it acknowledged: stop, repair or restore
    │   ├── BlobMissing         a blob that a record names is missing
    │   ├── BlobDamaged         a blob exists with other bytes
    │   ├── RecordDamaged       a Meta record or database file cannot be read
    │   └── CheckpointDamaged   a checkpoint lacks files that it names, or the catalog is gone
    ├── Unexpected              a bug in Evertide: report it
    ├── UnsupportedFormat       written by another version: upgrade or migrate
    ├── LimitExceeded           the request exceeds a limit: ask for less
    ├── Unauthorized            the request has no valid token: add one
    └── Forbidden               the token's role or restriction does not allow it: use another token

The text of an error is its message (`message_format`, filled with the facts) followed by the remedy. The facts are
attributes; `error_code` is stable, for machines; each kind has an `exit_code`. An error survives pickling between
worker and driver. A path is the place where a person would look, not an internal name. tests/golden/error-messages.txt
lists every error as rendered.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

__all__ = [
    "BlobDamaged",
    "BlobMissing",
    "CheckpointDamaged",
    "Closed",
    "Conflict",
    "Damaged",
    "Diverged",
    "EvertideError",
    "Fenced",
    "Forbidden",
    "GenerationMoved",
    "InvalidInput",
    "LeaseLost",
    "LimitExceeded",
    "NotAllowedNow",
    "OutcomeUnknown",
    "QueryEnded",
    "Recomputing",
    "RecordDamaged",
    "ScratchUnavailable",
    "SinkFailed",
    "SourceAway",
    "SourceChanged",
    "SourceFailed",
    "SparkAway",
    "SparkEnded",
    "StateDiverged",
    "StorageForbidden",
    "StorageFull",
    "SystemRefused",
    "TimeCompacted",
    "Unauthorized",
    "Unavailable",
    "Unexpected",
    "UnsupportedFormat",
    "UpperMismatch",
    "ViewFailed",
]


@dataclass(eq=False, repr=False)
class EvertideError(Exception):
    """The root: catch it to catch every error that Evertide raises on purpose."""

    error_code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    summary: ClassVar[str] = "Evertide failed"
    message_format: ClassVar[str] = "Evertide failed"
    remedy: ClassVar[str] = "Report this as a bug, with the log."

    def __post_init__(self) -> None:
        super().__init__(*self.facts.values())

    @property
    def facts(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def message(self) -> str:
        """What happened, to which object, and why; without the remedy."""
        return self.message_format.format(**self.facts)

    def __str__(self) -> str:
        message = self.message
        return f"{message}{'' if message.endswith(('.', '?', '!')) else '.'} {self.remedy}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.facts.values())


@dataclass(eq=False, repr=False)
class InvalidInput(EvertideError):
    """`where` names the place (table, column, argument, path), `why` what is wrong there."""

    error_code = "invalid_input"
    exit_code = 2
    summary = "The input is wrong"
    message_format = "{where}: {why}"
    remedy = "Nothing was changed; correct the input and retry."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class NotAllowedNow(EvertideError):
    """The request is valid, but the state of `where` does not allow it; `why` names that state and how to leave it."""

    error_code = "not_allowed_now"
    exit_code = 19
    summary = "The present state of the pipeline does not allow this"
    message_format = "{where}: {why}"
    remedy = "Nothing was changed."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class Closed(EvertideError):
    """`where` names what was closed."""

    error_code = "closed"
    exit_code = 20
    summary = "The pipeline is closed"
    message_format = "{where} is closed"
    remedy = "Nothing was changed; open it again."

    where: str


@dataclass(eq=False, repr=False)
class Conflict(EvertideError):
    error_code = "conflict"
    exit_code = 3
    summary = "Another process changed the same object first"
    message_format = "{where}: {why}"
    remedy = "Nothing of this call was written; read the object again and decide."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class UpperMismatch(Conflict):
    """I2: the whole append was refused. `upper` is the shard's upper now, `expected` the one that the caller knew."""

    error_code = "upper_mismatch"
    summary = "The shard's upper is not the expected one (I2)"
    message_format = "{where}: the upper is {upper}, not {expected} as expected: {why}"
    remedy = (
        "Below the upper, a peer has written these changes: drop them. Beyond it, changes are missing: read the shard."
    )

    expected: int = 0
    upper: int = 0


@dataclass(eq=False, repr=False)
class TimeCompacted(Conflict):
    """The content at time `as_of` can no longer be read; `since` is the earliest time that can."""

    error_code = "time_compacted"
    summary = "The requested time is older than the history that is kept"
    message_format = "{where}: time {as_of} cannot be read, the earliest is {since}: {why}"
    remedy = "Read at that time or later; take a hold first if you need earlier times."

    as_of: int = 0
    since: int = 0


@dataclass(eq=False, repr=False)
class Fenced(EvertideError):
    error_code = "fenced"
    exit_code = 4
    summary = "Another process took over from this writer (I16)"
    message_format = "writer {writer!r} is fenced: {why}"
    remedy = "The process that took over continues. Restart this one to register it as a new writer."

    writer: str
    why: str


@dataclass(eq=False, repr=False)
class GenerationMoved(Fenced):
    """A replica of the same pipeline adopts the new generation and continues; another writer is fenced."""

    error_code = "generation_moved"
    summary = "Another writer changed the definition (I16)"
    message_format = "writer {writer!r}: {why}"
    remedy = "Nothing of this call was written; read the definition again and continue with it."


@dataclass(eq=False, repr=False)
class LeaseLost(EvertideError):
    """I6: told apart from a missing file, because the remedy differs."""

    error_code = "lease_lost"
    exit_code = 5
    summary = "A reader's lease expired, and the parts that it reads may be gone (I6)"
    message_format = "lease {lease!r} on shard {shard!r} has expired"
    remedy = "Restart the read from time `restart_from`; a subscription restarts by itself."

    shard: str
    lease: str
    restart_from: int

    @property
    def message(self) -> str:
        return f"{super().message}; restart from time {self.restart_from}"


@dataclass(eq=False, repr=False)
class Unavailable(EvertideError):
    error_code = "unavailable"
    exit_code = 6
    summary = "Storage did not answer, and nothing was changed (I14)"
    message_format = "storage at {path} is unavailable: {why}"
    remedy = "Nothing was changed; retry. If it lasts, check that the storage can be reached."

    path: str
    why: str


@dataclass(eq=False, repr=False)
class StorageFull(Unavailable):
    error_code = "storage_full"
    summary = "Storage is full, and nothing was written"
    message_format = "storage at {path} is full: {why}"
    remedy = "Free some space; nothing that was acknowledged is lost."


@dataclass(eq=False, repr=False)
class StorageForbidden(Unavailable):
    error_code = "storage_forbidden"
    summary = "Storage refuses access"
    message_format = "storage at {path} refuses access: {why}"
    remedy = "Check the owner, the permissions, and whether the disk is mounted read-only."


@dataclass(eq=False, repr=False)
class ScratchUnavailable(Unavailable):
    """`path` is the directory of temporary files. No row is the cause, so no view fails."""

    error_code = "scratch_unavailable"
    summary = "Temporary files cannot be written or read; nothing was changed"
    message_format = "temporary files in {path} cannot be written or read: {why}"
    remedy = "Free some space there, or set TMPDIR to another directory; Evertide retries."


@dataclass(eq=False, repr=False)
class SystemRefused(Unavailable):
    """`path` names the transaction. No row is the cause, so no view fails."""

    error_code = "system_refused"
    summary = "The operating system refused a call; the transaction waits"
    message_format = "{path}: the operating system refused a call: {why}"
    remedy = "Evertide retries; if it lasts, check open files, memory and disks. The log has the call."


@dataclass(eq=False, repr=False)
class SparkAway(Unavailable):
    """`path` is Spark's master. No row is the cause, so no view fails."""

    error_code = "spark_away"
    summary = "Spark could not finish a job; nothing was changed"
    message_format = "Spark at {path} could not finish a job: {why}"
    remedy = "Evertide retries; if it lasts, check the memory and the logs of the executors."


@dataclass(eq=False, repr=False)
class Recomputing(Unavailable):
    """`path` names the views. A follower does not continue without their state."""

    error_code = "recomputing"
    summary = "The state of views has diverged several times; Evertide waits before it recomputes it"
    message_format = "{path}: the state has diverged several times, and waits before it is recomputed: {why}"
    remedy = (
        "Evertide recomputes it. Compare the versions of the replicas, and send us the evidence (docs/operating.md)."
    )


@dataclass(eq=False, repr=False)
class QueryEnded(Unavailable):
    """`path` is the engine. Queries run in processes of their own, so nothing else is affected."""

    error_code = "query_ended"
    summary = "The query process ended before it answered"
    message_format = "the {path} query process ended before it answered: {why}"
    remedy = "Send the query again; the server starts another process. If the same query ends it again, ask for less."


@dataclass(eq=False, repr=False)
class OutcomeUnknown(EvertideError):
    error_code = "outcome_unknown"
    exit_code = 7
    summary = "A write may or may not have happened (I14)"
    message_format = "{path}: the write may or may not have happened: {why}"
    remedy = (
        "Check whether it happened before you repeat it. Rows pushed with a producer name and a sequence number can be "
        "sent again with the same: they are applied once."
    )

    path: str
    why: str


@dataclass(eq=False, repr=False)
class Damaged(EvertideError):
    error_code = "damaged"
    exit_code = 8
    summary = "Storage no longer holds what it acknowledged"
    message_format = "{path} is damaged: {why}"
    remedy = "Nothing was changed. Run `evertide fsck --repair`; what it cannot repair, restore from a backup."

    path: str
    why: str


@dataclass(eq=False, repr=False)
class BlobMissing(Damaged):
    error_code = "blob_missing"
    summary = "A blob is missing"
    message_format = "blob {path} is missing: {why}"


@dataclass(eq=False, repr=False)
class BlobDamaged(Damaged):
    error_code = "blob_damaged"
    summary = "A blob is damaged"
    message_format = "blob {path} is damaged: {why}"

    expected: str = ""
    found: str = ""

    @property
    def message(self) -> str:
        return f"{super().message} (expected {self.expected}, found {self.found})" if self.expected else super().message


@dataclass(eq=False, repr=False)
class RecordDamaged(Damaged):
    error_code = "record_damaged"
    summary = "A record is damaged"
    message_format = "record {path} is damaged: {why}"


@dataclass(eq=False, repr=False)
class CheckpointDamaged(Damaged):
    """`files` names every file that is missing or damaged, each with what is wrong."""

    error_code = "checkpoint_damaged"
    summary = "A checkpoint cannot be used"
    message_format = "checkpoint {path} cannot be used: {why}"
    remedy = "Nothing was deleted. `evertide fsck` lists all damage, `evertide fsck --repair` restores what it can."

    files: str = ""

    @property
    def message(self) -> str:
        return f"{super().message}: {self.files}" if self.files else super().message


@dataclass(eq=False, repr=False)
class Unexpected(EvertideError):
    """`where` names the thread, function or transaction, `why` the error. The log has the traceback."""

    error_code = "unexpected"
    exit_code = 18
    summary = "A bug in Evertide"
    message_format = "internal error in {where}: {why}"
    remedy = (
        "Report this as a bug, with the log. If the process ended, restart it: nothing that was acknowledged is lost."
    )

    where: str
    why: str


@dataclass(eq=False, repr=False)
class UnsupportedFormat(EvertideError):
    error_code = "unsupported_format"
    exit_code = 9
    summary = "The storage was written in a format that this version does not read"
    message_format = "{path} has format version {found}; this version of Evertide reads {supported}"
    remedy = "Use a version of Evertide that reads it (docs/storage-format.md). Nothing was changed."

    path: str
    found: int
    supported: int


@dataclass(eq=False, repr=False)
class SourceFailed(EvertideError):
    error_code = "source_failed"
    exit_code = 10
    summary = "A source cannot continue"
    message_format = "source {source!r}: {where}: {why}"
    remedy = "Correct the cause; Evertide retries. Nothing is lost, and other sources continue."

    source: str
    where: str
    why: str


@dataclass(eq=False, repr=False)
class SourceAway(SourceFailed):
    """The connection was cut, or the source's server is restarting."""

    error_code = "source_away"
    summary = "A source cannot be reached"
    message_format = "source {source!r} cannot be reached: {where}: {why}"
    remedy = "Evertide reconnects and continues where it stopped; if it lasts, check the source's server."


@dataclass(eq=False, repr=False)
class SourceChanged(SourceFailed):
    """Input that was bound can no longer be read as it was."""

    error_code = "source_changed"
    summary = "A source no longer returns the input that was read from it before"
    message_format = "source {source!r} has changed: {where}: {why}"
    remedy = "Restore the original input. Input that is already in the shard of a kept table is not needed any more."


@dataclass(eq=False, repr=False)
class Diverged(EvertideError):
    """I8: `where` names the source or shard. Counts and digests are those of the transaction's changes."""

    error_code = "diverged"
    exit_code = 11
    summary = "A replay computed something else than what is recorded (I8)"
    message_format = "{where}: replaying transaction {time} gave {found}, but {expected} is recorded"
    remedy = (
        "Nothing more is committed. Restore a source that has changed; a view is recomputed from its tables on restart."
    )

    where: str
    time: int
    expected: str
    found: str


@dataclass(eq=False, repr=False)
class ViewFailed(EvertideError):
    error_code = "view_failed"
    exit_code = 12
    summary = "A row makes a view fail"
    message_format = "transaction {time} fails: {why}"
    remedy = "Correct the row; Evertide retries when a transaction touches the view's tables. Other views continue."

    views: tuple[str, ...]
    time: int
    why: str

    @property
    def message(self) -> str:
        return f"{'view' if len(self.views) == 1 else 'views'} {', '.join(self.views)}: {super().message}"


@dataclass(eq=False, repr=False)
class StateDiverged(ViewFailed):
    """I8, X7: no row is the cause. `time` is the transaction that showed it."""

    error_code = "state_diverged"
    summary = "The state of views is wrong, and is discarded"
    message_format = "the state is wrong, as transaction {time} shows: {why}"
    remedy = "Evertide recomputes the views from their tables. Send us the evidence (docs/operating.md)."


@dataclass(eq=False, repr=False)
class SparkEnded(EvertideError):
    """The JVM of this process died, or its application was ended from outside: no job can run any more."""

    error_code = "spark_ended"
    exit_code = 14
    summary = "Spark has ended"
    message_format = "Spark at {master} has ended: {why}"
    remedy = "Restart the process: it continues where it was. Then find out why the JVM or the cluster's master died."

    master: str
    why: str


@dataclass(eq=False, repr=False)
class SinkFailed(EvertideError):
    error_code = "sink_failed"
    exit_code = 13
    summary = "A sink cannot continue"
    message_format = "sink {sink!r}: {where}: {why}"
    remedy = "Correct the cause; Evertide retries and continues where the sink stopped. Nothing else waits for it."

    sink: str
    where: str
    why: str


@dataclass(eq=False, repr=False)
class Unauthorized(EvertideError):
    """`where` is the method and the address. The token that was sent is not a fact, so that no log shows it."""

    error_code = "unauthorized"
    exit_code = 15
    summary = "The request has no valid token"
    message_format = "{where}: {why}"
    remedy = "Send a token that this server knows: `Authorization: Bearer TOKEN`."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class Forbidden(EvertideError):
    """`role` is the role that is needed; empty if the reason is not a missing role."""

    error_code = "forbidden"
    exit_code = 16
    summary = "The token does not allow this"
    message_format = "{where}: {why}"
    remedy = "Use a token that allows it; docs/security.md lists what each role may do."

    where: str
    why: str
    role: str = ""


@dataclass(eq=False, repr=False)
class LimitExceeded(EvertideError):
    """`why` names the limit. Nothing was changed; the same request exceeds the limit again."""

    error_code = "limit_exceeded"
    exit_code = 17
    summary = "The request exceeds a limit"
    message_format = "{where}: {why}"
    remedy = "Ask for less at a time, or let the server's operator raise the limit (`--set`)."

    where: str
    why: str
