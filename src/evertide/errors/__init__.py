"""The error tree.

There are separate kinds only where a caller acts differently; a subclass of a kind tells people more precisely what
happened.

    EvertideError
    ├── InvalidInput            the caller's input is wrong: correct it; nothing was changed
    ├── NotAllowedNow           right input at the wrong moment (paused, read-only): change that state, then retry
    ├── Closed                  the pipeline or connection was closed: open it again
    ├── SetupIncomplete         a package, Java or Spark is missing or does not start: install or correct it
    ├── Conflict                another process changed the same object first: read it again and decide
    │   ├── UpperMismatch       the shard's upper is not the expected one
    │   ├── ShardEnded          the collection was dropped or its content replaced: open it again
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
    │   ├── RecomputationDelayed         view state has diverged several times: Evertide waits, then recomputes it
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
    │   ├── CheckpointDamaged   a checkpoint lacks files that it names, or the catalog is gone
    │   └── ArchiveDamaged      an exported checkpoint is damaged: import another copy
    ├── Unexpected              a bug in Evertide: report it
    │   └── StateInconsistent   rows in memory contradict each other: recompute the views, or restart
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

from evertide.errors.base import EvertideError
from evertide.errors.request_errors import (
    Closed,
    Forbidden,
    InvalidInput,
    LimitExceeded,
    NotAllowedNow,
    SetupIncomplete,
    Unauthorized,
)
from evertide.errors.running_errors import (
    Diverged,
    QueryEnded,
    RecomputationDelayed,
    ScratchUnavailable,
    SinkFailed,
    SourceAway,
    SourceChanged,
    SourceFailed,
    SparkAway,
    SparkEnded,
    StateDiverged,
    StateInconsistent,
    SystemRefused,
    Unexpected,
    ViewFailed,
)
from evertide.errors.storage_errors import (
    ArchiveDamaged,
    BlobDamaged,
    BlobMissing,
    CheckpointDamaged,
    Conflict,
    Damaged,
    Fenced,
    GenerationMoved,
    LeaseLost,
    OutcomeUnknown,
    RecordDamaged,
    ShardEnded,
    StorageForbidden,
    StorageFull,
    TimeCompacted,
    Unavailable,
    UnsupportedFormat,
    UpperMismatch,
)

__all__ = [
    "ArchiveDamaged",
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
    "RecomputationDelayed",
    "RecordDamaged",
    "ScratchUnavailable",
    "SetupIncomplete",
    "ShardEnded",
    "SinkFailed",
    "SourceAway",
    "SourceChanged",
    "SourceFailed",
    "SparkAway",
    "SparkEnded",
    "StateDiverged",
    "StateInconsistent",
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
