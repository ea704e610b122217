"""`Rewind`: restore Meta as of a checkpoint, and the transactions since from what is left of the journal.

1. All records of Meta are copied to a file below `lost+found/`, and removed in one commit, except the journal, its
   producers and, if the journal is complete, the records of sinks and shapes of shards that the checkpoint has. From
   now on the storage cannot be opened, because Meta is lost. So an interrupted repair is simply repeated.
2. Meta is restored from the checkpoint (`evertide.checkpoint.meta_restore`). The transactions in the remaining journal
   are then bound and not committed: the pipeline completes them from their input when it starts.
3. After a loss, the transaction numbers that sinks and shapes have would mean other transactions, so they start again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import msgspec

from evertide.checkpoint.context import ShardCollections, StorageContext
from evertide.checkpoint.fsck import LOST
from evertide.checkpoint.meta_restore import RetainedMeta, read_pipeline_file, restore_meta
from evertide.checkpoint.rebuild import read_last_holds
from evertide.checkpoint.records import Manifest, StateFile, list_numbers
from evertide.checkpoint.registration import change
from evertide.checkpoint.verification import check_files
from evertide.errors import EvertideError, RecordDamaged
from evertide.journal.producers import Producer
from evertide.journal.records import Bound, Staged
from evertide.journal.staging import list_staged
from evertide.store.meta import Record, Write, check_seal, seal, unseal
from evertide.store.paths import (
    JOURNAL,
    SHAPES,
    beat_key,
    checkpoint_prefix,
    producer_key,
    shape_prefix,
    sink_key,
    writer_key,
)
from evertide.store.writers import Writer
from evertide.types import Generation, Time

CONSUMERS = (sink_key(""), shape_prefix(), SHAPES)
"""The records of sinks and shapes, which follow collections by transaction numbers."""


class DeclaredCollections(Protocol):
    """The collections that the pipeline declares, by shard (`evertide.pipeline.recovery.damaged_views`)."""

    def collections(self, record: bytes | None = None) -> ShardCollections: ...

    def renumber(self, record: bytes, generation: Generation) -> bytes: ...

    def renew_generation(self) -> bool: ...

    def recompute(self, shards: Mapping[str, str], writer: Writer) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class RemainingJournal:
    """The rest of the journal, from the transaction before a checkpoint on."""

    records: tuple[Bound, ...]
    is_complete: bool
    """Whether no bound transaction is missing."""

    @property
    def is_stored(self) -> bool:
        """Whether no transaction is missing, and no source has to be read again."""
        fragments = [one for bound in self.records[1:] for given in bound.inputs.values() for one in given.fragments]
        return self.is_complete and all(isinstance(one, Staged) for one in fragments)


@dataclass(frozen=True, slots=True)
class Rewind:
    place: StorageContext
    writer: Writer
    declared: DeclaredCollections | None

    def go_back(self, manifest: Manifest, reason: str) -> list[str]:
        """Go back to a checkpoint; return sentences on what was done."""
        place, left = self.place, self.read_remaining_journal(manifest)
        heads = place.retry_read(lambda: place.meta.heads(""))
        copied = f"{LOST}meta-{place.runtime.new_id()}.msgpack"
        place.put(copied, msgspec.msgpack.encode({key: _records(place, key) for key in heads}))
        stays = {writer_key(self.writer.id), beat_key(self.writer.id)}
        holds = {name: read_last_holds(place, name, 0) for name in manifest.members}
        if left is not None:
            stays |= {JOURNAL, *(key for key in heads if key.startswith(producer_key("")))}
            if left.is_complete:
                stays.update(key for key in heads if _is_kept(key, heads[key].data, manifest.members))
        change(place, self.writer, [Write(key, head.seqno, None) for key, head in heads.items() if key not in stays])
        self.writer.adopt_generation()
        sentence = f"copied the records of Meta to {copied}, because of: {reason}"
        return [sentence, self.restore(manifest, holds)]

    def restore(self, manifest: Manifest, holds: Mapping[str, Mapping[str, int]] | None = None) -> str:
        """Restore Meta from a checkpoint, with the journal as far as it is intact."""
        place = self.place
        last = max(list_numbers(entry.key for entry in place.blob.list(checkpoint_prefix())))
        left = self.read_remaining_journal(manifest)
        if left is None or self.declared is None:
            self._remove([JOURNAL, *(key for key in place.meta.heads("") if key.startswith(CONSUMERS))])
            entry = restore_meta(place, manifest, self.writer, last=last)
            sentence = f"restored Meta, which was lost, from checkpoint {entry.number}"
            return f"{sentence}; {_describe_loss(entry.time)}"
        if not left.is_complete:
            repair_producers(place, left.records[-1].time)
        writes = [] if left.is_complete else make_journal_writes(place, left.records)
        generation = max([manifest.generation, *(one.generation for one in left.records)])
        pipeline = self.declared.renumber(read_pipeline_file(place, manifest), generation)
        kept = RetainedMeta(generation, pipeline, holds if holds and left.is_complete else {}, tuple(writes))
        entry = restore_meta(place, manifest, self.writer, last=last, kept=kept)
        delete_before(place, writes)
        reached = left.records[-1].time
        sentence = f"restored Meta from checkpoint {entry.number}"
        if reached >= entry.time:
            sentence += f"; the pipeline recomputes transactions {entry.time} to {reached} when it starts"
        if left.is_complete:
            return f"{sentence}; nothing is lost"
        return f"{sentence}; {_describe_loss(reached + 1)}"

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            head = self.place.meta.head(key)
            if head is not None:
                change(self.place, self.writer, [Write(key, head.seqno, None)])

    def read_remaining_journal(self, manifest: Manifest) -> RemainingJournal | None:
        """The records from the one before the checkpoint on, as far as they and the files that they name are intact.

        None if no replay can continue from the checkpoint.
        """
        place = self.place
        records = place.retry_read(lambda: place.meta.scan(JOURNAL))
        left = list(read_bound(place, records))
        known = {bound.time: bound for _, bound in left}
        found: list[Bound] = []
        for time in count(manifest.time - 1):
            bound = known.get(Time(time))
            if bound is None or (found and check_files(place, _list_staged_files(bound))):
                break
            found.append(bound)
        if not found or not manifest.positions.keys() <= found[0].inputs.keys():
            return None
        return RemainingJournal(tuple(found), is_complete=found[-1].time == find_last_time(records, left))


def _describe_loss(time: int) -> str:
    lost = f"everything from transaction {time} on is lost, and so are the holds of sinks and shapes"
    return f"{lost}; sources that can be read again continue from their positions at that time"


class _ConsumerRecord(msgspec.Struct, frozen=True):
    """The fields that the records of sinks and shapes have in common, as far as needed here."""

    shard: str
    moving_to: str = ""


def _is_kept(key: str, data: bytes, members: Sequence[str]) -> bool:
    if key == SHAPES:
        return True
    if not key.startswith(CONSUMERS):
        return False
    follower = unseal(data, _ConsumerRecord, key)
    return {follower.shard, follower.moving_to} - {""} <= set(members)


def repair_producers(place: StorageContext, last: int | None = None) -> list[str]:
    """Restore the records of producers from the journal: damaged and missing ones, and those of times after `last`.

    A producer that the journal does not name is forgotten: a push that it repeats counts as new.
    """
    bound = [one for _, one in read_bound(place, place.retry_read(lambda: place.meta.scan(JOURNAL)))]
    known: dict[str, Producer] = {}
    for one in bound if last is None else [one for one in bound if one.time <= last]:
        for given in one.inputs.values():
            numbers = {} if isinstance(given.producers, msgspec.UnsetType) else given.producers
            for name, number in numbers.items():
                known[producer_key(name)] = Producer(name, number.number, number.time, one.bound_at_s)
    sentences = []
    heads = place.retry_read(lambda: place.meta.heads(producer_key("")))
    for key in known.keys() - heads.keys():
        place.commit([Write(key, 0, seal(known[key]))])
        sentences.append(f"rebuilt record {key} from the journal")
    for key, record in heads.items():
        try:
            if last is None or unseal(record.data, Producer, key).time <= last:
                check_seal(record.data, key)
                continue
        except RecordDamaged:
            pass
        found = known.get(key)
        place.commit([Write(key, record.seqno, seal(found) if found else None)])
        lost = f"removed record {key}: a push that the producer repeats counts as new"
        sentences.append(f"rebuilt record {key} from the journal" if found else lost)
    return sentences


def make_journal_writes(place: StorageContext, kept: Sequence[Bound]) -> list[Write]:
    """The writes that append `kept` after the present records; `kept` becomes the whole journal.

    Afterwards `delete_before` deletes the earlier records. Until then the journal is damaged as before, so a repair
    that was interrupted finds all records again.
    """
    head = place.retry_read(lambda: place.meta.head(JOURNAL))
    return [Write(JOURNAL, number, seal(bound)) for number, bound in enumerate(kept, head.seqno if head else 0)]


def delete_before(place: StorageContext, writes: Sequence[Write]) -> None:
    """Delete the records of the journal before those of `make_journal_writes`."""
    if writes:
        first = writes[0].expected + 1
        place.retry_read(lambda: place.meta.truncate(JOURNAL, first))


def find_last_time(records: Sequence[Record], left: Sequence[tuple[Record, Bound]]) -> int:
    """The last transaction in the journal. `left` has the readable records; times of others are inferred."""
    times = {record.seqno: bound.time for record, bound in left}
    time = last = -1
    for record in records:
        time = times.get(record.seqno, time + 1)
        last = max(last, time)
    return last


def _list_staged_files(bound: Bound) -> list[StateFile]:
    return [StateFile(one.key, one.bytes, one.checksum) for one in list_staged(bound) if one.has_blob]


def _records(place: StorageContext, key: str) -> list[tuple[int, bytes]]:
    return [(record.seqno, record.data) for record in place.meta.scan(key)]


def read_bound(place: StorageContext, records: Sequence[Record]) -> Iterator[tuple[Record, Bound]]:
    for record in records:
        try:
            yield record, unseal(record.data, Bound, place.meta.path(JOURNAL))
        except EvertideError:
            continue
