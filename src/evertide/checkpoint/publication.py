"""Publish one checkpoint: the files, the manifest, then the commit that names it (I11).

1. Claim a number in the catalog, under the writer's guards (I16). From now on garbage collection deletes no part that a
   shard removes from its state, and nothing in the directory of that number.
2. Make the draft. It names parts of shard states that were read after the claim, so parts that a compaction removes
   meanwhile are not deleted, however long the draft takes.
3. Put the files, then the manifest. Each is durable when its put returns.
4. One commit adds the entry, ends the claim, and drops the checkpoints that are known to be damaged or beyond the
   newest `keep`, under the writer's guards. A damaged checkpoint never takes the place of an intact one (X8). The
   commit is refused (`Conflict`) if the claim is gone, or if a peer published a later time: the records to replay from
   an earlier one may be deleted.

If a step fails, the claim is withdrawn, and garbage collection deletes the files, as after a crash. If the outcome of
step 4 stays unknown, the claim stays, because the commit may still arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import msgspec

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.records import (
    PIPELINE_FILE,
    STATE_FILE,
    Catalog,
    CatalogEntry,
    Manifest,
    StateFile,
    encode_manifest,
    list_numbers,
    list_part_files,
    manifest_key,
    read_catalog,
    shard_file_key,
)
from evertide.errors import Conflict, EvertideError, Unexpected
from evertide.shard.state import ShardState
from evertide.store.meta import Write, seal
from evertide.store.paths import CHECKPOINTS, checkpoint_key, checkpoint_prefix
from evertide.store.retry import truncate_sometimes
from evertide.store.writers import Writer, read_registrations
from evertide.types import Generation, SequenceNumber, Time

logger = logging.getLogger(__name__)

KEEP_MIN = 2
"""So that one of them may be damaged."""


@dataclass(frozen=True)
class Draft:
    """The state between two transactions: everything below `time`, and nothing of `time` or later."""

    time: Time
    fingerprint: str
    generation: Generation
    positions: Mapping[str, str]
    state: bytes
    """What the engine needs besides the parts; only the engine interprets it."""
    parts: tuple[StateFile, ...]
    """State parts; already durable."""
    shards: Mapping[str, ShardState]
    members: tuple[str, ...]
    pipeline: bytes
    """The definition of the pipeline."""

    def check(self) -> None:
        """Raise an error for an invalid draft before anything is stored."""
        where = f"checkpoint at time {self.time}"
        if set(self.members) != set(self.shards):
            why = f"the draft has the states of {sorted(self.shards)}, but the members are {sorted(self.members)}"
            raise Unexpected(where=where, why=why)
        for name, state in self.shards.items():
            if state.upper != self.time or state.shard != name:
                why = f"the state of shard {name!r} is that of {state.shard!r} with upper {state.upper}"
                raise Unexpected(where=where, why=why)


@dataclass(frozen=True)
class SkippedCheckpoint:
    entry: CatalogEntry
    error: EvertideError


@dataclass(frozen=True)
class RestoredCheckpoint:
    entry: CatalogEntry
    manifest: Manifest
    state: bytes
    pipeline: bytes
    skipped: tuple[SkippedCheckpoint, ...] = field(default=())
    """Newer, damaged checkpoints. If there are any, the caller must report them (I13)."""


@dataclass(frozen=True, slots=True)
class Publication:
    place: StorageContext
    writer: Writer
    time: int

    def claim(self) -> int:
        """Step 1: claim a number that was never used."""
        there = self.place.retry_read(
            lambda: list_numbers(entry.key for entry in self.place.blob.list(checkpoint_prefix()))
        )
        while True:
            known = self.place.retry_read(lambda: read_registrations(self.place.meta))
            seqno, catalog = self._read_catalog()
            self._check_time(catalog)
            number = max([catalog.last, *there, *(entry.number for entry in catalog.entries)]) + 1
            # A writer that was not registered before the catalog was read has made its last publication.
            claims = {writer: claimed for writer, claimed in catalog.claims.items() if writer in known}
            if self._try_change(seqno, catalog, claims={**claims, self.writer.id: number}, last=number):
                return number

    def put(self, number: int, draft: Draft) -> CatalogEntry:
        """Step 3. States are stored without tokens: a process that restores them has no commit in doubt."""
        made_at_s = self.place.runtime.wall_s()
        states = {name: msgspec.structs.replace(state, tokens={}) for name, state in draft.shards.items()}
        own = [self.place.put(shard_file_key(number, name), seal(state)) for name, state in states.items()]
        own.append(self.place.put(checkpoint_key(number, PIPELINE_FILE), draft.pipeline))
        own.append(self.place.put(checkpoint_key(number, STATE_FILE), draft.state))
        manifest = Manifest(
            number=number,
            time=draft.time,
            made_at_s=made_at_s,
            writer=self.writer.id,
            fingerprint=draft.fingerprint,
            generation=draft.generation,
            members=tuple(draft.members),
            positions=dict(draft.positions),
            files=(*own, *dict.fromkeys(draft.parts)),
            shards={name: list_part_files(state) for name, state in states.items()},
        )
        named = self.place.put(manifest_key(number), encode_manifest(manifest))
        return CatalogEntry(number, draft.time, named.key, named.bytes, named.digest, made_at_s)

    def commit(self, entry: CatalogEntry, keep: int, damaged: Set[int] = frozenset()) -> tuple[CatalogEntry, ...]:
        """Step 4. Return the new entries of the catalog."""
        while True:
            seqno, catalog = self._read_catalog()
            claims = dict(catalog.claims)
            if claims.pop(self.writer.id, None) != entry.number:
                why = f"the claim of checkpoint {entry.number} was removed"
                raise Conflict(where=self.place.meta.path(CHECKPOINTS), why=why)
            self._check_time(catalog)
            intact = tuple(known for known in catalog.entries if known.number not in damaged)
            entries = (*intact, entry)[-max(keep, KEEP_MIN) :]
            if self._try_change(seqno, catalog, entries=entries, claims=claims):
                return entries

    def withdraw(self) -> None:
        """Withdraw the claim after a failure. An error of the withdrawal is logged, and does not hide the first."""
        try:
            while True:
                seqno, catalog = self._read_catalog()
                claims = {writer: number for writer, number in catalog.claims.items() if writer != self.writer.id}
                if claims == catalog.claims or self._try_change(seqno, catalog, claims=claims):
                    return
        except EvertideError as error:
            logger.warning("could not release the claim of a failed checkpoint: %s", error)

    def _read_catalog(self) -> tuple[SequenceNumber, Catalog]:
        return self.place.retry_read(lambda: read_catalog(self.place.blob, self.place.meta))

    def _try_change(self, seqno: SequenceNumber, catalog: Catalog, **changes: object) -> bool:
        """Commit the catalog; return False if it has changed and must be read again."""
        changed = msgspec.structs.replace(catalog, change=self.place.runtime.new_id(), **changes)
        write = Write(CHECKPOINTS, seqno, seal(changed))
        stale = self.place.commit([write], self.writer.guards())
        if stale is not None:
            self.writer.check(stale)
            return False
        truncate_sometimes(self.place.meta, CHECKPOINTS, seqno + 1)
        return True

    def _check_time(self, catalog: Catalog) -> None:
        newest = catalog.entries[-1] if catalog.entries else None
        if newest is not None and newest.time > self.time:
            why = f"a peer published checkpoint {newest.number} at time {newest.time}, which is later than {self.time}"
            raise Conflict(where=self.place.meta.path(CHECKPOINTS), why=why)
