"""`check`: read a whole storage, report everything that is damaged, and change nothing.

It works in this order, so that a pipeline may run meanwhile. Damage of one object does not stop the check of the next:

1. List all blobs, then the writers, then all records of Meta; unseal each as the type that it should have.
2. Open each shard as a new reader would, from its roll-up on; read the catalog, the manifests and the journal.
3. Read every file that any of these names, once, and compare it with its length and digest.
4. A listed blob is an orphan if it is below one of Evertide's prefixes, nothing names it, and its writer is not
   registered. Orphans are reported, but are no damage. If a record that names files is unreadable, orphans are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from evertide.checkpoint.context import CollectionKind, ShardCollections, StorageContext
from evertide.checkpoint.meta_restore import is_lost
from evertide.checkpoint.records import (
    Catalog,
    CatalogEntry,
    RestoreHold,
    StateFile,
    list_part_files,
    parse_number,
    read_catalog,
    read_holds,
)
from evertide.checkpoint.verification import OnFileRead, check_files, read_manifest
from evertide.errors import BlobMissing, Damaged, EvertideError, InvalidInput, RecordDamaged, UnsupportedFormat
from evertide.journal.producers import Producer
from evertide.journal.records import Bound, Committed
from evertide.journal.staging import list_staged
from evertide.journal.time_log import TimeLog
from evertide.shard.hold import HoldRecord
from evertide.shard.lease import LeaseRecord
from evertide.shard.shard_log import Rollup
from evertide.shard.state import parts_removed
from evertide.store.meta import Record, check_seal, unseal
from evertide.store.open import FORMAT_TEXT, FORMAT_VERSION
from evertide.store.paths import (
    CHECKPOINTS,
    COMMITTED,
    FORMAT,
    GENERATION,
    JOURNAL,
    PIPELINE,
    STORAGE,
    Name,
    beat_key,
    checkpoint_prefix,
    hold_key,
    part_prefix,
    producer_key,
    restoring_key,
    rollup_key,
    rollup_prefix,
    shard_key,
    staged_prefix,
    state_prefix,
    writer_key,
)
from evertide.store.writers import GenerationRecord, HeartbeatRecord, Registration, read_generation, read_registrations

LOST = "lost+found/"
"""Where a repair moves orphans."""

_RECORDS: dict[str, type] = {
    rollup_key(""): Rollup,
    hold_key(""): HoldRecord,
    "lease/": LeaseRecord,
    writer_key(""): Registration,
    beat_key(""): HeartbeatRecord,
    GENERATION: GenerationRecord,
    JOURNAL: Bound,
    COMMITTED: Committed,
    CHECKPOINTS: Catalog,
    restoring_key(""): RestoreHold,
    producer_key(""): Producer,
}
"""By the prefix of the key. Shards are opened instead; other packages check their own keys."""

_VIEW = (CollectionKind.VIEW, "")
_META = "`evertide fsck --repair` restores it from the newest intact checkpoint."
_CATALOG = "`evertide fsck --repair` rebuilds it from the intact checkpoints."
_CHECKPOINT = "`evertide fsck --repair` removes this checkpoint; the pipeline uses another one, or the tables."
_PART = (
    "`evertide fsck --repair` recomputes a view, and restores a table's rows from a checkpoint if one still has them; "
    "otherwise restore the file from a backup."
)
_TRANSIENT = "`evertide fsck --repair` removes the record; a process that needs it writes it again."
_SHARD = (
    "`evertide fsck --repair` recomputes a view; for a table it rebuilds the record from a checkpoint and the log, or "
    "goes back to a checkpoint and recomputes the later transactions from their input."
)
_STAGED = "Restore the file from a backup: it has input that is not in the tables yet and cannot be sent again."
_FORMAT = f"`evertide fsck --repair` writes it again: the format version and a newline, `{FORMAT_VERSION}`."
_STORAGE = "`evertide fsck --repair` writes it again."


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind` is a stable code, `path` the location for people."""

    kind: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class Report:
    problems: tuple[Finding, ...]
    orphans: tuple[str, ...]
    """The keys of blobs that are not needed."""
    unknown_orphans: bool
    """Whether a record that names files was unreadable, so that orphans are unknown."""
    shards: int
    checkpoints: int
    transactions: int
    """In the journal."""
    files: int
    bytes: int
    """The size of all files that were read."""
    damaged_records: Mapping[str, str] = field(default_factory=dict)
    """By Meta key, the reason; without those of shards."""
    damaged_shards: Mapping[str, str] = field(default_factory=dict)
    """By shard, the reason: its log, roll-up or holds."""
    damaged_parts: Mapping[str, str] = field(default_factory=dict)
    """By shard, the reason."""

    @property
    def is_sound(self) -> bool:
        return not self.problems


