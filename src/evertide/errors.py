"""The error tree.

Kinds differ only where a caller would act differently; the classes below a kind tell people what happened.

    EvertideError
    ├── InvalidInput            the caller's values are wrong: correct them; nothing was changed
    ├── Conflict                somebody else was first: read again and decide
    │   ├── UpperMismatch       the shard's upper is not the expected one
    │   └── TimeCompacted       the time asked for lies below since
    ├── Fenced                  this process lost its right to write: stop, discard, register again
    │   └── GenerationMoved     a replica takes the new generation over, and goes on
    ├── LeaseLost               a reader's lease ended: restart from the time named
    ├── Unavailable             "did not happen": safe to try again
    │   ├── StorageFull         no room: make some
    │   ├── StorageForbidden    read-only or no permission
    │   ├── ScratchUnavailable  temporary files cannot be written or read: make room
    │   ├── SystemRefused       the operating system refused a call of a transaction: it is tried again
    │   ├── SparkAway           Spark lost executors, or could not finish a job for another reason than a row
    │   ├── Recomputing         state has diverged several times, and waits before it is computed again
    │   └── QueryEnded          the process that answered a query ended before it did: ask again
    ├── OutcomeUnknown          "may have happened": read back before anything else
    ├── SourceFailed            a source cannot go on: it stalls, the others do not
    │   ├── SourceAway          it cannot be reached: nothing to do but wait, or look at what lies between
    │   └── SourceChanged       it no longer says what it said
    ├── SinkFailed              a sink cannot go on: it stalls, nothing else does
    ├── Diverged                a replay came to something else than what is recorded: stop, discard the state
    ├── SparkEnded              Spark is gone as a whole: start this process again
    ├── ViewFailed              a view cannot be computed, because of a row: correct the row
    │   └── StateDiverged       the state of views is not what it should be: it is computed again by itself
    ├── Damaged                 storage no longer holds what it acknowledged: stop, repair or restore
    │   ├── BlobMissing         a blob that a record names is not there
    │   ├── BlobDamaged         a blob is there with other bytes
    │   ├── RecordDamaged       a Meta record or database file cannot be read
    │   └── CheckpointDamaged   a checkpoint lacks files that it names, or the catalog is gone
    ├── Unexpected              an error that nothing expects, a bug of ours: report it
    ├── UnsupportedFormat       written by another version: upgrade or migrate; never guessed
    ├── LimitExceeded           it would take more than is allowed: ask for less
    ├── Unauthorized            whoever asks is not known: name a token
    └── Forbidden               whoever asks is known, and may not: use a token that may

Each error keeps its facts as attributes, prints them as key=value, ends in the remedy, has a stable `error_code` for
machines and an `exit_code` per kind, and survives pickling between worker and driver. A path is the place where a
person would look, not an internal name.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

__all__ = [
    "BlobDamaged",
    "BlobMissing",
    "CheckpointDamaged",
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
    """The root: catch it to catch everything Evertide raises on purpose."""

    error_code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    what: ClassVar[str] = "Evertide failed"
    remedy: ClassVar[str] = "Report this as a bug, with the log."

    def __post_init__(self) -> None:
        super().__init__(*self.facts.values())

    @property
    def facts(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value!r}" for name, value in self.facts.items() if value not in (None, ""))
        return f"{self.what}: {facts}. {self.remedy}" if facts else f"{self.what}. {self.remedy}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.facts.values())


@dataclass(eq=False, repr=False)
class InvalidInput(EvertideError):
    """`where` names the place (table, column, argument, path), `why` what is wrong with it."""

    error_code = "invalid_input"
    exit_code = 2
    what = "The input is not valid"
    remedy = "Correct it and try again; nothing was changed."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class Conflict(EvertideError):
    error_code = "conflict"
    exit_code = 3
    what = "Somebody else was first"
    remedy = "Read again and decide; nothing of this call was written."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class UpperMismatch(Conflict):
    """I2: the append was refused as a whole. `upper` is what the shard has now, `expected` what the caller knew."""

    error_code = "upper_mismatch"
    what = "The shard's upper is not the expected one (I2)"
    remedy = "Below the upper: a peer wrote it, drop it. Beyond it: input is missing, read the shard again."

    expected: int = 0
    upper: int = 0


@dataclass(eq=False, repr=False)
class TimeCompacted(Conflict):
    """The time asked for is no longer told apart; `since` is the smallest that is."""

    error_code = "time_compacted"
    what = "The time asked for lies below since"
    remedy = "Read at since or later; take a hold first if earlier times are needed."

    as_of: int = 0
    since: int = 0


@dataclass(eq=False, repr=False)
class Fenced(EvertideError):
    error_code = "fenced"
    exit_code = 4
    what = "This writer is fenced out (I16)"
    remedy = "Discard its state and register as a new writer; whoever took over goes on."

    writer: str
    why: str


@dataclass(eq=False, repr=False)
class GenerationMoved(Fenced):
    """A replica of the same pipeline takes the new generation over, and goes on; others are fenced out."""

    error_code = "generation_moved"
    what = "The generation moved on, by another writer (I16)"
    remedy = "Read the definition again, and go on by it; nothing of this call was written."


@dataclass(eq=False, repr=False)
class LeaseLost(EvertideError):
    """I6: told apart from a lost file, since the remedy differs."""

    error_code = "lease_lost"
    exit_code = 5
    what = "The lease on this shard was lost, its parts may be gone (I6)"
    remedy = "Restart the read from the time named; a reader that subscribes does so by itself."

    shard: str
    lease: str
    restart_from: int


@dataclass(eq=False, repr=False)
class Unavailable(EvertideError):
    error_code = "unavailable"
    exit_code = 6
    what = "Storage did not answer, and nothing happened (I14)"
    remedy = "Try again; if it lasts, check that the storage can be reached."

    path: str
    why: str


@dataclass(eq=False, repr=False)
class StorageFull(Unavailable):
    error_code = "storage_full"
    what = "Storage is full, and nothing was written"
    remedy = "Make room, then go on: nothing acknowledged was lost."


@dataclass(eq=False, repr=False)
class StorageForbidden(Unavailable):
    error_code = "storage_forbidden"
    what = "Storage refuses access"
    remedy = "Check the owner, the permissions, and whether the disk is mounted read-only."


@dataclass(eq=False, repr=False)
class ScratchUnavailable(Unavailable):
    """`path` is the directory of temporary files. No row is to blame, so no view fails for it."""

    error_code = "scratch_unavailable"
    what = "Temporary files cannot be written or read, and nothing happened"
    remedy = "Make room there, or name another directory by TMPDIR; what failed is tried again by itself."


@dataclass(eq=False, repr=False)
class SystemRefused(Unavailable):
    """`path` names the transaction. No row is to blame, so no view fails for it."""

    error_code = "system_refused"
    what = "The operating system refused a call, and the transaction waits"
    remedy = "It is tried again by itself; if it lasts, look at open files, memory and disks. The log has the call."


@dataclass(eq=False, repr=False)
class SparkAway(Unavailable):
    """`path` is Spark's master. No row is to blame, so no view fails for it."""

    error_code = "spark_away"
    what = "Spark could not finish a job, and nothing happened"
    remedy = "It is tried again by itself; if it lasts, look at the memory and the logs of the executors."


