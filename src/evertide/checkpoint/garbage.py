"""Collection: deleting state parts and checkpoints that provably nobody needs (I12).

Needed is what the *pins* name, and what the running engine uses (`live`). Pins are everything that the manifests of
catalogued checkpoints name, and of those that a live writer holds (`restoring/<writer>`).

Deleted is, if it is neither pinned nor live:

1. *A state part* whose writer is not registered (any more), so that it will never be named; or which this very writer
   wrote, as this process knows what it uses. Parts of another writer that is registered stay, whatever they are.
2. *A checkpoint's directory* whose number is not in the catalog, is not held, and is not claimed by a writer that is
   registered. A claim is made before the first file is put, so a directory without one is over.

The evidence is read in this order, and each step says what it must not come before:

    blobs            listed first: what is put later is not judged
    live, drafts     after that; a draft that is published meanwhile is in the catalog below
    writers          a writer that is not among them has committed for the last time
    catalog          so this says all it ever published; claims of others may still come true
    holds            what was dropped before the catalog was read and is still read by somebody is held already
    writers again    a hold of a writer that is not among them is over
    manifests        all of them, afresh: what this process remembers is no proof that others can read them

Whatever cannot be read ends the collection before anything was deleted: it is said, and the pipeline runs on (C3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.manifest import manifest_key, number_of
from evertide.checkpoint.records import Catalog, Restoring, read_catalog, read_holds
from evertide.checkpoint.verification import read_manifest
from evertide.errors import BlobMissing, Damaged, EvertideError, StorageFull, UnsupportedFormat
from evertide.store.blob import Blob
from evertide.store.meta import Write
from evertide.store.paths import Name, checkpoint_prefix, part_prefix, restoring_key, state_prefix
from evertide.store.writers import Writer, end_silent_writers, read_registrations

__all__ = ["CheckpointGarbage", "Drafts", "Live", "Pins", "collect", "pinned"]

logger = logging.getLogger(__name__)

Live: TypeAlias = Callable[[], Container[str]]
"""The state parts that the engine of this process uses, is writing at this moment, or has saved for a draft."""

Drafts: TypeAlias = Mapping[str, Set[str] | None]
"""Per writer of this process, the state parts of the checkpoint that it publishes; None if it publishes none."""


@dataclass(frozen=True, slots=True)
class Pins:
    """What must stay. While a checkpoint is being published, every part of every shard: it may name any of them."""

    keys: frozenset[str]
    numbers: frozenset[int]
    """Checkpoints that are catalogued, held, or being written."""
    is_publishing: bool
    held: frozenset[str]
    """State parts that this process's own holds keep."""

    def __contains__(self, key: object) -> bool:
        return key in self.keys or (self.is_publishing and isinstance(key, str) and key.startswith(part_prefix()))


@dataclass(frozen=True, slots=True)
class CheckpointGarbage:
    """What one collection deleted. `refused` says why it deleted nothing."""

    parts: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Of checkpoints."""
    refused: EvertideError | None = None
    is_hold_over: bool = False
    """Whether nothing that this writer's hold keeps is used any more."""


@dataclass(frozen=True, slots=True)
class _Evidence:
    parts: Sequence[str]
    files: Sequence[str]
    live: Container[str]
    writers: Set[str]
    pins: Pins


def pinned(place: StorageContext, drafts: Drafts) -> Pins:
    """Everything that checkpoints need. Raises if any of it cannot be read."""
    return place.retry_read(lambda: _pins(place, read_registrations(place.meta).keys(), drafts))


