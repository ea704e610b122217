"""Compaction: merge batches into fewer and larger ones, and fold times that no reader can tell apart.

Any process may compact beside the appends, and several may try at once. A compaction takes these steps:

1. Choose adjacent batches (`choose`): geometrically, so that each row is rewritten a number of times that grows with
   the logarithm of the shard; or everything up to since, if it has retractions to cancel, so that an idle shard
   shrinks, too.
2. Read the inputs, move times up to since, add diffs, write. The row digest of the result must equal that of the
   inputs; otherwise nothing is committed, and the damage is reported.
3. Replace the batches by compare-and-set. If the state no longer has all inputs, a peer was faster, and the new parts
   are deleted.

A merge of more rows than fit in memory works slice by slice (`evertide.rows.slices`). A part records its slice, so the
next merge reads it only for that slice.

Without retractions no rows cancel out, so large parts move to the new batch unchanged. A table that only grows is not
rewritten again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby

import msgspec
import pyarrow as pa

from evertide.errors import BlobDamaged, BlobMissing, Conflict, Unexpected
from evertide.rows.changes import advance_times, consolidate, make_changes_schema
from evertide.rows.digest import add_digests
from evertide.rows.slices import SLICES_MAX, Slices, count_slices
from evertide.settings import Settings
from evertide.shard.append import store_parts, withdraw
from evertide.shard.parts.part import Part, decode_part, verify_rows
from evertide.shard.shard_log import Proposal, ShardLog, commit
from evertide.shard.state import Batch, Compacted, ShardState
from evertide.store.retry import retry_read
from evertide.store.writers import Writer
from evertide.threads.stopping import IsStopping, Stopped, check_not_stopping, never_stopping

_RECLAIM_SHARE = 8
"""Times below since are rewritten once at least one in this many rows is a retraction."""
_LARGE_BYTES = 64 * 1024 * 1024
"""A part of this size counts as large, even if it has few rows."""


def compact(log: ShardLog, writer: Writer, is_stopping: IsStopping = never_stopping) -> bool:
    """Merge once. Return False if there is nothing to merge, a peer was faster, or the work was stopped."""
    state = log.read().state
    run = choose(state, log.settings)
    if not run:
        return False
    with writer.claim() as seq:
        try:
            merged = _merge(log, state, run, _MergeJob(writer.id, seq, is_stopping))
        except Stopped:
            return False
        except BlobMissing:
            if _is_in(run, log.read().state):
                raise
            return False
        try:
            commit([Proposal(log, _swap(log, run, merged))], writer)
        except Conflict:
            withdraw(log.blob, _new_parts(merged, run))
            return False
    log.roll_up_if_due(writer)
    return True


def choose(state: ShardState, settings: Settings) -> tuple[Batch, ...]:
    """Return the adjacent batches to merge next, oldest first; empty if nothing needs to be merged."""
    return _choose_like_sized(state.batches, settings.compaction_fan_in) or _choose_reclaimable(state)


def _choose_like_sized(batches: Sequence[Batch], fan_in: int) -> tuple[Batch, ...]:
    """The youngest `fan_in` or more adjacent batches on one level.

    A batch's level is the logarithm of its rows, but at least that of its younger neighbour. So a small batch between
    large ones is merged with them, and at most `fan_in - 1` batches stay on each level.
    """
    levels: list[int] = []
    for batch in reversed(batches):
        levels.append(max(_level(batch.rows, fan_in), levels[-1] if levels else 0))
    youngest_first = zip(levels, reversed(batches), strict=True)
    for _, same in groupby(youngest_first, key=lambda pair: pair[0]):
        run = tuple(batch for _, batch in same)
        if len(run) >= fan_in:
            return run[::-1]
    return ()


def _level(rows: int, fan_in: int) -> int:
    level = 0
    while rows >= fan_in:
        rows //= fan_in
        level += 1
    return level


def _choose_reclaimable(state: ShardState) -> tuple[Batch, ...]:
    """All batches up to since, if they have enough retractions and were not merged at this since."""
    run = tuple(batch for batch in state.batches if batch.upper <= state.since + 1)
    rows = sum(batch.rows for batch in run)
    retractions = sum(batch.retractions for batch in run)
    is_untried = any(batch.since < state.since for batch in run)
    return run if is_untried and retractions > 0 and retractions * _RECLAIM_SHARE >= rows else ()


@dataclass(frozen=True, slots=True)
class _MergeJob:
    writer: str
    seq: int
    is_stopping: IsStopping


def _merge(log: ShardLog, state: ShardState, run: Sequence[Batch], job: _MergeJob) -> Batch:
    every = [part for batch in run for part in batch.parts]
    is_growing = not any(part.retractions for part in every)
    parts = [part for part in every if is_growing and _is_large(part, log.settings)]
    kept = {part.key for part in parts}
    inputs = [part for part in every if part.key not in kept]
    count = count_slices(min(SLICES_MAX, sum(part.rows for part in inputs) / log.settings.compaction_rows_max))
    try:
        for index, table in enumerate(_merge_in_slices(log, inputs, count, job) if inputs else ()):
            stored = store_parts(
                consolidate(advance_times(table, state.since)),
                shard=log.shard,
                blob=log.blob,
                writer=job.writer,
                seq=job.seq,
                attempt=f"s{index}" if count > 1 else "",
                runtime=log.runtime,
                settings=log.settings,
            )
            parts += [msgspec.structs.replace(part, slice_index=index, slice_count=count) for part in stored]
    except Stopped:
        withdraw(log.blob, [part for part in parts if part.key not in kept])
        raise
    merged = Batch(run[0].lower, run[-1].upper, tuple(parts), state.since)
    if merged.digest != reduce(add_digests, (batch.digest for batch in run)):
        withdraw(log.blob, _new_parts(merged, run))
        raise _find_damaged(log, inputs, merged)
    return merged


def _is_large(part: Part, settings: Settings) -> bool:
    return bool(part.key) and (part.rows * 2 >= settings.part_rows_max or part.bytes >= _LARGE_BYTES)


def _new_parts(merged: Batch, run: Sequence[Batch]) -> list[Part]:
    before = {part.key for batch in run for part in batch.parts}
    return [part for part in merged.parts if part.key not in before]


def _merge_in_slices(log: ShardLog, inputs: Sequence[Part], count: int, job: _MergeJob) -> Iterator[pa.Table]:
    """Yield the rows of each slice. A part that spans several slices is read once."""
    if count == 1:
        check_not_stopping(job.is_stopping)
        yield pa.concat_tables([_read(log, part) for part in inputs])
        return
    with Slices(make_changes_schema(log.schema()), count) as slices:
        for part in inputs:
            if part.slice_count < count:
                check_not_stopping(job.is_stopping)
                slices.add(_read(log, part))
        for index in range(count):
            check_not_stopping(job.is_stopping)
            own = [_read(log, part) for part in inputs if _is_inside(part, index, count)]
            yield pa.concat_tables([slices.take(index), *own])


def _is_inside(part: Part, index: int, count: int) -> bool:
    return part.slice_count >= count and part.slice_index * count // part.slice_count == index


def _read(log: ShardLog, part: Part) -> pa.Table:
    if not part.key:
        return decode_part(part, part.inline, log.schema(), log.path)
    stored = retry_read(lambda: log.blob.get(part.key), log.runtime, log.settings)
    return decode_part(part, stored, log.schema(), log.blob.path(part.key))


def _find_damaged(log: ShardLog, inputs: Sequence[Part], merged: Batch) -> BlobDamaged | Unexpected:
    """Return why the digests differ: a part with other rows than recorded, or a bug."""
    for part in inputs:
        try:
            verify_rows(part, _read(log, part), log.blob.path(part.key) if part.key else log.path)
        except BlobDamaged as error:
            return error
    why = f"merging [{merged.lower}, {merged.upper}) returned other rows than its parts have"
    return Unexpected(where=f"compaction of shard {log.shard!r}", why=why)


def _swap(log: ShardLog, run: Sequence[Batch], merged: Batch) -> Callable[[ShardState], Compacted]:
    def make(state: ShardState) -> Compacted:
        if not _is_in(run, state):
            raise Conflict(where=log.path, why="a peer compacted these batches")
        kept = {part.key for part in merged.parts}
        removed = tuple(part.key for batch in run for part in batch.parts if part.key and part.key not in kept)
        return Compacted(merged, removed)

    return make


def _is_in(run: Sequence[Batch], state: ShardState) -> bool:
    here = {(batch.lower, batch.upper): batch for batch in state.batches}
    return all(here.get((batch.lower, batch.upper)) == batch for batch in run)