@dataclass(eq=False, repr=False)
class Recomputing(Unavailable):
    """`path` names the views. A replica that follows does not go on without their state."""

    error_code = "recomputing"
    what = "The state of views has diverged several times, and waits before it is computed again"
    remedy = "It goes on by itself. Compare the versions of the replicas, and send the evidence: docs/operating.md."


@dataclass(eq=False, repr=False)
class QueryEnded(Unavailable):
    """`path` is the engine. Queries have processes of their own, so nothing else is concerned."""

    error_code = "query_ended"
    what = "The process that answers queries ended before it had answered"
    remedy = "Ask again: another one is started. If the same query ends it again, ask for less; the log says more."


@dataclass(eq=False, repr=False)
class OutcomeUnknown(EvertideError):
    error_code = "outcome_unknown"
    exit_code = 7
    what = "The write may or may not have happened (I14)"
    remedy = (
        "Look whether it happened before anything else. Rows pushed under a producer and a number may be sent again "
        "under the same: they are taken once."
    )

    path: str
    why: str


@dataclass(eq=False, repr=False)
class Damaged(EvertideError):
    error_code = "damaged"
    exit_code = 8
    what = "Storage no longer holds what it acknowledged"
    remedy = (
        "Nothing was changed. `evertide fsck --repair` mends what it can, otherwise restore the file from a backup."
    )

    path: str
    why: str


@dataclass(eq=False, repr=False)
class BlobMissing(Damaged):
    error_code = "blob_missing"
    what = "A blob is missing"


@dataclass(eq=False, repr=False)
class BlobDamaged(Damaged):
    error_code = "blob_damaged"
    what = "A blob is damaged"

    expected: str = ""
    found: str = ""


@dataclass(eq=False, repr=False)
class RecordDamaged(Damaged):
    error_code = "record_damaged"
    what = "A record is damaged"


