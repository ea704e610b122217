"""`Checkpoints`: the checkpoints of one storage; publish, look at, verify and restore them.

This is the face of the package. Each piece is a module:

    draft, manifest, records   what is handed over; what lies on the blob; what lies in Meta
    publication                how a checkpoint comes to be
    verification               reading everything before it is used
    collection                 deleting what nobody needs, and what must stay
    fsck, repair, revival      looking at a whole storage, and bringing back what can be
    archive                    a checkpoint as one file

Invariants:

1. A checkpoint is in the catalog, and then complete, or it is invisible (I11). Nothing is remembered here: what a
   commit that failed would have published is listed nowhere (C1).
2. Restoring takes a hold first, in one commit that guards the catalog: what the hold names was catalogued at that
   moment, and a collector that reads the catalog first and the holds after it cannot miss both.
3. The hold stays until `release`, or until its writer is not registered any more: the engine goes on using parts that
   others wrote, also when the checkpoint they came from is dropped. Once all was read it holds these parts only.
4. A damaged checkpoint is never used, and never taken for a missing one: an older one is, loudly, or nothing (C5, C6).
   Once known, it counts for nothing: the next publication drops it, and keeps the intact ones (X8).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence, Set
from contextlib import suppress

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.damage import KnownDamage
from evertide.checkpoint.draft import Draft, Restored, Skipped
from evertide.checkpoint.garbage import CheckpointGarbage, Live, Pins, collect, pinned
from evertide.checkpoint.manifest import PIPELINE_FILE, STATE_FILE, Manifest
from evertide.checkpoint.publication import KEEP_MIN, Publication
from evertide.checkpoint.records import Catalog, CatalogEntry, Restoring, read_catalog
from evertide.checkpoint.verification import OnProgress, read_file, read_manifest, verify_manifest
from evertide.errors import CheckpointDamaged, Conflict, Damaged, EvertideError, OutcomeUnknown, Unavailable
from evertide.runtime import Runtime
from evertide.settings import Settings
from evertide.store.blob import Blob
from evertide.store.meta import Guard, Meta, Write
from evertide.store.paths import CHECKPOINTS, checkpoint_key, restoring_key
from evertide.store.sealed import seal
from evertide.store.writers import Writer

__all__ = ["Checkpoints"]

logger = logging.getLogger(__name__)


class Checkpoints:
    """Safe to share between threads; one publishes at a time."""

    def __init__(self, blob: Blob, meta: Meta, *, runtime: Runtime, settings: Settings) -> None:
        self.place = StorageContext(blob, meta, runtime, settings)
        self.damage = KnownDamage(runtime)
        self._publishing = threading.Lock()
        self._drafts: dict[str, Set[str] | None] = {}
        """Per writer that published here, the state parts of the draft under way or in doubt; None if there is none."""

    def publish(self, time: int, make: Callable[[], Draft], writer: Writer, keep: int = KEEP_MIN) -> CatalogEntry:
        """Publish a draft of `time`; keep the newest `keep` (at least 2) that are not known to be damaged.

        See `publication`. `make` is called after the claim: what it reads of the shards is not deleted from then on.
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
                kept = publication.commit(entry, keep, self.damage.catalogued())
            except OutcomeUnknown:
                raise  # it may still arrive, so the draft stays under way
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
        """The published checkpoints, the newest first."""
        return self._catalog()[1].entries[::-1]

    def read(self, entry: CatalogEntry) -> Manifest:
        """The manifest, if it is the one that was published. A damaged one is remembered in `damage`."""
        try:
            return self.place.retry_read(lambda: read_manifest(self.place.blob, entry))
        except Damaged as error:
            self._add_damage(entry, error)
            raise

    def newest(self) -> tuple[CatalogEntry, Manifest] | None:
        """The newest checkpoint that is not known to be damaged and whose manifest can be read."""
        entries = self.entries()
        self.damage.replace(entries)
        for entry in entries:
            if entry.number not in self.damage.catalogued():
                try:
                    return entry, self.read(entry)
                except Damaged as error:
                    logger.error("checkpoint %d at time %d is damaged: %s", entry.number, entry.time, error)  # noqa: TRY400
        return None

    def verify(self, entry: CatalogEntry, progress: OnProgress | None = None, *, shards: bool = False) -> Manifest:
        """Read everything that a restart needs; `CheckpointDamaged` names every file that is missing or damaged.

        With `shards` also the shards' parts, which only a storage that lost its Meta needs from the checkpoint.
        """
        manifest = self.read(entry)
        verify_manifest(self.place, manifest, progress, shards=shards)
        return manifest

    def restore(self, writer: Writer, progress: OnProgress | None = None) -> Restored | None:
        """The newest checkpoint that verifies, under a hold; None if there never was one.

        `Restored.skipped` are newer ones that are damaged. If all are, `CheckpointDamaged` names everything.
        """
        entries = self._hold(writer)
        skipped: list[Skipped] = []
        for entry in entries[::-1]:
            try:
                restored = self._restored(entry, progress, skipped)
            except Damaged as error:
                writer.check_registered()  # or the hold is gone, and a collector took what looks damaged
                logger.warning("checkpoint %d at time %d is not used: %s", entry.number, entry.time, error)
                self.damage.add(entry, error)
                skipped.append(Skipped(entry, error))
            else:
                self._narrow(writer, entry)
                return restored
        if not skipped:
            return None
        self.release(writer)
        files = "; ".join(f"checkpoint {one.entry.number}: {one.error}" for one in skipped)
        why = f"none of {len(skipped)} checkpoints is intact"
        raise CheckpointDamaged(path=self.place.meta.path(CHECKPOINTS), why=why, files=files)

    def hold(self, entry: CatalogEntry, writer: Writer) -> None:
        """Keep everything that a checkpoint names, until `release`. `Conflict` if the catalog does not have it."""
        while True:
            seqno, catalog = self._catalog()
            if entry not in catalog.entries:
                why = f"checkpoint {entry.number} is not in the catalog"
                raise Conflict(where=self.place.meta.path(CHECKPOINTS), why=why)
            if self._holds(writer, [entry], [Guard(CHECKPOINTS, seqno)]):
                return

    def release(self, writer: Writer) -> None:
        """Give back the hold of `restore`: the engine uses no part of that checkpoint any more, or ends."""
        key = restoring_key(writer.id)
        while True:
            record = self.place.retry_read(lambda: self.place.meta.head(key))
            if record is None:
                return
            if self.place.commit([Write(key, record.seqno, None)]) is None:
                return

    def pinned(self) -> Pins:
        """What checkpoints need; for `Maintenance`, `Shard.collect` and `collect`. Raises if that cannot be told."""
        try:
            return pinned(self.place, dict(self._drafts))
        except Damaged:
            self._find_damage()
            raise

    def collect(self, live: Live, writer: Writer) -> CheckpointGarbage:
        """Delete state parts and checkpoints that nobody needs; see `evertide.checkpoint.garbage`."""
        found = collect(self.place, live, writer, lambda: dict(self._drafts))
        if found.is_hold_over:
            self.release(writer)
        if found.refused is not None:
            self._find_damage()
        return found

    def _find_damage(self) -> None:
        """Read all manifests, so that those that are damaged are known and replaced. The caller has the error."""
        with suppress(EvertideError):
            for entry in self.entries():
                with suppress(Damaged):
                    self.read(entry)

    def _add_damage(self, entry: CatalogEntry, error: Damaged) -> None:
        """What a peer dropped and collected meanwhile is gone rightly. The caller raises the error."""
        with suppress(EvertideError):
            if entry in self.entries():
                self.damage.add(entry, error)

    def _restored(self, entry: CatalogEntry, progress: OnProgress | None, skipped: list[Skipped]) -> Restored:
        manifest = self.verify(entry, progress)
        state, pipeline = (
            read_file(self.place, manifest.file(key, self.place.blob.path(entry.key)))
            for key in (checkpoint_key(entry.number, name) for name in (STATE_FILE, PIPELINE_FILE))
        )
        return Restored(entry, manifest, state, pipeline, tuple(skipped))

    def _catalog(self) -> tuple[int, Catalog]:
        return self.place.retry_read(lambda: read_catalog(self.place.blob, self.place.meta))

    def _hold(self, writer: Writer) -> tuple[CatalogEntry, ...]:
        """Hold all that is catalogued, as of one moment."""
        while True:
            seqno, catalog = self._catalog()
            if not catalog.entries:
                return ()
            if self._holds(writer, catalog.entries, [Guard(CHECKPOINTS, seqno)]):
                return catalog.entries

    def _narrow(self, writer: Writer, entry: CatalogEntry) -> None:
        """Housekeeping: if it fails the hold keeps more than it has to."""
        try:
            while not self._holds(writer, [entry], is_read=True):
                pass  # the hold was ended: the next look says so
        except (Unavailable, OutcomeUnknown) as error:
            logger.warning("the hold on checkpoints stays as wide as it is: %s", error)

    def _holds(
        self, writer: Writer, entries: Sequence[CatalogEntry], guards: Sequence[Guard] = (), *, is_read: bool = False
    ) -> bool:
        key, runtime = restoring_key(writer.id), self.place.runtime
        record = self.place.retry_read(lambda: self.place.meta.head(key))
        hold = Restoring(writer.id, tuple(entries), is_read, runtime.wall_s(), runtime.new_id())
        write = Write(key, record.seqno if record else 0, seal(hold))
        registered = writer.guards()[:1]  # whatever the generation: reading changes nothing
        stale = self.place.commit([write], [*registered, *guards])
        if stale is not None:
            writer.check(stale)
        return stale is None