def check(
    place: StorageContext,
    progress: OnFileRead | None = None,
    collections: ShardCollections | None = None,
) -> Report:
    """See the header. Everything that looks wrong is checked twice: a pipeline may have changed it between two reads.

    `collections` has the kind and name of each shard's collection, for problems. It is given for a storage with a
    pipeline: then the records of the pipeline must exist and agree with each other.
    """
    listed = _list_keys(place)
    found = _Check(place, collections)
    found.run()
    if found.problems:
        again = _Check(place, collections)
        again.run()
        again.problems = [problem for problem in again.problems if problem in found.problems]
        again.needed |= found.keys()
        found = again
    damaged = {error.path: error for error in check_files(place, found.named, progress)}
    if damaged:
        again = _Check(place, collections)
        again.run()
        for file, remedy in found.named.items():
            error = damaged.get(place.blob.path(file.key))
            if error is not None and file in again.named:
                found.add(error, remedy, found.holders.get(file.key, ""))
                if file.key in found.part_shards:
                    is_part = file.key.startswith(part_prefix())
                    into = found.damaged_parts if is_part else found.damaged_shards
                    into[found.part_shards[file.key]] = error.message
    return found.report(listed)


@dataclass(slots=True)
class _Check:
    """One pass over everything that names files, and the problems found."""

    place: StorageContext
    collections: ShardCollections | None
    problems: list[Finding] = field(default_factory=list)
    named: dict[StateFile, str] = field(default_factory=dict)
    """Every file that must exist, and the remedy if it does not."""
    needed: set[str] = field(default_factory=set)
    """Further keys that are not orphans."""
    numbers: set[int] = field(default_factory=set)
    """Checkpoints whose directories are not orphans."""
    writers: set[str] = field(default_factory=set)
    damaged_records: dict[str, str] = field(default_factory=dict)
    damaged_shards: dict[str, str] = field(default_factory=dict)
    damaged_parts: dict[str, str] = field(default_factory=dict)
    part_shards: dict[str, str] = field(default_factory=dict)
    """By the key of a part, the shard whose state names it."""
    holders: dict[str, str] = field(default_factory=dict)
    """By the key of a part, the collection and the transactions whose rows it has."""
    uppers: dict[str, int] = field(default_factory=dict)
    """By shard, its upper, if it could be read and is not finalized."""
    is_complete: bool = True
    shards: int = 0
    checkpoints: int = 0
    transactions: int = 0

    def run(self) -> None:
        """Read the writers first: a writer that is not registered names no further blobs."""
        meta = self.place.meta
        self.writers = self._try(lambda: set(self.place.retry_read(lambda: read_registrations(meta))), "") or set()
        self._check_format()
        heads = self._try(lambda: self.place.retry_read(lambda: meta.heads("")), _META)
        if heads is not None:
            self._check_storage()
            self._check_records(heads)
            self._check_shards(heads)
            self._try(self._check_members, _META, GENERATION)
            self._try(self._check_journal, _META, JOURNAL)
            self._try(self._check_committed, _META, COMMITTED)
            self._try(self._check_catalog, _CATALOG, CHECKPOINTS)

    def keys(self) -> set[str]:
        return self.needed | {file.key for file in self.named}

    def report(self, listed: list[str]) -> Report:
        return Report(
            problems=tuple(dict.fromkeys(self.problems)),
            orphans=self._drop_deleted(list(self._orphans(listed))) if self.is_complete else (),
            unknown_orphans=not self.is_complete,
            shards=self.shards,
            checkpoints=self.checkpoints,
            transactions=self.transactions,
            files=len(self.named),
            bytes=sum(file.bytes for file in self.named),
            damaged_records=self.damaged_records,
            damaged_shards=self.damaged_shards,
            damaged_parts=self.damaged_parts,
        )

    def add(self, error: EvertideError, remedy: str, holds: str = "") -> None:
        facts = {name: value for name, value in error.facts.items() if name not in {"path", "where", "why"} and value}
        path = str(getattr(error, "path", "") or getattr(error, "where", ""))
        why = ", ".join(
            [str(getattr(error, "why", error.summary)), *(f"{name} {value}" for name, value in facts.items())]
        )
        why = f"{why}; {holds}" if holds else why
        self.problems.append(Finding(error.error_code, path, why, remedy or error.remedy))

    def _try(self, call: Callable[[], Any], remedy: str, key: str = "") -> Any:
        """Return the result of the call, or None after adding its error as a problem, also of `key` if given."""
        try:
            return call()
        except (Damaged, UnsupportedFormat, InvalidInput) as error:
            self.add(error, "" if isinstance(error, UnsupportedFormat) else remedy)
            self.is_complete = False
            if key and not isinstance(error, UnsupportedFormat):
                self.damaged_records.setdefault(key, error.message)
            return None

    def _check_format(self) -> None:
        blob = self.place.blob
        try:
            text = self.place.retry_read(lambda: blob.get(FORMAT))
        except BlobMissing as error:
            self.add(error, _FORMAT)
            return
        if text != FORMAT_TEXT:
            self.add(
                RecordDamaged(path=blob.path(FORMAT), why=f"expected the format version, found {text[:32]!r}"), _FORMAT
            )

    def _check_storage(self) -> None:
        meta = self.place.meta
        if is_lost(meta):
            why = "Meta has no record of this storage: Meta was lost, or belongs to another storage"
            self.add(RecordDamaged(path=meta.path(STORAGE), why=why), _META)
            self.is_complete = False
        elif (head := meta.head(STORAGE)) is None or head.data != FORMAT_TEXT or head.seqno < 2:
            why = "the record that links Meta to FORMAT is missing or damaged"
            self.add(RecordDamaged(path=meta.path(STORAGE), why=why), _STORAGE)

    def _check_records(self, heads: dict[str, Record]) -> None:
        """Check the newest record of each key. Shards, journal and catalog are checked separately."""
        meta = self.place.meta
        own = (shard_key(""), rollup_key(""), hold_key(""))
        for key, record in heads.items():
            if key in {STORAGE, JOURNAL, CHECKPOINTS} or key.startswith(own):
                continue
            kind = next((kind for prefix, kind in _RECORDS.items() if key == prefix or _is_below(key, prefix)), None)
            remedy = _META if key in {GENERATION, COMMITTED, PIPELINE} else _TRANSIENT
            if kind is None and self.collections is not None:
                self._try(partial(check_seal, record.data, meta.path(key)), remedy, key)
            elif kind is not None:
                self._try(partial(unseal, record.data, kind, meta.path(key)), remedy, key)

    def _check_shards(self, heads: dict[str, Record]) -> None:
        """Check all shards, including those of which only the address of a roll-up, or the holds, remain."""
        names = {
            key.removeprefix(prefix): None
            for prefix in (shard_key(""), rollup_key(""), hold_key(""))
            for key in heads
            if key.startswith(prefix)
        }
        for name in names:
            try:
                self._check_shard(name)
            except (Damaged, UnsupportedFormat, InvalidInput) as error:
                is_newer = isinstance(error, UnsupportedFormat)
                self.add(
                    error,
                    "" if is_newer else _META if is_lost(self.place.meta) else _SHARD,
                    self._name_collection(name),
                )
                self.is_complete = False
                if not is_newer:
                    self.damaged_shards[name] = error.message

    def _check_shard(self, name: str) -> None:
        place = self.place
        log = place.shard_log(name)
        version = log.reread()
        self.shards += 1
        self.named.update(dict.fromkeys(list_part_files(version.state), _PART))
        for batch in version.state.batches:
            for part in (one for one in batch.parts if one.key):
                times = f"transactions {batch.lower} to {batch.upper - 1}, {part.rows} changes"
                self.holders[part.key] = f"{self._name_collection(name)}, {times}"
                self.part_shards[part.key] = name
        self.needed |= {
            key for record in place.meta.scan(log.key) for key in parts_removed(log.decode_entry(record).diff)
        }
        rollup = log.read_newest_rollup()
        if rollup is not None:
            self.named[StateFile(rollup[1].key, rollup[1].bytes, rollup[1].checksum)] = _SHARD
            self.part_shards[rollup[1].key] = name
        hold = place.meta.head(hold_key(name))
        if hold is None:
            raise RecordDamaged(path=place.meta.path(hold_key(name)), why="the record of since and holds is missing")
        unseal(hold.data, HoldRecord, place.meta.path(hold_key(name)))
        if not version.state.finalized:
            self.uppers[name] = version.state.upper

    def _name_collection(self, shard: str) -> str:
        kind, name = (self.collections or {}).get(shard, ("shard", shard))
        return f"{kind} {name!r}"

    def _check_members(self) -> None:
        meta = self.place.meta
        generation = read_generation(meta)
        members = generation.members if generation else ()
        is_pipeline = self.collections is not None
        if is_pipeline and generation is None and meta.head(PIPELINE) is not None:
            why = "the record is missing, but the pipeline has a definition"
            raise RecordDamaged(path=meta.path(GENERATION), why=why)
        if is_pipeline and members and meta.head(PIPELINE) is None:
            self.damaged_records[PIPELINE] = "the record is missing"
            self.add(
                RecordDamaged(path=meta.path(PIPELINE), why="the record is missing, but a generation exists"), _META
            )
        for name in members:
            if meta.head(shard_key(name)) is None:
                error = RecordDamaged(path=meta.path(shard_key(name)), why="the log of a member shard is missing")
                self.add(error, _SHARD, self._name_collection(name))
                self.damaged_shards[name] = error.message

    def _check_committed(self) -> None:
        """Check that all records are readable and consecutive, and that the member shards have reached the last one."""
        place, meta = self.place, self.place.meta
        found = TimeLog(COMMITTED, Committed, meta, place.runtime, place.settings).read_all()
        generation = read_generation(meta)
        uppers = {self.uppers[name] for name in (generation.members if generation else ()) if name in self.uppers}
        upper = found[-1].value.time + 1 if found else 0
        if self.collections is not None and uppers and uppers != {upper}:
            why = f"it records {upper} transactions as committed, but the member shards have {sorted(uppers)}"
            raise RecordDamaged(path=meta.path(COMMITTED), why=why)

    def _check_journal(self) -> None:
        place, meta = self.place, self.place.meta
        try:
            outcome = meta.head(COMMITTED)
            done = unseal(outcome.data, Committed, meta.path(COMMITTED)).time if outcome else -1
        except Damaged:  # reported separately
            done = max(self.uppers.values(), default=0) - 1
        records = TimeLog(JOURNAL, Bound, meta, place.runtime, place.settings).read_all()
        if self.collections is not None and (records[-1].value.time if records else -1) < done:
            why = f"the journal lacks transaction {done}, which is committed"
            raise RecordDamaged(path=meta.path(JOURNAL), why=why)
        for record in records:
            bound = record.value
            self.transactions += 1
            for staged in list_staged(bound):
                if not staged.has_blob:
                    continue
                self.needed.add(staged.key)
                if bound.time > done:
                    self.named[StateFile(staged.key, staged.bytes, staged.checksum)] = _STAGED

    def _check_catalog(self) -> None:
        place = self.place
        if is_lost(place.meta) and place.meta.head(CHECKPOINTS) is None:
            return  # already reported
        _, catalog = place.retry_read(lambda: read_catalog(place.blob, place.meta))
        self.numbers |= set(catalog.claims.values())
        for entry in catalog.entries:
            self.numbers.add(entry.number)
            self._try(partial(self._check_checkpoint, entry), _CHECKPOINT)
        self.checkpoints = len(catalog.entries)
        for _, hold in place.retry_read(lambda: read_holds(place.meta)).values():
            for entry in hold.entries:
                self._keep_held(entry, is_over=hold.writer not in self.writers)

    def _check_checkpoint(self, entry: CatalogEntry) -> None:
        place = self.place
        manifest = place.retry_read(lambda: read_manifest(place.blob, entry))
        self.needed |= set(manifest.names())
        for file in manifest.files:
            self.named.setdefault(file, _CHECKPOINT)
        for shard, files in manifest.shards.items():
            # Parts that only a view needs from a checkpoint are no loss: the view is recomputed.
            kind = None if self.collections is None else self.collections.get(shard, _VIEW)[0]
            if kind is not CollectionKind.VIEW:
                self.named.update({file: _CHECKPOINT for file in files if file not in self.named})

    def _keep_held(self, entry: CatalogEntry, *, is_over: bool) -> None:
        """Keep what a live writer's hold names from being an orphan; files of it that are deleted are no damage."""
        if is_over:
            return
        self.numbers.add(entry.number)
        with suppress(Damaged):
            self.needed |= set(self.place.retry_read(lambda: read_manifest(self.place.blob, entry)).names())

    def _drop_deleted(self, orphans: list[str]) -> tuple[str, ...]:
        """Drop the keys that garbage collection has deleted since the listing."""
        there = set(_list_keys(self.place)) if orphans else set()
        return tuple(key for key in orphans if key in there)

    def _orphans(self, listed: list[str]) -> Iterator[str]:
        """A claimed directory is never an orphan: even a silent writer may still publish it."""
        ours = tuple(prefix() for prefix in (part_prefix, rollup_prefix, state_prefix, staged_prefix))
        named = self.keys()
        for key in listed:
            if key.startswith(checkpoint_prefix()):
                if parse_number(key) not in {None, *self.numbers}:
                    yield key
            elif key.startswith(ours) and key not in named:
                name = Name.parse(key)
                if name is not None and name.writer not in self.writers:
                    yield key


def _list_keys(place: StorageContext) -> list[str]:
    return [entry.key for entry in place.retry_read(lambda: list(place.blob.list("")))]


def _is_below(key: str, prefix: str) -> bool:
    return prefix.endswith("/") and key.startswith(prefix)