@dataclass(eq=False, repr=False)
class CheckpointDamaged(Damaged):
    """`files` names every file that is missing or damaged, each with what is wrong with it."""

    error_code = "checkpoint_damaged"
    what = "A checkpoint cannot be used"
    remedy = "Nothing was deleted. `evertide fsck` shows all damage, `evertide fsck --repair` brings back what it can."

    files: str = ""


@dataclass(eq=False, repr=False)
class Unexpected(EvertideError):
    """`where` names the thread or the transaction, `why` the error. The log has its traceback."""

    error_code = "unexpected"
    exit_code = 18
    what = "Something failed that should not"
    remedy = "Report this as a bug, with the log. Start the process again if it ended: nothing acknowledged was lost."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class UnsupportedFormat(EvertideError):
    error_code = "unsupported_format"
    exit_code = 9
    what = "This storage was written in another format"
    remedy = "Use a version of Evertide that reads it; see docs/storage-format.md. Nothing was changed."

    path: str
    found: int
    supported: int


@dataclass(eq=False, repr=False)
class SourceFailed(EvertideError):
    error_code = "source_failed"
    exit_code = 10
    what = "A source cannot go on"
    remedy = "Correct what it says; it is tried again by itself. Nothing was lost, and other sources go on."

    source: str
    where: str
    why: str


@dataclass(eq=False, repr=False)
class SourceAway(SourceFailed):
    """There is no connection to it: it was cut, or its server restarts."""

    error_code = "source_away"
    what = "A source cannot be reached"
    remedy = "It is connected to again by itself, and goes on where it stood; if it lasts, look at its server."


@dataclass(eq=False, repr=False)
class SourceChanged(SourceFailed):
    """What was bound can no longer be read as it was."""

    error_code = "source_changed"
    what = "A source no longer says what it said"
    remedy = "Bring back what was there; input that a kept table's shard holds is not needed any more."


@dataclass(eq=False, repr=False)
class Diverged(EvertideError):
    """I8: `where` names the source or shard. Counts and digests are those of the changes of the transaction."""

    error_code = "diverged"
    exit_code = 11
    what = "Replaying came to something else than what is recorded (I8)"
    remedy = "Nothing more is committed. A source that changed must be brought back; a view is rebuilt from its tables."

    where: str
    time: int
    expected: str
    found: str


@dataclass(eq=False, repr=False)
class ViewFailed(EvertideError):
    error_code = "view_failed"
    exit_code = 12
    what = "A view cannot be computed"
    remedy = "Correct the row; the view is tried again when a transaction touches it, and others go on."

    views: tuple[str, ...]
    time: int
    why: str


@dataclass(eq=False, repr=False)
class StateDiverged(ViewFailed):
    """I8, X7: no row is to blame. `time` is the transaction that showed it."""

    error_code = "state_diverged"
    what = "The state of views is not what it should be, and is discarded"
    remedy = "The views are computed again from their tables by themselves. Send the evidence: docs/operating.md."


@dataclass(eq=False, repr=False)
class SparkEnded(EvertideError):
    """The JVM of this process died, or its application was ended from outside: no job can run any more."""

    error_code = "spark_ended"
    exit_code = 14
    what = "Spark has ended"
    remedy = "Start the process again: it goes on where it was. Then look at why the JVM or the cluster's master died."

    master: str
    why: str


@dataclass(eq=False, repr=False)
class SinkFailed(EvertideError):
    error_code = "sink_failed"
    exit_code = 13
    what = "A sink cannot go on"
    remedy = "Correct what it says; it is tried again by itself, from where it stands. Nothing else waits for it."

    sink: str
    where: str
    why: str


@dataclass(eq=False, repr=False)
class Unauthorized(EvertideError):
    """`where` is the method and the address. What was given as a token is no fact: it is never said."""

    error_code = "unauthorized"
    exit_code = 15
    what = "Whoever asks is not known"
    remedy = "Name a token that this server knows: `Authorization: Bearer TOKEN`."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class Forbidden(EvertideError):
    """`role` is the one that is needed; empty if it is not for want of a role."""

    error_code = "forbidden"
    exit_code = 16
    what = "Whoever asks may not do this"
    remedy = "Use a token that may, or ask whoever runs the server for one; docs/security.md says which role does what."

    where: str
    why: str
    role: str = ""


@dataclass(eq=False, repr=False)
class LimitExceeded(EvertideError):
    """`why` names the limit. Nothing was changed, and asking the same again ends the same way."""

    error_code = "limit_exceeded"
    exit_code = 17
    what = "It would take more than is allowed"
    remedy = "Ask for less at a time; whoever runs the server may raise the limit (--set)."

    where: str
    why: str
