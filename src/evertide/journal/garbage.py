"""Delete the records of transactions that no process can replay, and staged rows that no record names (I12).

`truncate(below)` works in this order; an error ends it:

1. The writer writes its heartbeat, which shows that it is not fenced (I16).
2. It reads the records, and lists the blobs that only records below the time name.
3. It truncates the records, except the newest of each key. The last `_XID_OUTCOMES_KEPT` outcomes with upstream
   transaction ids stay longer, because clients may be waiting for one of those ids.
4. The writer writes its heartbeat again. Meta keeps commits in order, so the truncation is now durable. Without this
   step, a power cut could restore a record whose blobs are gone.
5. It deletes the blobs. If it crashes before, they are orphans, and `drop_unbound` deletes them.

`drop_unbound` deletes a staged blob only after these steps, in this order: the blob was listed; its writer was not
registered, or had settled the blob's sequence number; the records, read after that, do not name the blob; a later
commit made durable any truncation that they show. Each fact stays true forever, so a concurrent or an
interrupted run does no harm. If anything cannot be read, nothing is deleted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from evertide.errors import StorageFull, Unexpected
from evertide.journal.records import Bound, Committed
from evertide.journal.staging import list_staged, parse_source
from evertide.journal.time_log import NumberedRecord, TimeLog
from evertide.store.blob import Blob, list_keys
from evertide.store.paths import staged_prefix
from evertide.store.retry import retry_read
from evertide.store.writers import Writer, end_silent_writers, read_open_numbers, will_not_be_named
from evertide.types import SequenceNumber

logger = logging.getLogger(__name__)

_XID_OUTCOMES_KEPT = 1_000


@dataclass(frozen=True, slots=True)
class _Proof:
    staged: tuple[str, ...]
    settled: dict[str, int]
    named: set[str]


def truncate(blob: Blob, bound: TimeLog[Bound], committed: TimeLog[Committed], below: int, writer: Writer) -> list[str]:
    upper = committed.upper()
    if below > upper:
        why = f"cannot forget transactions below {below}: transactions from {upper} on are not committed"
        raise Unexpected(where="Journal.truncate", why=why)
    writer.beat()
    head, outcomes = bound.head(), committed.read_all()
    count, last_old = 0, SequenceNumber(0)
    staged, kept = list[str](), set[str]()
    for record in bound.iterate():
        if head is not None and record.number < head.number and record.value.time < below:
            count, last_old = count + 1, record.number
            staged += [fragment.key for fragment in list_staged(record.value) if fragment.has_blob]
        else:
            kept |= _collect_named_keys([record])
    keys = [key for key in staged if key not in kept]
    named = any(not isinstance(outcome.value.xids, msgspec.UnsetType) for outcome in outcomes[-1:])
    done = [outcome for outcome in outcomes[: -_XID_OUTCOMES_KEPT if named else -1] if outcome.value.time < below]
    if done:
        committed.meta.truncate(committed.key, done[-1].number + 1)
    if count:
        bound.meta.truncate(bound.key, last_old + 1)
        writer.beat()
        for key in keys:
            blob.delete(key)
        logger.info(
            "deleted the records of %d transactions below time %d, and %d blobs of staged rows",
            count,
            below,
            len(keys),
        )
    return keys


def drop_unbound(blob: Blob, bound: TimeLog[Bound], writer: Writer) -> list[str]:
    with suppress(StorageFull):  # no proof depends on it
        writer.beat()  # publishes our own settled number, and shows that we are not fenced
        end_silent_writers(bound.meta, runtime=bound.runtime, settings=bound.settings, own_writer=writer)
    proof = retry_read(lambda: _read_proof(blob, bound), bound.runtime, bound.settings)
    orphans = [key for key in proof.staged if key not in proof.named and will_not_be_named(key, proof.settled)]
    if orphans:
        writer.beat()
    for key in orphans:
        blob.delete(key)
    for source, count in sorted(Counter(map(parse_source, orphans)).items()):
        logger.warning("deleted %d staged fragments of source %s that no transaction names", count, source)
    return orphans


def _read_proof(blob: Blob, bound: TimeLog[Bound]) -> _Proof:
    """The order of the reads matters: see the header."""
    staged = tuple(list_keys(blob, staged_prefix()))
    floors = read_open_numbers(bound.meta)
    return _Proof(staged, floors, _collect_named_keys(bound.iterate()))


def _collect_named_keys(records: Iterable[NumberedRecord[Bound]]) -> set[str]:
    return {fragment.key for record in records for fragment in list_staged(record.value)}
