"""The state of a shard and its transitions: a pure state machine.

Stored as diffs 1, 2, 3, ... in the Meta log `shard/<shard>`, and as a roll-up blob now and then
(`evertide.shard.shard_log`). Version 1. Writers append diffs by compare-and-set; garbage collection truncates the diffs
that a roll-up covers.

A *batch* has the changes of the times in [lower, upper), as parts; times in it may have been moved up to its `since`.
Batches are in order of time and do not overlap; nothing changed at times between them.

Invariants, and what they prevent:

1. `upper` only advances, and an append starts exactly there (I2). Otherwise two writers would write the same time.
2. `since` only advances, and stays below `upper` once that is above 0. Otherwise no time could be read.
3. A batch's parts have times in [lower, upper), or `since` where that is later. Otherwise a reader at `as_of >= since`
   would miss or double a change.
4. Compaction replaces exactly the batches that it read, by one with the same digest. Otherwise an append or a change
   would be lost.
5. After `Finalized`, which ends the shard, the only further diff is `Forgotten`, which removes the commit tokens of
   writers that are no longer registered.

`apply` raises `RecordDamaged` for a diff that violates one of them: a diff in the log was committed, so if it does not
apply, the log is damaged.
"""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

import msgspec

from evertide.errors import RecordDamaged
from evertide.rows.digest import add_digests
from evertide.shard.parts.part import Part
from evertide.types import Time


class Batch(msgspec.Struct, frozen=True):
    """A range of adjacent times of a shard, and the parts that hold its changes."""

    lower: Time
    upper: Time
    parts: tuple[Part, ...]
    since: Time = Time(0)

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def digest(self) -> str:
        return reduce(add_digests, (part.digest for part in self.parts), "0" * 32)

    @property
    def retractions(self) -> int:
        return sum(part.retractions for part in self.parts)


class ShardState(msgspec.Struct, frozen=True):
    """What a shard contains, as of one record of its log."""

    shard: str
    schema: bytes
    """The columns, as a serialized Arrow schema."""
    since: Time = Time(0)
    upper: Time = Time(0)
    batches: tuple[Batch, ...] = ()
    tokens: dict[str, tuple[str, ...]] = {}
    """Per writer, the tokens of diffs whose outcome the writer may still look up."""
    finalized: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for batch in self.batches for part in batch.parts)

    def find_read_end(self, lower: int, rows_max: int) -> int:
        """The upper end of a read from `lower` on, of about `rows_max` rows and at least one batch."""
        rows = 0
        for batch in self.batches:
            if batch.upper <= lower:
                continue
            rows += batch.rows
            if rows >= rows_max:
                return min(batch.upper, self.upper)
        return self.upper


class Created(msgspec.Struct, frozen=True, tag="created"):
    shard: str
    schema: bytes


class Appended(msgspec.Struct, frozen=True, tag="appended"):
    lower: Time
    upper: Time
    parts: tuple[Part, ...]


class Compacted(msgspec.Struct, frozen=True, tag="compacted"):
    """Replace the batches in [added.lower, added.upper) by `added`."""

    added: Batch
    removed: tuple[str, ...]
    """The keys of the blobs that the state no longer needs; garbage collection deletes them."""


class SinceAdvanced(msgspec.Struct, frozen=True, tag="since"):
    since: Time


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    """Remove the tokens of writers that are no longer registered."""

    writers: tuple[str, ...]


class Finalized(msgspec.Struct, frozen=True, tag="finalized"):
    removed: tuple[str, ...]


Diff: TypeAlias = Created | Appended | Compacted | SinceAdvanced | Forgotten | Finalized


class LogEntry(msgspec.Struct, frozen=True):
    """One record of the log: a diff, and the writer that made it."""

    writer: str
    token: str
    diff: Diff
    settled: int = 0
    """The writer looks up no token below this one any more."""


def parts_removed(diff: Diff) -> tuple[str, ...]:
    return diff.removed if isinstance(diff, Compacted | Finalized) else ()


def apply(state: ShardState | None, entry: LogEntry, path: str) -> ShardState:
    """Return the state after one more entry. `path` is for the error."""
    diff = entry.diff
    if isinstance(diff, Created):
        _demand(state is None, path, "it creates the shard a second time")
        return ShardState(diff.shard, diff.schema, tokens={entry.writer: (entry.token,)})
    if state is None:
        raise RecordDamaged(path=path, why="the log does not start with the creation of the shard")
    _demand(not state.finalized or isinstance(diff, Forgotten), path, "it changes a finalized shard")
    changed = _apply_diff(state, diff, path)
    kept = tuple(token for token in changed.tokens.get(entry.writer, ()) if int(token) >= entry.settled)
    return msgspec.structs.replace(changed, tokens={**changed.tokens, entry.writer: (*kept, entry.token)})


def _apply_diff(state: ShardState, diff: Diff, path: str) -> ShardState:
    replace = msgspec.structs.replace
    match diff:
        case Appended():
            fits = (
                diff.lower == state.upper and diff.upper >= diff.lower and (diff.upper > diff.lower or not diff.parts)
            )
            _demand(fits, path, f"it appends [{diff.lower}, {diff.upper}) at upper {state.upper}")
            _demand_times(diff.parts, diff.lower, diff.upper, path)
            added = (Batch(diff.lower, diff.upper, diff.parts),) if diff.parts else ()
            return replace(state, upper=diff.upper, batches=state.batches + added)
        case Compacted():
            return replace(state, batches=_replace_batches(state, diff, path))
        case SinceAdvanced():
            _demand(
                state.since <= diff.since < max(state.upper, 1),
                path,
                f"it moves since from {state.since} to {diff.since}, with upper {state.upper}",
            )
            return replace(state, since=diff.since)
        case Forgotten():
            return replace(state, tokens={w: t for w, t in state.tokens.items() if w not in diff.writers})
        case Finalized():
            return replace(state, finalized=True, batches=())
    raise RecordDamaged(path=path, why=f"{type(diff).__name__} is not a diff of an existing shard")


def _replace_batches(state: ShardState, diff: Compacted, path: str) -> tuple[Batch, ...]:
    added = diff.added
    _demand(added.since <= state.since, path, f"times were moved up to {added.since}, above since {state.since}")
    _demand_times(added.parts, added.lower, max(added.upper, added.since + 1), path)
    before = tuple(batch for batch in state.batches if batch.upper <= added.lower)
    after = tuple(batch for batch in state.batches if batch.lower >= added.upper)
    inputs = state.batches[len(before) : len(state.batches) - len(after)]
    whole = bool(inputs) and added.lower <= inputs[0].lower and inputs[-1].upper <= added.upper
    gone = {part.key for batch in inputs for part in batch.parts if part.key} - {part.key for part in added.parts}
    _demand(whole and gone == set(diff.removed), path, "it replaces batches that the state does not have")
    _demand(
        reduce(add_digests, (batch.digest for batch in inputs), "0" * 32) == added.digest,
        path,
        f"compaction of [{added.lower}, {added.upper}) changes the digest",
    )
    return before + ((added,) if added.parts else ()) + after


def _demand_times(parts: tuple[Part, ...], lower: int, upper: int, path: str) -> None:
    for part in parts:
        fits = lower <= part.time_min <= part.time_max < upper
        _demand(fits, path, f"a part has the times {part.time_min} to {part.time_max}, outside [{lower}, {upper})")


def _demand(holds: bool, path: str, why: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise RecordDamaged(path=path, why=why)
