"""Append changes to shards.

An append takes these steps; each is durable before the next one refers to it:

1. Check the changes against the shard's columns and the times [expected_upper, new_upper).
2. Encode them as parts. A small batch stays inline; the others are stored as blobs.
3. One commit adds the batches to all shards (I4), if each shard's upper is still the expected one (I2).

If another writer was first, the append raises `UpperMismatch` and deletes the blobs of step 2, which no state names.
After a crash they are orphans of this writer, which garbage collection deletes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import pyarrow as pa

from evertide.errors import Conflict, EvertideError, InvalidInput, OutcomeUnknown, ShardEnded, Unexpected, UpperMismatch
from evertide.rows.changes import check_changes
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.shard.parts.part import Part, encode_parts
from evertide.shard.shard_log import Proposal, ShardLog, commit
from evertide.shard.state import Appended, ShardState
from evertide.store.blob import Blob
from evertide.store.meta import Guard, Write
from evertide.store.paths import Name, part_key
from evertide.store.retry import put_until_known
from evertide.store.writers import Writer
from evertide.types import Time

logger = logging.getLogger(__name__)

Changes: TypeAlias = pa.Table | Sequence[Part]
"""Rows with __time and __diff, or parts that executors have stored."""


@dataclass(frozen=True, slots=True)
class Append:
    """The changes of [expected_upper, new_upper) for one shard."""

    log: ShardLog
    changes: Changes
    expected_upper: int
    new_upper: int


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
    """Encode and store checked changes. On an executor, `attempt` must be unique to the attempt of the task.

    No state names what a failed attempt stored. Garbage collection deletes it once the writer has settled `seq`.
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
    """Append to all shards or to none. Raise `UpperMismatch` for the first shard whose upper is not the expected one.

    `writes` returns further records for the same commit; it gets the stored parts per shard.
    """
    checked = [_check_changes(append) for append in appends]
    with writer.claim() as seq:
        try:
            stored = [_store(append, changes, writer, seq) for append, changes in zip(appends, checked, strict=True)]
        except OutcomeUnknown:
            writer.settle(seq)  # a put that arrives late is an orphan: no commit names it
            raise
        proposals = [
            Proposal(append.log, _propose(append, parts)) for append, parts in zip(appends, stored, strict=True)
        ]
        try:
            commit(proposals, writer, writes=writes(stored) if writes else (), guards=guards)
        except Conflict:
            for append, parts in zip(appends, stored, strict=True):
                if isinstance(
                    append.changes, pa.Table
                ):  # other parts belong to the caller: an earlier commit may name them
                    withdraw(append.log.blob, parts)
            raise
    for append in appends:
        append.log.roll_up_if_due(writer)


def _check_changes(append: Append) -> Changes:
    """Raise an error before anything is stored if the append cannot succeed."""
    log = append.log
    if append.new_upper <= append.expected_upper:
        why = f"the new upper {append.new_upper} is not above the expected upper {append.expected_upper}"
        raise InvalidInput(where=f"shard {log.shard!r}", why=why)
    state = log.read_cached().state
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
            why = f"part {part.key} has the times {times}, outside [{append.expected_upper}, {append.new_upper})"
            raise Unexpected(where=f"append to shard {append.log.shard!r}", why=why)
    return tuple(append.changes)


def _check_upper(append: Append, state: ShardState) -> None:
    log = append.log
    if state.finalized:
        raise ShardEnded(where=log.path, why=f"shard {log.shard!r} is finalized and accepts no changes")
    if state.upper != append.expected_upper:
        why = "a peer wrote these times" if state.upper > append.expected_upper else "earlier times are missing"
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
    """Delete parts that no state names or can name."""
    for part in parts:
        if part.key:
            try:
                blob.delete(part.key)
            except EvertideError as error:
                logger.warning("could not delete a part that no state names, garbage collection will: %s", error)
