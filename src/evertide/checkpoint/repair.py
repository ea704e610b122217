"""`repair`: restore what can be restored, report what is lost, and delete nothing that holds data.

1. The repair works alone (`evertide.checkpoint.registration`): if a live process is registered, it is refused.
2. Damaged records of the activity of processes (leases, writers, heartbeats, health, and so on) are removed. So are
   damaged records of a sink or shape, which then starts again with the whole content.
3. If Meta is lost, it is restored from the newest checkpoint of which every file is intact, including those of the
   tables' shards (`evertide.checkpoint.meta_restore`). Later transactions are lost, and reported.
4. FORMAT and the record `storage` are written again.
5. A damaged generation is restored from the definition, a damaged definition from a checkpoint of its generation, a
   damaged journal or `committed` from the shards, as far as possible.
6. A damaged view is marked for recomputation. A damaged table is restored from a checkpoint and its log
   (`evertide.checkpoint.rebuild`).
7. If 5 and 6 fail, the repair goes back to the newest intact checkpoint: it copies Meta to a file, and restores it as
   in 3. The journal stays as far as it is intact from there on, and the transactions since are computed again from
   their input; the others are lost, and reported.
8. A missing or damaged catalog (C4) is rebuilt from the directories that are intact, without checkpoints that cannot be
   replayed from because a member shard has not reached their time, or has compacted it. Damaged checkpoints are removed
   from an intact catalog.
9. Orphans are moved below `lost+found/`, under their own names: first the copy, then the deletion. Garbage collection
   would delete them; a repair does not, because the cause of the damage is unknown.

After each step the storage is checked again, until nothing is left to repair. Each step is one commit or idempotent, so
an interrupted repair is simply repeated. Records of a newer version are never changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from evertide.checkpoint.context import CollectionKind, ShardCollections, StorageContext
from evertide.checkpoint.fsck import LOST, Report, check
from evertide.checkpoint.meta_restore import is_lost, make_catalog_entry, read_pipeline_file
from evertide.checkpoint.rebuild import rebuild_shard
from evertide.checkpoint.records import (
    Catalog,
    CatalogEntry,
    Manifest,
    decode_manifest,
    list_numbers,
    manifest_key,
    read_catalog,
)
from evertide.checkpoint.registration import change, check_exclusive, register_for_repair
from evertide.checkpoint.rewind import (
    CONSUMERS,
    DeclaredCollections,
    Rewind,
    delete_before,
    find_last_time,
    make_journal_writes,
    read_bound,
    repair_producers,
)
from evertide.checkpoint.verification import OnFileRead, check_files, read_manifest, verify_manifest
from evertide.errors import (
    BlobMissing,
    CheckpointDamaged,
    Damaged,
    EvertideError,
    RecordDamaged,
    UnsupportedFormat,
)
from evertide.errors.running_errors import name_views
from evertide.journal.records import Bound, Committed, Input
from evertide.journal.time_log import TimeLog
from evertide.store.meta import Write, check_seal, seal
from evertide.store.open import FORMAT_TEXT, FORMAT_VERSION
from evertide.store.paths import (
    CHECKPOINTS,
    COMMITTED,
    FORMAT,
    GENERATION,
    HEALTH,
    JOURNAL,
    LEADER,
    PIPELINE,
    SOURCES,
    STORAGE,
    beat_key,
    checkpoint_prefix,
    replica_key,
    restoring_key,
    writer_key,
)
from evertide.store.writers import Writer, read_generation
from evertide.types import SequenceNumber, Time

__all__ = ["DeclaredCollections", "RepairReport", "repair"]

logger = logging.getLogger(__name__)

_STEPS_MAX = 12
"""More than any repair needs."""

_TRANSIENT = (writer_key(""), beat_key(""), restoring_key(""), replica_key(""), "lease/", LEADER, HEALTH, SOURCES)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """`done` has sentences on what was changed and what is lost; `moved` has the keys now below `lost+found/`."""

    done: tuple[str, ...]
    moved: tuple[str, ...]
    report: Report
    """The result of a check after the repair."""


def repair(
    place: StorageContext, progress: OnFileRead | None = None, declared: DeclaredCollections | None = None
) -> RepairReport:
    """See the header. Without `declared`, views are unknown, and are treated like tables."""
    check_exclusive(place)
    done = [*_remove_transient(place), *repair_producers(place)]
    done += _renew_generation(place, declared)
    with register_for_repair(place) as writer:
        one = _Repair(place, writer, progress, declared)
        for _ in range(_STEPS_MAX):
            sentences = one.run_step()
            for sentence in sentences:
                logger.warning("repair: %s", sentence)
            done += sentences
            if not sentences:
                break
        report = check(place, progress, one.names())
        moved = tuple(_move(place, key) for key in report.orphans)
    return RepairReport(tuple(done), moved, replace(report, orphans=()))


def _remove_transient(place: StorageContext) -> Iterator[str]:
    """Step 2."""
    for key, record in place.retry_read(lambda: place.meta.heads("")).items():
        if not key.startswith((*_TRANSIENT, *CONSUMERS)):
            continue
        try:
            check_seal(record.data, place.meta.path(key))
        except RecordDamaged as error:
            place.commit([Write(key, record.seqno, None)])
            if key.startswith(CONSUMERS):
                yield f"removed record {key}, so its sink or shape starts again with the whole content: {error.message}"
            else:
                yield f"removed record {key}: {error.message}"
    heads = place.meta.heads(writer_key(""))
    for key, record in place.meta.heads(beat_key("")).items():
        if writer_key(key.removeprefix(beat_key(""))) not in heads:
            place.commit([Write(key, record.seqno, None)])


def _renew_generation(place: StorageContext, declared: DeclaredCollections | None) -> list[str]:
    """The generation, in step 5. It precedes the registration of a writer, which adopts the generation."""
    record = place.meta.head(GENERATION)
    try:
        if read_generation(place.meta) is not None or place.meta.head(PIPELINE) is None:
            return []
    except RecordDamaged:
        pass
    if declared is not None and declared.renew_generation():
        return ["restored the generation from the definition"]
    if record is not None:
        place.commit([Write(GENERATION, record.seqno, None)])
    return ["removed the damaged generation, which the definition does not match"] if record else []


def _move(place: StorageContext, key: str) -> str:
    place.put(LOST + key, place.retry_read(lambda: place.blob.get(key)))
    place.blob.delete(key)
    return key


@dataclass(frozen=True, slots=True)
class _Repair:
    place: StorageContext
    writer: Writer
    progress: OnFileRead | None
    declared: DeclaredCollections | None

    def names(self) -> ShardCollections | None:
        return None if self.declared is None else self.declared.collections()

    def run_step(self) -> list[str]:
        """Run the first step that has work, and return what it did; empty if no step has work."""
        if is_lost(self.place.meta):
            return self._restore_meta()
        sentences = self._repair_format()
        if sentences:
            return sentences
        report = check(self.place, self.progress, self.names())
        return self._repair_core(report) or self._repair_shards(report) or self._repair_catalog()

    def _repair_format(self) -> list[str]:
        """Step 4. If Meta has a newer version, FORMAT is not damaged, and nothing is changed."""
        place, text = self.place, FORMAT_TEXT
        sentences = []
        head = place.meta.head(STORAGE)
        if head is not None and head.data != text and head.data[:-1].isdigit() and int(head.data) > FORMAT_VERSION:
            raise UnsupportedFormat(path=place.meta.path(STORAGE), found=int(head.data), supported=FORMAT_VERSION)
        try:
            found: bytes | None = place.retry_read(lambda: place.blob.get(FORMAT))
        except BlobMissing:
            found = None
        if found != text:
            if found is not None:
                place.put(f"{LOST}{FORMAT}-{self.writer.id}", found)
                place.blob.delete(FORMAT)
            place.put(FORMAT, text)
            sentences.append("wrote FORMAT again")
        number = head.seqno if head else 0
        if head is None or head.data != text or number < 2:
            for seqno in range(number, max(number + 1, 2)):
                change(place, self.writer, [Write(STORAGE, seqno, text)])
            sentences.append("wrote the record of the storage again")
        return sentences

    def _repair_core(self, report: Report) -> list[str]:
        """Step 5."""
        damaged = report.damaged_records
        for key, step in (
            (PIPELINE, self._repair_definition),
            (JOURNAL, self._repair_journal),
            (COMMITTED, self._repair_committed),
        ):
            if key in damaged:
                return step() or self._go_back(f"{key}: {damaged[key]}")
        if GENERATION in damaged:
            return self._go_back(f"{GENERATION}: {damaged[GENERATION]}")
        return []

    def _repair_shards(self, report: Report) -> list[str]:
        """Step 6."""
        names = self.names() or {}
        damaged = {**report.damaged_parts, **report.damaged_shards}
        tables = {name for name, (kind, _) in names.items() if kind is not CollectionKind.VIEW}
        others = {name: why for name, why in damaged.items() if name not in tables}
        if others and names and self.declared is not None:
            views = self.declared.recompute(others, self.writer)
            return [f"marked {name_views(sorted(views))}: the pipeline recomputes them from the tables when it starts"]
        sentences = []
        upper = self._read_committed_upper()
        for name in damaged:
            manifest = rebuild_shard(self.place, name, self._read_manifests(), upper, self.writer)
            if manifest is not None:
                kind, collection = names.get(name, ("shard", name))
                sentences.append(f"restored {kind} {collection!r} from checkpoint {manifest.number} and its log")
        if sentences or not damaged:
            return sentences
        return self._go_back("; ".join(damaged.values()), must_be_lossless=not report.damaged_shards)

    def _repair_catalog(self) -> list[str]:
        """Step 8."""
        numbers = self._list_numbers()
        try:
            seqno, catalog = self.place.retry_read(lambda: read_catalog(self.place.blob, self.place.meta))
        except (CheckpointDamaged, RecordDamaged) as error:
            return self._rebuild_catalog(numbers, error)
        return self._remove_damaged(seqno, catalog)

    def _restore_meta(self) -> list[str]:
        """Step 3."""
        problems: list[str] = []
        numbers = self._list_numbers()
        for number in reversed(numbers):
            manifest = self._find_intact(number, problems, shards=True)
            if manifest is not None:
                return [*problems, Rewind(self.place, self.writer, self.declared).restore(manifest)]
        why = f"Meta is lost, and none of {len(numbers)} checkpoints is intact"
        raise CheckpointDamaged(path=self.place.blob.path(checkpoint_prefix()), why=why, files="; ".join(problems))

    def _go_back(self, reason: str, *, must_be_lossless: bool = False) -> list[str]:
        """Step 7. Do nothing if no checkpoint is intact.

        With `must_be_lossless` (a part of a table is damaged, and a backup may have it), also do nothing if input would
        be lost, or would have to be read again from a source, which may no longer have it.
        """
        place, problems = self.place, list[str]()
        manifests = (self._find_intact(number, problems, shards=True) for number in reversed(self._list_numbers()))
        manifest = next((one for one in manifests if one is not None), None)
        rewind = Rewind(place, self.writer, self.declared)
        left = rewind.read_remaining_journal(manifest) if manifest is not None else None
        if manifest is None or (must_be_lossless and (left is None or not left.is_stored)):
            return []
        return [*problems, *rewind.go_back(manifest, reason)]

    def _repair_definition(self) -> list[str]:
        """Restore the definition from a checkpoint of the same generation."""
        place = self.place
        generation = read_generation(place.meta)
        for manifest in self._read_manifests() if generation else ():
            if generation and manifest.generation == generation.number:
                head = place.meta.head(PIPELINE)
                write = Write(PIPELINE, head.seqno if head else 0, read_pipeline_file(place, manifest))
                change(place, self.writer, [write])
                return [f"restored the definition from checkpoint {manifest.number}"]
        return []

    def _repair_committed(self) -> list[str]:
        """Restore `committed` at the upper of the members. Counts and digests are lost: no replay is possible."""
        upper = self._read_member_upper()
        if upper is None:
            return []
        sentences = self._forget_checkpoints(upper, "the outcomes of transactions are lost")
        place, head = self.place, self.place.meta.head(COMMITTED)
        number = head.seqno if head else 0
        change(place, self.writer, [Write(COMMITTED, number, seal(Committed(Time(upper - 1), {}, {}, self.writer.id)))])
        place.retry_read(lambda: place.meta.truncate(COMMITTED, number + 1))
        return [*sentences, f"rebuilt {COMMITTED} from the shards, at transaction {upper - 1}"]

    def _repair_journal(self) -> list[str]:
        """Rebuild the journal without its damaged records, if the positions of the sources are known."""
        place, upper = self.place, self._read_member_upper()
        if upper is None:
            return []
        records = place.retry_read(lambda: place.meta.scan(JOURNAL))
        left = list(read_bound(place, records))
        found = {bound.time: bound for _, bound in left}
        base = found.get(Time(upper - 1)) or self._find_base(upper, found.get(Time(upper)))
        if base is None:
            return []
        kept = [base]
        while (following := found.get(Time(kept[-1].time + 1))) is not None:
            kept.append(following)
        sentences = self._forget_checkpoints(upper, "the journal lacks the transactions after the others")
        repair_producers(place, kept[-1].time)
        writes = make_journal_writes(place, kept)
        change(place, self.writer, writes)
        delete_before(place, writes)
        sentences.append(f"rebuilt the journal from transaction {upper - 1} on")
        last = find_last_time(records, left)
        if records and not left:
            sentences.append("no record of the journal was readable: input that was bound and not committed is lost")
        elif last > kept[-1].time:
            lost = f"the input of transactions {kept[-1].time + 1} to {last}"
            sentences.append(f"{lost} is lost: it was bound and not committed")
        return sentences

    def _find_base(self, upper: int, following: Bound | None) -> Bound | None:
        """A record of the last committed transaction, with the positions of the sources after it.

        The positions come from the next record, which starts there, or from a checkpoint at that time.
        """
        if following is not None:
            generation = following.generation
            positions = {source: given.before for source, given in following.inputs.items()}
        else:
            manifest = next((one for one in self._read_manifests() if one.time == upper), None)
            if manifest is None:
                return None
            generation, positions = manifest.generation, manifest.positions
        inputs = {source: Input(position, position) for source, position in positions.items()}
        token, now_s = self.writer.new_token(), self.place.runtime.wall_s()
        return Bound(Time(upper - 1), generation, inputs, self.writer.id, token, now_s)

    def _forget_checkpoints(self, upper: int, why: str) -> list[str]:
        """Remove the checkpoints that need a replay from the catalog."""
        try:
            seqno, catalog = self.place.retry_read(lambda: read_catalog(self.place.blob, self.place.meta))
        except EvertideError:
            return []  # a later step rebuilds it
        kept = tuple(entry for entry in catalog.entries if entry.time >= upper)
        if kept == catalog.entries:
            return []
        self._commit(seqno, Catalog(kept, {}, catalog.last, self.place.runtime.new_id()))
        return [f"the catalog now has {_describe(kept)}, because {why}"]

    def _read_member_upper(self) -> int | None:
        """The upper of all member shards; None if they differ or cannot be read."""
        place = self.place
        try:
            generation = read_generation(place.meta)
            logs = [place.shard_log(name) for name in (generation.members if generation else ())]
            uppers = {log.reread().state.upper for log in logs}
        except EvertideError:
            return None
        return uppers.pop() if len(uppers) == 1 else None

    def _read_committed_upper(self) -> int | None:
        place = self.place
        try:
            return TimeLog(COMMITTED, Committed, place.meta, place.runtime, place.settings).upper()
        except EvertideError:
            return None

    def _list_numbers(self) -> list[int]:
        return list_numbers(entry.key for entry in self.place.blob.list(checkpoint_prefix()))

    def _read_manifests(self) -> Iterator[Manifest]:
        """Yield the manifests that are intact, with their own files, newest first."""
        for number in reversed(self._list_numbers()):
            manifest = self._read_manifest(number, [])
            if manifest is not None and not check_files(self.place, manifest.own_files):
                yield manifest

    def _rebuild_catalog(self, numbers: Sequence[int], error: EvertideError) -> list[str]:
        """Step 8, for a missing or damaged catalog."""
        problems: list[str] = []
        entries: list[CatalogEntry] = []
        for number in numbers:
            manifest = self._find_intact(number, problems)
            if manifest is not None and self._can_be_replayed(manifest, problems):
                entries.append(make_catalog_entry(self.place, manifest))
        record = self.place.retry_read(lambda: self.place.meta.head(CHECKPOINTS))
        catalog = Catalog(tuple(entries), {}, max(numbers, default=0), self.place.runtime.new_id())
        self._commit(record.seqno if record else SequenceNumber(0), catalog)
        return [*problems, f"rebuilt the catalog, with {_describe(entries)}; it was not usable: {error.message}"]

    def _remove_damaged(self, seqno: SequenceNumber, catalog: Catalog) -> list[str]:
        """Step 8, for damaged checkpoints."""
        problems: list[str] = []
        kept = tuple(entry for entry in catalog.entries if self._is_sound(entry, problems))
        if kept == catalog.entries:
            return []
        last = max(catalog.last, *(entry.number for entry in catalog.entries))
        self._commit(seqno, Catalog(kept, {}, last, self.place.runtime.new_id()))
        return [*problems, f"the catalog now has {_describe(kept)}"]

    def _commit(self, seqno: SequenceNumber, catalog: Catalog) -> None:
        change(self.place, self.writer, [Write(CHECKPOINTS, seqno, seal(catalog))])

    def _read_manifest(self, number: int, problems: list[str]) -> Manifest | None:
        key = manifest_key(number)
        try:
            manifest = decode_manifest(
                self.place.retry_read(lambda: self.place.blob.get(key)), self.place.blob.path(key)
            )
            if manifest.number != number:
                why = f"the file is the manifest of checkpoint {manifest.number}"
                raise RecordDamaged(path=self.place.blob.path(key), why=why)
        except (Damaged, UnsupportedFormat) as error:
            problems.append(f"checkpoint {number} is not used: {error.message}")
            return None
        return manifest

    def _find_intact(self, number: int, problems: list[str], *, shards: bool = False) -> Manifest | None:
        """The manifest in a directory, if all files that it names are intact; with `shards`, also the parts of tables.

        Missing parts of a view do not matter: the view is recomputed.
        """
        manifest = self._read_manifest(number, problems)
        if manifest is None:
            return None
        try:
            needed = self._without_views(manifest)
            verify_manifest(self.place, needed, needed.all_files if shards else needed.files, self.progress)
        except Damaged as error:
            problems.append(f"checkpoint {number} is not used: {error.message}")
            return None
        return manifest

    def _without_views(self, manifest: Manifest) -> Manifest:
        try:
            names = (
                self.declared.collections(read_pipeline_file(self.place, manifest)) if self.declared is not None else {}
            )
        except Damaged:
            return manifest  # verify_manifest reports it
        views = {name for name, (kind, _) in names.items() if kind is CollectionKind.VIEW}
        shards = {name: files for name, files in manifest.shards.items() if name not in views}
        return msgspec.structs.replace(manifest, shards=shards)

    def _is_sound(self, entry: CatalogEntry, problems: list[str]) -> bool:
        try:
            manifest = self.place.retry_read(lambda: read_manifest(self.place.blob, entry))
            verify_manifest(self.place, manifest, manifest.files, self.progress)
        except Damaged as error:
            problems.append(f"removed checkpoint {entry.number} from the catalog: {error.message}")
            return False
        return True

    def _can_be_replayed(self, manifest: Manifest, problems: list[str]) -> bool:
        place = self.place
        for name in manifest.members:
            found = place.shard_log(name).find()
            if found is None or found.state.finalized:
                continue  # no longer a member; the pipeline decides by the generation
            state = found.state
            if state.upper < manifest.time or state.since > max(manifest.time - 1, 0):
                why = f"shard {name!r} can be read in [{state.since}, {state.upper}) only"
                problems.append(f"checkpoint {manifest.number} at time {manifest.time} is not used: {why}")
                return False
        return True


def _describe(entries: Sequence[CatalogEntry]) -> str:
    named = ", ".join(f"{entry.number} at time {entry.time}" for entry in entries)
    return f"the checkpoints {named}" if named else "no checkpoint: the pipeline rebuilds all state from the tables"
