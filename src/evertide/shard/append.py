"""Appending to shards.

The steps of an append; each is durable before the next names it:

1. Check the changes against the shard's columns and the times [expected_upper, new_upper).
2. Encode them as parts. A small batch stays inline; the others are put as blobs.
3. One commit adds the batches to all shards concerned (I4), if each one's upper is still the expected one (I2).

If another writer was first, `UpperMismatch` says so, and the blobs of step 2, which nothing names, are deleted again.
A crash leaves them as orphans of this writer, for collection to find."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from evertide.errors import Conflict, EvertideError, InvalidInput, OutcomeUnknown, UpperMismatch
from evertide.rows.changes import TIME, check_changes
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.log import Proposal, ShardLog, commit
from evertide.shard.parts.part import Part, encode_parts
from evertide.shard.state import Appended, ShardState
from evertide.store.blob import Blob
from evertide.store.meta import Guard, Write
from evertide.store.paths import Name, part_key
from evertide.store.retry import put_until_known
from evertide.store.writers import Writer
from evertide.types import Time

__all__ = ["Append", "Outcome", "append_missing", "append_together", "store_parts", "withdraw"]

logger = logging.getLogger(__name__)

Changes: TypeAlias = pa.Table | Sequence[Part]
"""Rows with __time and __diff; or parts stored already, as executors do."""


@dataclass(frozen=True, slots=True)
class Append:
    """What one shard gets in a commit: the changes of [expected_upper, new_upper)."""

    log: ShardLog
    changes: Changes
    expected_upper: int
    new_upper: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an append for replicated writers did: the times [lower, upper) are ours, everything below was there."""

    lower: int
    upper: int


def store_parts(
    table: pa.Table,
    *,
    shard: str,
    blob: Blob,
    writer: str,
    seq: int,
    attempt: str = "",
    runtime: Runtime,
    settings: Settings,
) -> tuple[Part, ...]:
    """Encode and put checked changes. Runs on executors too: then `attempt` must be unique to the try of the task.

    What a failed attempt stored is never named, and is collected once the writer settled `seq`.
    """
    stored = []
    for number, (part, content) in enumerate(encode_parts(table, settings=settings)):
        if part.inline:
            stored.append(part)
            continue
        key = part_key(shard, Name(writer, seq, "parquet", f"{attempt}p{number}"))
        put_until_known(blob, key, content, runtime, settings)
        stored.append(msgspec.structs.replace(part, key=key))
    return tuple(stored)


def append_together(
    appends: Sequence[Append],
    writer: Writer,
    *,
    writes: Callable[[Sequence[tuple[Part, ...]]], Sequence[Write]] | None = None,
    guards: Sequence[Guard] = (),
) -> None:
    """Append to several shards at once, or to none. Raises `UpperMismatch` for the first shard that moved on.

    `writes` are records that belong into the same commit; they may tell of the parts, which it is given per shard.
    """
    checked = [_check_changes(append) for append in appends]
    with writer.claim() as seq:
        try:
            stored = [_store(append, changes, writer, seq) for append, changes in zip(appends, checked, strict=True)]
        except OutcomeUnknown:
            writer.settle(seq)  # a put that still arrives is an orphan: no commit was tried that could name it
            raise
        proposals = [
            Proposal(append.log, _propose(append, parts)) for append, parts in zip(appends, stored, strict=True)
        ]
        try:
            commit(proposals, writer, writes=writes(stored) if writes else (), guards=guards)
        except Conflict:
            for append, parts in zip(appends, stored, strict=True):
                if isinstance(append.changes, pa.Table):  # others are the caller's: an earlier commit may name them
                    withdraw(append.log.blob, parts)
            raise
    for append in appends:
        append.log.roll_up_if_due(writer)


def append_missing(log: ShardLog, changes: pa.Table, lower: int, upper: int, writer: Writer) -> Outcome:
    """Append for replicated writers, which all have the same changes (I3).

    What lies below the shard's upper was written by a peer and is trimmed; if that is all, there is nothing to do. If
    the shard's upper is below `lower`, times are missing in between, and that is an error.
    """
    while True:
        reached = log.read().state.upper
        if reached >= upper:
            return Outcome(upper, upper)
        if reached < lower:
            raise UpperMismatch(
                where=log.path, why=f"times {reached} to {lower - 1} were never appended", expected=lower, upper=reached
            )
        missing = changes.filter(pc.greater_equal(changes[TIME], reached)) if reached > lower else changes
        try:
            append_together([Append(log, missing, reached, upper)], writer)
        except UpperMismatch:
            continue
        return Outcome(reached, upper)


def _check_changes(append: Append) -> Changes:
    """Refuse what cannot succeed before anything is stored."""
    log = append.log
    if append.new_upper <= append.expected_upper:
        why = f"new upper {append.new_upper} must be above expected upper {append.expected_upper}"
        raise InvalidInput(where=f"shard {log.shard!r}", why=why)
    state = log.known().state
    if state.upper != append.expected_upper:
        state = log.read().state
    _check_upper(append, state)
    if not isinstance(append.changes, pa.Table):
        return _check_parts(append)
    return check_changes(append.changes, log.schema(), append.expected_upper, append.new_upper, f"shard {log.shard!r}")


def _check_parts(append: Append) -> tuple[Part, ...]:
    for part in append.changes:
        if part.time_min < append.expected_upper or part.time_max >= append.new_upper:
            times = f"[{part.time_min}, {part.time_max}]"
            why = f"part {part.key} holds times {times}, outside of [{append.expected_upper}, {append.new_upper})"
            raise InvalidInput(where=f"shard {append.log.shard!r}", why=why)
    return tuple(append.changes)


def _check_upper(append: Append, state: ShardState) -> None:
    log = append.log
    if state.finalized:
        raise Conflict(where=log.path, why=f"shard {log.shard!r} is finalized: it takes no more changes")
    if state.upper != append.expected_upper:
        why = "a peer wrote these times" if state.upper > append.expected_upper else "times below are missing"
        raise UpperMismatch(where=log.path, why=why, expected=append.expected_upper, upper=state.upper)


def _store(append: Append, changes: Changes, writer: Writer, seq: int) -> tuple[Part, ...]:
    log = append.log
    if not isinstance(changes, pa.Table):
        return tuple(changes)
    return store_parts(
        changes, shard=log.shard, blob=log.blob, writer=writer.id, seq=seq, runtime=log.runtime, settings=log.settings
    )


def _propose(append: Append, parts: tuple[Part, ...]) -> Callable[[ShardState], Appended]:
    def make(state: ShardState) -> Appended:
        _check_upper(append, state)
        return Appended(Time(append.expected_upper), Time(append.new_upper), parts)

    return make


def withdraw(blob: Blob, parts: Sequence[Part]) -> None:
    """Delete what no shard names, and no shard will."""
    for part in parts:
        if part.key:
            try:
                blob.delete(part.key)
            except EvertideError as error:
                logger.warning("left for collection: %s", error)
