"""`repair`: brings back what can be, says what cannot, and deletes nothing.

1. Nobody else may be at work: a writer that is registered and not silent is a `Conflict`. The repair is one itself.
2. If Meta is lost: it is brought back from the newest checkpoint of which every file is intact, those of the shards,
   too (`evertide.checkpoint.revival`). What came after that checkpoint is lost, and said.
3. If only the catalog is missing or damaged (C4): it is made anew from the directories that are intact. Left out is
   what cannot be replayed from: a checkpoint whose time a member shard has not reached, or has forgotten.
4. If checkpoints of the catalog are damaged: they are taken out of it.
5. What nobody names then is moved below `lost+found/`, under its own name: first the copy, then the original goes. That
   is what collection would delete; a repair does not, as nobody knows what led to it.

Each step is one commit, or may be done again, so a repair that is cut short is simply repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from evertide.checkpoint.fsck import LOST, Report, check
from evertide.checkpoint.manifest import Manifest, decode_manifest, manifest_key
from evertide.checkpoint.place import Place
from evertide.checkpoint.records import Catalog, Entry, directories, read_catalog
from evertide.checkpoint.revival import bring_back, entry_of, is_lost
from evertide.checkpoint.verification import OnProgress, read_manifest, verify_manifest
from evertide.errors import CheckpointDamaged, Conflict, Damaged, EvertideError, RecordDamaged, UnsupportedFormat
from evertide.shard.log import ShardLog
from evertide.store.meta import Write
from evertide.store.paths import CHECKPOINTS, checkpoint_prefix
from evertide.store.sealed import seal
from evertide.store.writers import Writer, end_silent_writers, registered

__all__ = ["Repaired", "repair"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repaired:
    """`done` says in sentences what was changed, and what is lost; `moved` are the keys now below `lost+found/`."""

    done: tuple[str, ...]
    moved: tuple[str, ...]
    report: Report
    """What a check finds afterwards."""


def repair(place: Place, progress: OnProgress | None = None) -> Repaired:
    _check_alone(place)
    writer = Writer.register(place.meta, runtime=place.runtime, settings=place.settings, label="repair")
    try:
        done = _Repair(place, writer, progress).run()
        for sentence in done:
            logger.warning("repair: %s", sentence)
        report = check(place, progress)
        moved = tuple(_moved(place, key) for key in report.orphans)
    finally:
        writer.unregister()
    return Repaired(tuple(done), moved, replace(report, orphans=()))


def _check_alone(place: Place) -> None:
    end_silent_writers(place.meta, runtime=place.runtime, settings=place.settings)
    for writer in place.reading(lambda: registered(place.meta)).values():
        why = f"writer {writer.writer} ({writer.label or 'no label'}, {writer.host}, pid {writer.pid}) is registered: "
        why += f"stop it, or wait until it was silent for {writer.ttl_s:.0f} s"
        raise Conflict(where=place.meta.path(CHECKPOINTS), why=why)


def _moved(place: Place, key: str) -> str:
    place.put(LOST + key, place.reading(lambda: place.blob.get(key)))
    place.blob.delete(key)
    return key


@dataclass(frozen=True, slots=True)
class _Repair:
    place: Place
    writer: Writer
    progress: OnProgress | None

    def run(self) -> list[str]:
        numbers = directories(entry.key for entry in self.place.blob.list(checkpoint_prefix()))
        if is_lost(self.place.meta):
            return self._meta(numbers)
        try:
            seqno, catalog = self.place.reading(lambda: read_catalog(self.place.blob, self.place.meta))
        except (CheckpointDamaged, RecordDamaged) as error:
            return self._made_anew(numbers, error)
        return self._without_damaged(seqno, catalog)

    def _meta(self, numbers: Sequence[int]) -> list[str]:
        """Step 2."""
        problems: list[str] = []
        for number in reversed(numbers):
            manifest = self._intact(number, problems, shards=True)
            if manifest is not None:
                entry = bring_back(self.place, manifest, self.writer, last=max(numbers))
                said = f"Meta was lost, and brought back from checkpoint {entry.number}"
                lost = f"what came from transaction {entry.time} on is lost, and so are the holds of sinks and shapes"
                sources = "sources that can be read again go on from where they stood then"
                return [*problems, f"{said}: {lost}; {sources}"]
        why = f"Meta is lost, and none of {len(numbers)} checkpoints is intact"
        raise CheckpointDamaged(path=self.place.blob.path(checkpoint_prefix()), why=why, files="; ".join(problems))

    def _made_anew(self, numbers: Sequence[int], error: EvertideError) -> list[str]:
        """Step 3."""
        problems: list[str] = []
        entries: list[Entry] = []
        for number in numbers:
            manifest = self._intact(number, problems)
            if manifest is not None and self._can_be_replayed(manifest, problems):
                entries.append(entry_of(self.place, manifest))
        record = self.place.reading(lambda: self.place.meta.head(CHECKPOINTS))
        catalog = Catalog(tuple(entries), {}, max(numbers, default=0), self.place.runtime.new_id())
        self._commit(record.seqno if record else 0, catalog)
        return [*problems, f"the catalog was made anew, with {_listed(entries)}; it was not usable: {error}"]

    def _without_damaged(self, seqno: int, catalog: Catalog) -> list[str]:
        """Step 4."""
        problems: list[str] = []
        kept = tuple(entry for entry in catalog.entries if self._is_sound(entry, problems))
        if kept == catalog.entries:
            return []
        last = max(catalog.last, *(entry.number for entry in catalog.entries))
        self._commit(seqno, Catalog(kept, {}, last, self.place.runtime.new_id()))
        return [*problems, f"the catalog holds {_listed(kept)} now"]

    def _commit(self, seqno: int, catalog: Catalog) -> None:
        stale = self.place.commit([Write(CHECKPOINTS, seqno, seal(catalog))], self.writer.guards())
        if stale is not None:
            self.writer.check(stale)
            raise Conflict(where=self.place.meta.path(CHECKPOINTS), why="somebody else changed the catalog meanwhile")

    def _intact(self, number: int, problems: list[str], *, shards: bool = False) -> Manifest | None:
        """The manifest in a directory, if all is there that it names."""
        key = manifest_key(number)
        try:
            manifest = decode_manifest(self.place.reading(lambda: self.place.blob.get(key)), self.place.blob.path(key))
            if manifest.number != number:
                raise RecordDamaged(path=self.place.blob.path(key), why=f"it is that of checkpoint {manifest.number}")
            verify_manifest(self.place, manifest, self.progress, shards=shards)
        except (Damaged, UnsupportedFormat) as error:
            problems.append(f"checkpoint {number} is not used: {error}")
            return None
        return manifest

    def _is_sound(self, entry: Entry, problems: list[str]) -> bool:
        try:
            manifest = self.place.reading(lambda: read_manifest(self.place.blob, entry))
            verify_manifest(self.place, manifest, self.progress)
        except Damaged as error:
            problems.append(f"checkpoint {entry.number} was taken out of the catalog: {error}")
            return False
        return True

    def _can_be_replayed(self, manifest: Manifest, problems: list[str]) -> bool:
        place = self.place
        for name in manifest.members:
            found = ShardLog(name, place.blob, place.meta, place.runtime, place.settings).find()
            if found is None or found.state.finalized:
                continue  # left the members since; the pipeline decides by the generation
            state = found.state
            if state.upper < manifest.time or state.since > max(manifest.time - 1, 0):
                why = f"shard {name!r} can be read in [{state.since}, {state.upper}) only"
                problems.append(f"checkpoint {manifest.number} at time {manifest.time} is not used: {why}")
                return False
        return True


def _listed(entries: Sequence[Entry]) -> str:
    named = ", ".join(f"{entry.number} at time {entry.time}" for entry in entries)
    return f"the checkpoints {named}" if named else "no checkpoint: all state is made anew from the tables"
