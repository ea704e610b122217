"""The state of a shard, and how it changes: a pure state machine.

Where it lies: as diffs 1, 2, 3, ... in the Meta log `shard/<shard>`, and now and then whole, as a roll-up blob
(`evertide.shard.log`). Version 1. Writers append diffs by compare-and-set; garbage collection truncates what a roll-up
covers.

Words: a *batch* holds the changes of the times in [lower, upper), as parts; its `since` says how far times in it may
have been moved up. Batches are in order of time and do not overlap; times between them changed nothing.

Invariants, and what would break without them:

1. `upper` only advances, and an append starts exactly there (I2): or two writers would both write a time.
2. `since` only advances, and stays below `upper` once that is above 0: or no time could be read.
3. A batch's parts hold times in [lower, upper), or `since` where that is later: or a reader at `as_of >= since` would
   miss or double a change.
4. Compaction replaces exactly the batches that it read by one that sums to the same digest: or it would swallow an
   append, or a change.
5. After `Finalize` there is no further diff but forgetting tokens.

`apply` refuses whatever breaks one of them with `RecordDamaged`: a diff in the log was committed, so if it does not
fit, the log is not what was acknowledged."""

from __future__ import annotations

from functools import reduce
from typing import TypeAlias

import msgspec

from evertide.errors import RecordDamaged
from evertide.rows.digest import add
from evertide.shard.parts.part import Part
from evertide.types import Time

__all__ = [
    "Appended",
    "Batch",
    "Compacted",
    "Created",
    "Diff",
    "Finalized",
    "Forgotten",
    "LogEntry",
    "ShardState",
    "SinceAdvanced",
    "apply",
    "parts_removed",
]


class Batch(msgspec.Struct, frozen=True):
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
        return reduce(add, (part.digest for part in self.parts), "0" * 32)

    @property
    def retractions(self) -> int:
        return sum(part.retractions for part in self.parts)


class ShardState(msgspec.Struct, frozen=True):
    shard: str
    schema: bytes
    """The columns, as a serialized Arrow schema."""
    since: Time = Time(0)
    upper: Time = Time(0)
    batches: tuple[Batch, ...] = ()
    tokens: dict[str, tuple[str, ...]] = {}
    """Per writer, the tokens of those of its diffs that it may still ask for: whether a commit happened or not."""
    finalized: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(part for batch in self.batches for part in batch.parts)

    def reach(self, lower: int, rows_max: int) -> int:
        """Up to where to read at once, from a time on: about so many rows, and one batch at least."""
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
    """The batches that lie in [added.lower, added.upper), with these part keys, become `added`."""

    added: Batch
    removed: tuple[str, ...]
    """Keys of the blobs that are no longer needed from here on: what collection deletes."""


class SinceAdvanced(msgspec.Struct, frozen=True, tag="since"):
    since: Time


class Forgotten(msgspec.Struct, frozen=True, tag="forgotten"):
    """Writers that are no longer registered, whose tokens nobody can ask for any more."""

    writers: tuple[str, ...]


class Finalized(msgspec.Struct, frozen=True, tag="finalized"):
    removed: tuple[str, ...]


Diff: TypeAlias = Created | Appended | Compacted | SinceAdvanced | Forgotten | Finalized


class LogEntry(msgspec.Struct, frozen=True):
    """One record of the log: what changed, and by whom."""

    writer: str
    token: str
    diff: Diff
    settled: int = 0
    """The writer asks for no token below this any more."""


def parts_removed(diff: Diff) -> tuple[str, ...]:
    """Keys of the blobs that this diff takes out of the state."""
    return diff.removed if isinstance(diff, Compacted | Finalized) else ()


def apply(state: ShardState | None, entry: LogEntry, path: str) -> ShardState:
    """The state after one more entry. `path` is for the error."""
    diff = entry.diff
    if isinstance(diff, Created):
        _demand(state is None, path, "the shard is created twice")
        return ShardState(diff.shard, diff.schema, tokens={entry.writer: (entry.token,)})
    if state is None:
        raise RecordDamaged(path=path, why="the log does not begin with the creation of the shard")
    _demand(not state.finalized or isinstance(diff, Forgotten), path, "a finalized shard is changed")
    changed = _apply_diff(state, diff, path)
    asked = tuple(token for token in changed.tokens.get(entry.writer, ()) if int(token) >= entry.settled)
    return msgspec.structs.replace(changed, tokens={**changed.tokens, entry.writer: (*asked, entry.token)})


def _apply_diff(state: ShardState, diff: Diff, path: str) -> ShardState:
    replace = msgspec.structs.replace
    match diff:
        case Appended():
            fits = (
                diff.lower == state.upper and diff.upper >= diff.lower and (diff.upper > diff.lower or not diff.parts)
            )
            _demand(fits, path, f"an append of [{diff.lower}, {diff.upper}) at upper {state.upper}")
            _demand_times(diff.parts, diff.lower, diff.upper, path)
            added = (Batch(diff.lower, diff.upper, diff.parts),) if diff.parts else ()
            return replace(state, upper=diff.upper, batches=state.batches + added)
        case Compacted():
            return replace(state, batches=_replace_batches(state, diff, path))
        case SinceAdvanced():
            _demand(state.since <= diff.since < max(state.upper, 1), path, f"since moves to {diff.since}")
            return replace(state, since=diff.since)
        case Forgotten():
            return replace(state, tokens={w: t for w, t in state.tokens.items() if w not in diff.writers})
        case Finalized():
            return replace(state, finalized=True, batches=())
    raise RecordDamaged(path=path, why=f"an entry of kind {type(diff).__name__} after the first")


def _replace_batches(state: ShardState, diff: Compacted, path: str) -> tuple[Batch, ...]:
    added = diff.added
    _demand(added.since <= state.since, path, f"times were moved up to {added.since}, beyond since {state.since}")
    _demand_times(added.parts, added.lower, max(added.upper, added.since + 1), path)
    before = tuple(batch for batch in state.batches if batch.upper <= added.lower)
    after = tuple(batch for batch in state.batches if batch.lower >= added.upper)
    inputs = state.batches[len(before) : len(state.batches) - len(after)]
    whole = bool(inputs) and added.lower <= inputs[0].lower and inputs[-1].upper <= added.upper
    gone = {part.key for batch in inputs for part in batch.parts if part.key} - {part.key for part in added.parts}
    _demand(whole and gone == set(diff.removed), path, "compaction replaces batches that are not there")
    _demand(
        reduce(add, (batch.digest for batch in inputs), "0" * 32) == added.digest,
        path,
        f"compaction of [{added.lower}, {added.upper}) changes the digest",
    )
    return before + ((added,) if added.parts else ()) + after


def _demand_times(parts: tuple[Part, ...], lower: int, upper: int, path: str) -> None:
    for part in parts:
        fits = lower <= part.time_min <= part.time_max < upper
        _demand(fits, path, f"a part holds times {part.time_min} to {part.time_max}, outside of [{lower}, {upper})")


def _demand(holds: bool, path: str, why: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise RecordDamaged(path=path, why=why)
