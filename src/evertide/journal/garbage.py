"""Forgetting transactions that nobody replays any more, and dropping staged rows that none names (I12).

`truncate(below)`, in this order; whatever fails ends it:

1. The writer beats: it is not fenced (I16).
2. The records are read. What those below the time name, and no later one does, is what will be deleted.
3. The records are forgotten, never the newest of either key. Outcomes that name upstream transactions stay for longer,
   as many as `_NAMED_KEPT`: somebody may be waiting for one of those.
4. The writer beats again. Meta keeps commits in order, so with this one the forgetting is durable, too. Without it a
   power cut could bring back a record whose blobs are gone.
5. The blobs are deleted. A crash before that leaves them as orphans, which `drop_unbound` finds.

`drop_unbound` deletes staged blobs that no record names. Proof, in this order: the blob was listed; its writer was then
not registered (any more), or had settled that sequence number; the records, read after that, do not name it; a commit
after that made durable whatever forgetting they show. Each proof stays true for ever, so neither a second collector nor
one that was stopped in the middle does harm. What cannot be read ends it before anything is deleted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from evertide.errors import InvalidInput, StorageFull
from evertide.journal.log import Numbered, TimeLog
from evertide.journal.records import Bound, Committed
from evertide.journal.staging import source_of, staged_of
from evertide.store.blob import Blob
from evertide.store.paths import Name, staged_prefix
from evertide.store.retry import reading
from evertide.store.writers import Writer, end_silent_writers, registered, settled

__all__ = ["drop_unbound", "truncate"]

logger = logging.getLogger(__name__)

_NAMED_KEPT = 1_000


@dataclass(frozen=True, slots=True)
class _Evidence:
    staged: tuple[str, ...]
    settled: dict[str, int]
    records: list[Numbered[Bound]]


def truncate(blob: Blob, bound: TimeLog[Bound], committed: TimeLog[Committed], below: int, writer: Writer) -> list[str]:
    upper = committed.upper()
    if below > upper:
        why = f"transactions from {upper} on are not committed: their input is needed"
        raise InvalidInput(where=f"{bound.path}, truncation below {below}", why=why)
    writer.beat()
    records, outcomes = bound.all(), committed.all()
    old = [record for record in records[:-1] if record.value.time < below]
    kept = _named(records[len(old) :])
    keys = [fragment.key for record in old for fragment in staged_of(record.value) if fragment.key not in kept]
    named = any(not isinstance(outcome.value.xids, msgspec.UnsetType) for outcome in outcomes[-1:])
    done = [outcome for outcome in outcomes[: -_NAMED_KEPT if named else -1] if outcome.value.time < below]
    if done:
        committed.meta.truncate(committed.key, done[-1].number + 1)
    if old:
        bound.meta.truncate(bound.key, old[-1].number + 1)
        writer.beat()
        for key in keys:
            blob.delete(key)
        logger.info("forgot %d transactions below %d, and %d staged fragments of them", len(old), below, len(keys))
    return keys


def drop_unbound(blob: Blob, bound: TimeLog[Bound], writer: Writer) -> list[str]:
    with suppress(StorageFull):  # no proof rests on this
        writer.beat()  # publishes what we settled ourselves, and shows that we are not fenced
        end_silent_writers(bound.meta, runtime=bound.runtime, settings=bound.settings, judge=writer)
    proof = reading(lambda: _evidence(blob, bound), bound.runtime, bound.settings)
    named = _named(proof.records)
    orphans = [key for key in proof.staged if key not in named and _will_not_be_named(key, proof)]
    if orphans:
        writer.beat()
    for key in orphans:
        blob.delete(key)
    for source, count in sorted(Counter(map(source_of, orphans)).items()):
        logger.warning("dropped %d staged fragments of source %s, which no transaction names", count, source)
    return orphans


def _evidence(blob: Blob, bound: TimeLog[Bound]) -> _Evidence:
    """The order matters: see the header."""
    staged = (*(entry.key for entry in blob.list(staged_prefix())), *blob.unfinished(staged_prefix()))
    known = registered(bound.meta)
    floors = {name: floor for name, floor in settled(bound.meta).items() if name in known}
    return _Evidence(staged, floors, bound.all())


def _named(records: Iterable[Numbered[Bound]]) -> set[str]:
    return {fragment.key for record in records for fragment in staged_of(record.value)}


def _will_not_be_named(key: str, proof: _Evidence) -> bool:
    name = Name.parse(key)
    if name is None:
        return False
    return name.writer not in proof.settled or name.seq < proof.settled[name.writer]
