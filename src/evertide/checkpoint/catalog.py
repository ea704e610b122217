"""`Checkpoints`: publish, list, verify and restore the checkpoints of one storage.

Invariants:

1. A checkpoint is in the catalog and complete, or it is invisible (I11). This object caches no entries: a checkpoint
   whose commit failed is listed nowhere (C1).
2. A restore takes a hold first, in one commit that guards the catalog: the catalog had what the hold names at that
   moment. Garbage collection reads the catalog first and the holds after it, so it finds the checkpoint in one of them.
3. The hold stays until `release`, or until its writer is no longer registered: the engine continues to use parts that
   other writers wrote, even after the checkpoint is dropped. After the restore it holds these parts only.
4. A damaged checkpoint is never used, and never treated as missing: the restore uses an older one and reports the
   damage, or fails (C5, C6). The next publication drops damaged checkpoints, and keeps the intact ones (X8).
5. A restore reads a checkpoint's own files. State parts are verified when they are used, and by a scrub, if the state
   can be computed again when one is damaged. Otherwise a restore reads them, too, to find an older intact checkpoint.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.garbage import CheckpointGarbage, Live, Pins, collect_garbage, find_pins
from evertide.checkpoint.publication import KEEP_MIN, Draft, Publication, RestoredCheckpoint, SkippedCheckpoint
from evertide.checkpoint.records import (
    PIPELINE_FILE,
    STATE_FILE,
    Catalog,
    CatalogEntry,
    Manifest,
    RestoreHold,
    read_catalog,
)
from evertide.checkpoint.verification import OnFileRead, read_file, read_manifest, verify_manifest
from evertide.errors import CheckpointDamaged, Conflict, Damaged, EvertideError, OutcomeUnknown, Unavailable
from evertide.problem import ComponentState, Problem
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob
from evertide.store.meta import Guard, Meta, Write, seal
from evertide.store.paths import CHECKPOINTS, checkpoint_key, restoring_key
from evertide.store.writers import Writer
from evertide.types import Generation, SequenceNumber

logger = logging.getLogger(__name__)

_REMEDY = "Check the disk or bucket that holds the storage. The pipeline replaces the checkpoint by itself."


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    number: int
    time: int
    made_at_s: float
    files: int
    """Other checkpoints need most of them, too."""
    bytes: int
    generation: Generation
    problem: str = ""
    """Why the checkpoint is unusable, if its manifest is damaged; its files are then unknown."""


class Checkpoints:
    """Safe to share between threads; one thread publishes at a time."""

    def __init__(self, blob: Blob, meta: Meta, *, runtime: Runtime, settings: Settings) -> None:
        self.place = StorageContext(blob, meta, runtime, settings)
        self.damage = KnownDamage(runtime)
        self._publishing = threading.Lock()
        self._drafts: dict[str, Set[str] | None] = {}
        """By writer that published here, the state parts of its current or doubtful draft; None if it has no draft."""

    def publish(self, time: int, make: Callable[[], Draft], writer: Writer, keep: int = KEEP_MIN) -> CatalogEntry:
        """Publish a draft of `time`; keep the newest `keep` (at least 2) that are not known to be damaged.

        See `publication`. `make` is called after the claim: from then on the shard parts that it reads are not deleted.
        """
        publication = Publication(self.place, writer, time)
        with self._publishing:
            doubted = self._drafts.get(writer.id)
            self._drafts[writer.id] = doubted or frozenset()
            try:
                number = publication.claim()  # from here on an earlier commit in doubt can no longer arrive
            except EvertideError:
                if doubted is None:
                    self._give_up(publication)
                raise
            try:
                draft = make()
                draft.check()
                self._drafts[writer.id] = frozenset(part.key for part in draft.parts)
                entry = publication.put(number, draft)
            except EvertideError:
                self._give_up(publication)
                raise
            try:
                kept = publication.commit(entry, keep, self.damage.list_catalogued())
            except OutcomeUnknown:
                raise  # the commit may still arrive, so the draft stays
            except EvertideError:
                self._give_up(publication)
                raise
            self._drafts[writer.id] = None
            self.damage.replace(kept)
            return entry

    def _give_up(self, publication: Publication) -> None:
        self._drafts[publication.writer.id] = None
        publication.withdraw()

    def entries(self) -> tuple[CatalogEntry, ...]:
        """The published checkpoints, newest first."""
        return self._read_catalog()[1].entries[::-1]

    def read(self, entry: CatalogEntry) -> Manifest:
        """Return the manifest if it is the published one. `damage` records a damaged one."""
        try:
            return self.place.retry_read(lambda: read_manifest(self.place.blob, entry))
        except Damaged as error:
            self._add_damage(entry, error)
            raise

    def newest(self) -> tuple[CatalogEntry, Manifest] | None:
        """The newest checkpoint that is not known to be damaged and whose manifest is readable."""
        entries = self.entries()
        self.damage.replace(entries)
        for entry in entries:
            if entry.number not in self.damage.list_catalogued():
                try:
                    return entry, self.read(entry)
                except Damaged as error:
                    logger.error("checkpoint %d at time %d is damaged: %s", entry.number, entry.time, error)  # noqa: TRY400
        return None

    def verify(self, entry: CatalogEntry, progress: OnFileRead | None = None, *, shards: bool = False) -> Manifest:
        """Read everything that a restart needs; `CheckpointDamaged` names every file that is missing or damaged.

        With `shards`, also read the shards' parts, which only a storage without its Meta needs from the checkpoint.
        """
        manifest = self.read(entry)
        verify_manifest(self.place, manifest, manifest.all_files if shards else manifest.files, progress)
        return manifest

    def note_damaged_file(self, error: Damaged) -> None:
        """Add the checkpoints that name the file of this error to `damage`, so that a new one replaces them."""
        for entry in self.entries():
            if self._names(entry, error.path):
                self.damage.add(entry, error)

    def _names(self, entry: CatalogEntry, path: str) -> bool:
        try:
            return any(self.place.blob.path(file.key) == path for file in self.read(entry).files)
        except Damaged:
            return False

    def restore(
        self, writer: Writer, progress: OnFileRead | None = None, *, reads_parts: bool = False
    ) -> RestoredCheckpoint | None:
        """Return the newest intact checkpoint, under a hold; None if none was ever published.

        With `reads_parts`, its state parts are verified as well.

        `RestoredCheckpoint.skipped` has newer, damaged ones. If all are damaged, `CheckpointDamaged` names all files.
        """
        entries = self._hold(writer)
        skipped: list[SkippedCheckpoint] = []
        for entry in entries[::-1]:
            try:
                restored = self._restore_entry(entry, progress, skipped, reads_parts=reads_parts)
            except Damaged as error:
                writer.check_registered()  # without its hold, garbage collection may have deleted files
                logger.warning("checkpoint %d at time %d is not used: %s", entry.number, entry.time, error)
                self.damage.add(entry, error)
                skipped.append(SkippedCheckpoint(entry, error))
            else:
                self._narrow(writer, entry)
                return restored
        if not skipped:
            return None
        self.release(writer)
        files = "; ".join(f"checkpoint {one.entry.number}: {one.error.message}" for one in skipped)
        why = f"none of {len(skipped)} checkpoints is intact"
        raise CheckpointDamaged(path=self.place.meta.path(CHECKPOINTS), why=why, files=files)

    def hold(self, entry: CatalogEntry, writer: Writer) -> None:
        """Keep everything that a checkpoint names until `release`. Raise `Conflict` if it is not in the catalog."""
        while True:
            seqno, catalog = self._read_catalog()
            if entry not in catalog.entries:
                why = f"checkpoint {entry.number} is not in the catalog any more"
                raise Conflict(where=self.place.meta.path(CHECKPOINTS), why=why)
            if self._write_hold(writer, [entry], [Guard(CHECKPOINTS, seqno)]):
                return

    def release(self, writer: Writer) -> None:
        """Release the hold of `restore`: the engine uses no part of that checkpoint any more, or ends."""
        key = restoring_key(writer.id)
        while True:
            record = self.place.retry_read(lambda: self.place.meta.head(key))
            if record is None:
                return
            if self.place.commit([Write(key, record.seqno, None)]) is None:
                return

    def summarize(self) -> list[CheckpointSummary]:
        """The published checkpoints, newest first, for display."""
        return [self._summarize(entry) for entry in self.entries()]

    def _summarize(self, entry: CatalogEntry) -> CheckpointSummary:
        known = (entry.number, entry.time, entry.made_at_s)
        try:
            manifest = self.read(entry)
        except Damaged as error:
            return CheckpointSummary(*known, 0, 0, Generation(0), error.message)
        size = sum(file.bytes for file in manifest.files)
        return CheckpointSummary(*known, len(manifest.files), size, manifest.generation)

    def find_pins(self) -> Pins:
        """The blobs that garbage collection must keep. Raises if any manifest is unreadable."""
        try:
            return find_pins(self.place, dict(self._drafts))
        except Damaged:
            self._find_damage()
            raise

    def collect_garbage(self, live: Live, writer: Writer) -> CheckpointGarbage:
        """Delete state parts and checkpoints that are not needed; see `evertide.checkpoint.garbage`."""
        found = collect_garbage(self.place, live, writer, lambda: dict(self._drafts))
        if found.is_hold_over:
            self.release(writer)
        if found.refused is not None:
            self._find_damage()
        return found

    def _find_damage(self) -> None:
        """Read all manifests to find the damaged ones, so that they are replaced. The caller has the error."""
        with suppress(EvertideError):
            for entry in self.entries():
                with suppress(Damaged):
                    self.read(entry)

    def _add_damage(self, entry: CatalogEntry, error: Damaged) -> None:
        """Record damage, unless a peer has dropped the checkpoint meanwhile. The caller raises the error."""
        with suppress(EvertideError):
            if entry in self.entries():
                self.damage.add(entry, error)

    def _restore_entry(
        self, entry: CatalogEntry, progress: OnFileRead | None, skipped: list[SkippedCheckpoint], *, reads_parts: bool
    ) -> RestoredCheckpoint:
        manifest = self.read(entry)
        verify_manifest(self.place, manifest, manifest.files if reads_parts else manifest.own_files, progress)
        state, pipeline = (
            read_file(self.place, manifest.file(key, self.place.blob.path(entry.key)))
            for key in (checkpoint_key(entry.number, name) for name in (STATE_FILE, PIPELINE_FILE))
        )
        return RestoredCheckpoint(entry, manifest, state, pipeline, tuple(skipped))

    def _read_catalog(self) -> tuple[SequenceNumber, Catalog]:
        return self.place.retry_read(lambda: read_catalog(self.place.blob, self.place.meta))

    def _hold(self, writer: Writer) -> tuple[CatalogEntry, ...]:
        """Hold all checkpoints in the catalog, as of one moment."""
        while True:
            seqno, catalog = self._read_catalog()
            if not catalog.entries or self._write_hold(writer, catalog.entries, [Guard(CHECKPOINTS, seqno)]):
                return catalog.entries

    def _narrow(self, writer: Writer, entry: CatalogEntry) -> None:
        """Reduce the hold to the state parts. If this fails, the hold keeps more than necessary."""
        try:
            while not self._write_hold(writer, [entry], is_read=True):
                pass  # the hold was ended: the next attempt raises
        except (Unavailable, OutcomeUnknown) as error:
            logger.warning("could not release checkpoint files that are no longer read; they stay for now: %s", error)

    def _write_hold(
        self, writer: Writer, entries: Sequence[CatalogEntry], guards: Sequence[Guard] = (), *, is_read: bool = False
    ) -> bool:
        key, runtime = restoring_key(writer.id), self.place.runtime
        record = self.place.retry_read(lambda: self.place.meta.head(key))
        hold = RestoreHold(writer.id, tuple(entries), is_read, runtime.wall_s(), runtime.new_id())
        write = Write(key, record.seqno if record else 0, seal(hold))
        registered = writer.guards()[:1]  # of any generation: reading changes nothing
        stale = self.place.commit([write], [*registered, *guards])
        if stale is not None:
            writer.check(stale)
        return stale is None


@dataclass(frozen=True, slots=True)
class DamagedCheckpoint:
    entry: CatalogEntry
    error: EvertideError
    since_s: float
    """When this process found it."""
    is_replaced: bool = False
    """Whether it has left the catalog, replaced by a newer checkpoint."""

    def problem(self) -> Problem:
        named = f"checkpoint {self.entry.number} at time {self.entry.time} is damaged and is not used"
        now = "a newer one has replaced it" if self.is_replaced else "a new one is due"
        why = f"{named}; {now}: {self.error.message}"
        return Problem(ComponentState.WARNING, "checkpoint_damaged", why, _REMEDY, self.since_s)


class KnownDamage:
    """The checkpoints that this process found damaged. Safe to share between threads.

    It is in memory only: the next process that restores finds the damage again. A damaged checkpoint stays in the
    catalog, and so does every intact one, until the next publication drops it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.Lock()
        self._found: dict[int, DamagedCheckpoint] = {}

    def add(self, entry: CatalogEntry, error: EvertideError) -> None:
        with self._lock:
            if entry.number not in self._found:
                self._found[entry.number] = DamagedCheckpoint(entry, error, self._runtime.wall_s())

    def list_catalogued(self) -> frozenset[int]:
        """The numbers of those that no newer checkpoint has replaced."""
        with self._lock:
            return frozenset(number for number, one in self._found.items() if not one.is_replaced)

    def replace(self, catalog: tuple[CatalogEntry, ...]) -> None:
        """Mark those that are no longer in the catalog."""
        numbers = {entry.number for entry in catalog}
        with self._lock:
            for number, one in self._found.items():
                if number not in numbers:
                    self._found[number] = DamagedCheckpoint(one.entry, one.error, one.since_s, is_replaced=True)

    def problems(self) -> list[Problem]:
        with self._lock:
            return [one.problem() for _, one in sorted(self._found.items())]