def collect(place: StorageContext, live: Live, writer: Writer, drafts: Callable[[], Drafts]) -> CheckpointGarbage:
    try:
        with suppress(StorageFull):  # deleting makes room, and no proof rests on this
            writer.beat()  # shows that we are not fenced (I16)
            end_silent_writers(place.meta, runtime=place.runtime, settings=place.settings, judge=writer)
            _end_holds(place)
        proof = place.retry_read(lambda: _read_evidence(place, live, writer, drafts))
    except (Damaged, UnsupportedFormat) as error:
        # Without a trace: the error says all that can be done about it.
        logger.error("nothing is collected, as what checkpoints need cannot be told: %s", error)  # noqa: TRY400
        return CheckpointGarbage(refused=error)
    parts = tuple(key for key in proof.parts if _is_over(key, proof, writer))
    files = tuple(key for key in proof.files if number_of(key) not in {None, *proof.pins.numbers})
    # The manifest goes first: what is left of a directory after a crash can then not be taken for a checkpoint.
    for key in (*parts, *sorted(files, key=lambda key: (number_of(key), not _is_manifest(key)))):
        place.blob.delete(key)
    is_used = any(key in proof.live for key in proof.pins.held)
    return CheckpointGarbage(parts, files, is_hold_over=bool(proof.pins.held) and not is_used)


def _read_evidence(place: StorageContext, live: Live, writer: Writer, drafts: Callable[[], Drafts]) -> _Evidence:
    """The order matters: see the header."""
    parts, files = _listed(place.blob, state_prefix()), _listed(place.blob, checkpoint_prefix())
    used, drafted = live(), drafts()
    writers = read_registrations(place.meta).keys()
    return _Evidence(parts, files, used, writers, _pins(place, writers, drafted, writer.id))


def _listed(blob: Blob, prefix: str) -> list[str]:
    return [*(entry.key for entry in blob.list(prefix)), *blob.unfinished(prefix)]


def _pins(place: StorageContext, writers: Set[str], drafts: Drafts, own: str = "") -> Pins:
    """`writers` were read before. The same finding twice is damage, another one a peer that collects meanwhile."""
    problem = ""
    while True:
        _, catalog = read_catalog(place.blob, place.meta)
        try:
            return _named(place, catalog, writers, drafts, own)
        except BlobMissing as error:
            if problem == str(error):
                raise
            problem = str(error)


def _named(place: StorageContext, catalog: Catalog, writers: Set[str], drafts: Drafts, own: str) -> Pins:
    blob = place.blob
    holds = read_holds(place.meta)
    alive = read_registrations(place.meta).keys()
    live_holds = [hold for name, (_, hold) in holds.items() if name in alive]
    claims = {name: number for name, number in catalog.claims.items() if name in writers and _is_open(name, drafts)}
    keys = {key for entry in catalog.entries for key in read_manifest(blob, entry).names()}
    numbers = {entry.number for entry in catalog.entries} | set(claims.values())
    held: set[str] = set()
    for hold in live_holds:
        found = _held(blob, hold)
        keys |= found
        numbers |= {entry.number for entry in hold.entries}
        held |= {key for key in found if hold.writer == own and hold.is_read and key.startswith(state_prefix())}
    for drafted in drafts.values():
        keys |= drafted or set()
    return Pins(frozenset(keys), frozenset(numbers), bool(claims), frozenset(held))


def _held(blob: Blob, hold: Restoring) -> set[str]:
    keys: set[str] = set()
    for entry in hold.entries:
        manifest = read_manifest(blob, entry)
        parts = (file.key for file in manifest.state_parts)
        keys |= {manifest_key(entry.number), *parts} if hold.is_read else set(manifest.names())
    return keys


def _is_open(writer: str, drafts: Drafts) -> bool:
    """A claim of this process that it gave up, but could not take back, holds nothing."""
    return writer not in drafts or drafts[writer] is not None


def _is_over(key: str, proof: _Evidence, writer: Writer) -> bool:
    name = Name.parse(key)
    if name is None or key in proof.pins or key in proof.live:
        return False
    return name.writer == writer.id or name.writer not in proof.writers


def _is_manifest(key: str) -> bool:
    number = number_of(key)
    return number is not None and key == manifest_key(number)


def _end_holds(place: StorageContext) -> None:
    """Remove the holds of writers that are gone; they count for nothing, and would lie around for ever."""
    holds = read_holds(place.meta)
    alive = read_registrations(place.meta).keys()
    for name, (seqno, _) in holds.items():
        if name not in alive:
            place.commit([Write(restoring_key(name), seqno, None)])
