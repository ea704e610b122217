"""`check`: reads a whole storage, says everything that is wrong with it, and changes nothing.

In this order, so that a pipeline may run meanwhile; damage of one thing does not keep it from looking at the next:

1. All blobs are listed, then the writers, then all records of Meta: each is unsealed as what it should be.
2. Each shard is opened as a newcomer would, from its roll-up on; the catalog, the manifests, the journal are read.
3. Every file that any of these names is read whole, once, and compared with its length and digest.
4. What was listed, lies where blobs of ours lie, is named by nobody, and was made by a writer that is not registered,
   is an orphan: told, not counted as damage. If anything that names files cannot be read, orphans cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from evertide.checkpoint.manifest import StateFile, number_of, shard_parts
from evertide.checkpoint.place import Place
from evertide.checkpoint.records import Catalog, Entry, Restoring, read_catalog, read_holds
from evertide.checkpoint.revival import is_lost
from evertide.checkpoint.verification import OnProgress, check_files, read_manifest
from evertide.errors import BlobMissing, Damaged, EvertideError, InvalidInput, RecordDamaged, UnsupportedFormat
from evertide.journal.producers import Producer
from evertide.journal.records import Bound, Committed, Staged
from evertide.shard.hold import HoldRecord
from evertide.shard.lease import LeaseRecord
from evertide.shard.log import Rollup, ShardLog
from evertide.shard.state import parts_removed
from evertide.store.meta import Record
from evertide.store.open import FORMAT_VERSION
from evertide.store.paths import (
    CHECKPOINTS,
    COMMITTED,
    FORMAT,
    GENERATION,
    JOURNAL,
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
from evertide.store.sealed import unseal
from evertide.store.writers import Beat, Generation, Registration, registered

__all__ = ["LOST", "Problem", "Report", "check"]

LOST = "lost+found/"
"""Where a repair puts what nobody names."""

_RECORDS: dict[str, type] = {
    rollup_key(""): Rollup,
    hold_key(""): HoldRecord,
    "lease/": LeaseRecord,
    writer_key(""): Registration,
    beat_key(""): Beat,
    GENERATION: Generation,
    JOURNAL: Bound,
    COMMITTED: Committed,
    CHECKPOINTS: Catalog,
    restoring_key(""): Restoring,
    producer_key(""): Producer,
}
"""By the beginning of the key. Shards are opened instead; keys of other rooms are theirs to check."""

_META = "`evertide fsck --repair` brings it back from the newest checkpoint that is intact."
_CATALOG = "`evertide fsck --repair` makes it anew from the checkpoints that are intact."
_CHECKPOINT = "`evertide fsck --repair` takes this checkpoint out of the catalog; another, or the tables, will do."
_PART = "Bring the file back from a backup. What a view lost is computed anew if it is dropped and declared again."
_STAGED = "Bring the file back from a backup: it holds input that is not in the tables yet and cannot be sent again."
_FORMAT = f"Put the file back: it holds the format's version and a newline, as `{FORMAT_VERSION}`."


@dataclass(frozen=True, slots=True)
class Problem:
    """`kind` is a stable code, `path` where a person would look."""

    kind: str
    path: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class Report:
    problems: tuple[Problem, ...]
    orphans: tuple[str, ...]
    """Keys of blobs that nobody needs."""
    unknown_orphans: bool
    """Whether what names files could not all be read, so that nobody can tell orphans."""
    shards: int
    checkpoints: int
    transactions: int
    """In the journal."""
    files: int
    bytes: int
    """Of all files that were read."""

    @property
    def is_sound(self) -> bool:
        return not self.problems


def check(place: Place, progress: OnProgress | None = None) -> Report:
    """See the header. What looks wrong is looked at twice: a pipeline may move on between two looks."""
    listed = _listed(place)
    found = _Check(place)
    found.look()
    if found.problems:
        again = _Check(place)
        again.look()
        again.problems = [problem for problem in again.problems if problem in found.problems]
        again.needed |= found.keys()
        found = again
    damaged = {error.path: error for error in check_files(place, found.named, progress)}
    if damaged:
        again = _Check(place)
        again.look()
        for file, remedy in found.named.items():
            error = damaged.get(place.blob.path(file.key))
            if error is not None and file in again.named:
                found.add(error, remedy)
    return found.report(listed)


@dataclass(slots=True)
class _Check:
    """One look at everything that names files, and what was wrong with it."""

    place: Place
    problems: list[Problem] = field(default_factory=list)
    named: dict[StateFile, str] = field(default_factory=dict)
    """Every file that must be there, and what to do if it is not."""
    needed: set[str] = field(default_factory=set)
    """Further keys that are not orphans."""
    numbers: set[int] = field(default_factory=set)
    """Checkpoints whose directories are not orphans."""
    writers: set[str] = field(default_factory=set)
    is_complete: bool = True
    shards: int = 0
    checkpoints: int = 0
    transactions: int = 0

    def look(self) -> None:
        """Who is registered comes first: whoever is not has named for the last time."""
        meta = self.place.meta
        self.writers = self._tried(lambda: set(self.place.reading(lambda: registered(meta))), "") or set()
        self._format()
        heads = self._tried(lambda: self.place.reading(lambda: meta.heads("")), _META)
        if heads is not None:
            self._storage()
            self._records(heads)
            self._shards(heads)
            self._tried(self._members, _META)
            self._tried(self._journal, _META)
            self._tried(self._catalog, _CATALOG)

    def keys(self) -> set[str]:
        return self.needed | {file.key for file in self.named}

    def report(self, listed: list[str]) -> Report:
        return Report(
            problems=tuple(dict.fromkeys(self.problems)),
            orphans=self._still_there(list(self._orphans(listed))) if self.is_complete else (),
            unknown_orphans=not self.is_complete,
            shards=self.shards,
            checkpoints=self.checkpoints,
            transactions=self.transactions,
            files=len(self.named),
            bytes=sum(file.bytes for file in self.named),
        )

    def add(self, error: EvertideError, remedy: str) -> None:
        facts = {name: value for name, value in error.facts.items() if name not in {"path", "where", "why"} and value}
        path = str(getattr(error, "path", "") or getattr(error, "where", ""))
        why = ", ".join([str(getattr(error, "why", error.what)), *(f"{name} {value}" for name, value in facts.items())])
        self.problems.append(Problem(error.error_code, path, why, remedy or error.remedy))

    def _tried(self, call: Callable[[], Any], remedy: str) -> Any:
        """What the call returns, or None after adding what is wrong."""
        try:
            return call()
        except (Damaged, UnsupportedFormat, InvalidInput) as error:
            self.add(error, remedy)
            self.is_complete = False
            return None

    def _format(self) -> None:
        blob = self.place.blob
        try:
            text = self.place.reading(lambda: blob.get(FORMAT))
        except BlobMissing as error:
            self.add(error, _FORMAT)
            return
        if text != b"%d\n" % FORMAT_VERSION:
            self.add(RecordDamaged(path=blob.path(FORMAT), why=f"it holds {text[:32]!r}"), _FORMAT)

    def _storage(self) -> None:
        meta = self.place.meta
        if is_lost(meta):
            why = "Meta knows nothing of this storage: it was lost, or is another one's"
            self.add(RecordDamaged(path=meta.path(STORAGE), why=why), _META)
            self.is_complete = False
        elif meta.head(STORAGE) is None:
            self.add(RecordDamaged(path=meta.path(STORAGE), why="the record is missing, and shards are there"), "")

    def _records(self, heads: dict[str, Record]) -> None:
        meta = self.place.meta
        for key, record in heads.items():
            kind = next((kind for prefix, kind in _RECORDS.items() if key == prefix or _is_below(key, prefix)), None)
            if kind is not None and key not in {JOURNAL, CHECKPOINTS}:  # those are read on their own
                self._tried(partial(unseal, record.data, kind, meta.path(key)), "")

    def _shards(self, heads: dict[str, Record]) -> None:
        """Also those of which only the address of a roll-up, or the holds, are left."""
        names = {
            key.removeprefix(prefix): None
            for prefix in (shard_key(""), rollup_key(""), hold_key(""))
            for key in heads
            if key.startswith(prefix)
        }
        for name in names:
            self._tried(partial(self._shard, name), _META if is_lost(self.place.meta) else "")

    def _shard(self, name: str) -> None:
        place = self.place
        log = ShardLog(name, place.blob, place.meta, place.runtime, place.settings)
        version = log.reread()
        self.shards += 1
        self.named.update(dict.fromkeys(shard_parts(version.state), _PART))
        self.needed |= {key for record in place.meta.scan(log.key) for key in parts_removed(log.entry(record).diff)}
        rollup = log.newest_rollup()
        if rollup is not None:
            self.named[StateFile(rollup[1].key, rollup[1].bytes, rollup[1].checksum)] = ""
        if place.meta.head(hold_key(name)) is None:
            raise RecordDamaged(path=place.meta.path(hold_key(name)), why="since and holds of the shard are gone")

    def _members(self) -> None:
        meta = self.place.meta
        record = meta.head(GENERATION)
        members = unseal(record.data, Generation, meta.path(GENERATION)).members if record else ()
        for name in members:
            if meta.head(shard_key(name)) is None:
                self.add(RecordDamaged(path=meta.path(shard_key(name)), why="a member's log is gone"), "")

    def _journal(self) -> None:
        meta = self.place.meta
        outcome = meta.head(COMMITTED)
        done = unseal(outcome.data, Committed, meta.path(COMMITTED)).time if outcome else -1
        for record in self.place.reading(lambda: meta.scan(JOURNAL)):
            bound = unseal(record.data, Bound, f"{meta.path(JOURNAL)} #{record.seqno}")
            self.transactions += 1
            for staged in _staged(bound):
                self.needed.add(staged.key)
                if bound.time > done:
                    self.named[StateFile(staged.key, staged.bytes, staged.checksum)] = _STAGED

    def _catalog(self) -> None:
        place = self.place
        if is_lost(place.meta) and place.meta.head(CHECKPOINTS) is None:
            return  # said already
        _, catalog = place.reading(lambda: read_catalog(place.blob, place.meta))
        self.numbers |= set(catalog.claims.values())
        holds = [hold for _, hold in place.reading(lambda: read_holds(place.meta)).values()]
        for entry in dict.fromkeys([*catalog.entries, *(entry for hold in holds for entry in hold.entries)]):
            self.numbers.add(entry.number)
            self._tried(partial(self._checkpoint, entry), _CHECKPOINT)
        self.checkpoints = len(catalog.entries)

    def _checkpoint(self, entry: Entry) -> None:
        place = self.place
        manifest = place.reading(lambda: read_manifest(place.blob, entry))
        self.needed.add(entry.key)
        for file in (*manifest.files, *manifest.shard_files):
            self.named.setdefault(file, _CHECKPOINT)

    def _still_there(self, orphans: list[str]) -> tuple[str, ...]:
        """Without what a collection deleted since it was listed."""
        there = set(_listed(self.place)) if orphans else set()
        return tuple(key for key in orphans if key in there)

    def _orphans(self, listed: list[str]) -> Iterator[str]:
        """A claim counts as long as it is there: whoever made it may be silent, and yet go on."""
        ours = tuple(prefix() for prefix in (part_prefix, rollup_prefix, state_prefix, staged_prefix))
        named = self.keys()
        for key in listed:
            if key.startswith(checkpoint_prefix()):
                if number_of(key) not in {None, *self.numbers}:
                    yield key
            elif key.startswith(ours) and key not in named:
                name = Name.parse(key)
                if name is not None and name.writer not in self.writers:
                    yield key


def _listed(place: Place) -> list[str]:
    return [entry.key for entry in place.reading(lambda: list(place.blob.list("")))]


def _is_below(key: str, prefix: str) -> bool:
    return prefix.endswith("/") and key.startswith(prefix)


def _staged(bound: Bound) -> Iterator[Staged]:
    for given in bound.inputs.values():
        for fragment in given.fragments:
            if isinstance(fragment, Staged):
                yield fragment
