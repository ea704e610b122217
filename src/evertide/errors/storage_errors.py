"""Errors of storage, and of processes that share it."""

from __future__ import annotations

from dataclasses import dataclass

from evertide.errors.base import EvertideError


@dataclass(eq=False, repr=False)
class Conflict(EvertideError):
    error_code = "conflict"
    exit_code = 3
    summary = "Another process changed the same object first"
    message_format = "{where}: {why}"
    remedy = "This call wrote nothing. Check what the other process has done, then retry or give up."

    where: str
    why: str


@dataclass(eq=False, repr=False)
class UpperMismatch(Conflict):
    """I2: the whole append was refused. `upper` is the shard's upper now, `expected` the one that the caller knew."""

    error_code = "upper_mismatch"
    summary = "The shard's upper is not the expected one (I2)"
    message_format = "{where}: the upper is {upper}, not {expected} as expected: {why}"
    remedy = "This call wrote nothing; read the shard before the next append."

    expected: int = 0
    upper: int = 0


class ShardEnded(Conflict):
    """The shard was finalized, because its collection was dropped or has a new shard."""

    error_code = "shard_ended"
    summary = "The collection was dropped, or its content was replaced"
    message_format = "{where}: {why}"
    remedy = "Open the collection by its name again; if it was dropped, it has no content any more."


@dataclass(eq=False, repr=False)
class TimeCompacted(Conflict):
    """The content at time `as_of` can no longer be read; `since` is the earliest time that can."""

    error_code = "time_compacted"
    summary = "The requested time is older than the history that is kept"
    message_format = "{where}: time {as_of} cannot be read, the earliest is {since}: {why}"
    remedy = "Read at that time or later. To keep a longer history, raise checkpoints_kept (`evertide run --set`)."

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


class GenerationMoved(Fenced):
    """A replica of the same pipeline adopts the new generation and continues; another writer is fenced."""

    error_code = "generation_moved"
    summary = "Another writer changed the definition (I16)"
    message_format = "writer {writer!r}: {why}"
    remedy = "Nothing of this call was written; read the definition again and continue with it."


@dataclass(eq=False, repr=False)
class LeaseLost(EvertideError):
    """I6: an error of its own, not that of a missing file, because the remedy differs."""

    error_code = "lease_lost"
    exit_code = 5
    summary = "A reader's lease expired, and the parts that it reads may be gone (I6)"
    message_format = "lease {lease!r} on shard {shard!r} has expired"
    remedy = "A subscription restarts by itself; start any other read again."

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


class StorageFull(Unavailable):
    error_code = "storage_full"
    summary = "Storage is full, and nothing was written"
    message_format = "storage at {path} is full: {why}"
    remedy = "Free some space; nothing that was acknowledged is lost."


class StorageForbidden(Unavailable):
    error_code = "storage_forbidden"
    summary = "Storage refuses access"
    message_format = "storage at {path} refuses access: {why}"
    remedy = "Check the owner, the permissions, and whether the disk is mounted read-only."


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


class ArchiveDamaged(Damaged):
    """`path` names the archive and, where one is wrong, its file."""

    error_code = "archive_damaged"
    summary = "An archive is damaged, or is not an archive of a checkpoint"
    message_format = "archive {path} is damaged: {why}"
    remedy = "Empty the new storage, then import another copy of the archive; or export the checkpoint again."


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
