"""Garbage collection of checkpoints: delete state parts and checkpoints that provably no process needs (I12).

The *pins*, and the parts that the running engine uses (`live`), are needed. Pins are all blobs that are named by the
manifests of the checkpoints in the catalog, and of those that a live writer holds (`restoring/<writer>`).

Garbage collection deletes, if neither pinned nor live:

1. *A state part* whose writer is not registered (any more), so that it will never be named, or which this writer wrote,
   because this process knows what it uses. Parts of other registered writers stay.
2. *A checkpoint's directory* whose number is not in the catalog, not held, and not claimed by a registered writer. A
   claim is made before the first file is put, so a directory without one is abandoned.

The proof is read in this order, for these reasons:

    blobs            first: blobs that are put later are not judged
    live, drafts     then: a draft that is published meanwhile is in the catalog below
    writers          a writer that is not registered has made its last commit
    catalog          so it has all that such a writer ever published; claims of others may still be completed
    holds            a checkpoint dropped before the catalog was read, and still being read, is held by now
    writers again    a hold of a writer that is not registered has ended
    manifests        all of them, uncached: this process's cache does not prove that others can read them

If anything cannot be read, nothing is deleted: the error is logged, and the pipeline continues (C3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.records import Catalog, RestoreHold, manifest_key, parse_number, read_catalog, read_holds
from evertide.checkpoint.verification import read_manifest
from evertide.errors import BlobMissing, Damaged, EvertideError, StorageFull, UnsupportedFormat
from evertide.store.blob import Blob, list_keys
from evertide.store.meta import Write
from evertide.store.paths import Name, checkpoint_prefix, part_prefix, restoring_key, state_prefix
from evertide.store.writers import Writer, end_silent_writers, read_registrations

logger = logging.getLogger(__name__)

Live: TypeAlias = Callable[[], Container[str]]
"""The state parts that this process's engine uses, is writing, or has saved for a draft."""

Drafts: TypeAlias = Mapping[str, Set[str] | None]
"""By writer of this process, the state parts of the checkpoint that it is publishing; None if there is none."""


@dataclass(frozen=True, slots=True)
class Pins:
    """The blobs that must stay. During a publication they include all parts of shards: it may name any of them."""

    keys: frozenset[str]
    numbers: frozenset[int]
    """Checkpoints that are in the catalog, held, or being written."""
    is_publishing: bool
    held: frozenset[str]
    """State parts that this process's own holds keep."""

    def __contains__(self, key: object) -> bool:
        return key in self.keys or (self.is_publishing and isinstance(key, str) and key.startswith(part_prefix()))


@dataclass(frozen=True, slots=True)
class CheckpointGarbage:
    """What one garbage collection deleted; `refused` is the reason if it deleted nothing."""

    parts: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Of checkpoints."""
    refused: EvertideError | None = None
    is_hold_over: bool = False
    """Whether the engine no longer uses any part that this writer's hold keeps."""


@dataclass(frozen=True, slots=True)
class _Proof:
    parts: Sequence[str]
    files: Sequence[str]
    live: Container[str]
    writers: Set[str]
    pins: Pins


def find_pins(place: StorageContext, drafts: Drafts) -> Pins:
    """The blobs that checkpoints need. Raises if any manifest is unreadable."""
    return place.retry_read(lambda: _pins(place, read_registrations(place.meta).keys(), drafts))


def collect_garbage(
    place: StorageContext, live: Live, writer: Writer, drafts: Callable[[], Drafts]
) -> CheckpointGarbage:
    try:
        with suppress(StorageFull):  # deletion frees space, and no proof depends on this
            writer.beat()  # shows that we are not fenced (I16)
            end_silent_writers(place.meta, runtime=place.runtime, settings=place.settings, own_writer=writer)
            _end_holds(place)
        proof = place.retry_read(lambda: _read_proof(place, live, writer, drafts))
    except (Damaged, UnsupportedFormat) as error:
        return CheckpointGarbage(refused=error)  # the caller reports it
    parts = tuple(key for key in proof.parts if _is_over(key, proof, writer))
    files = tuple(key for key in proof.files if parse_number(key) not in {None, *proof.pins.numbers})
    # Delete the manifest first, so that the rest of a directory after a crash is not mistaken for a checkpoint.
    for key in (*parts, *sorted(files, key=lambda key: (parse_number(key), not _is_manifest(key)))):
        place.blob.delete(key)
    is_used = any(key in proof.live for key in proof.pins.held)
    return CheckpointGarbage(parts, files, is_hold_over=bool(proof.pins.held) and not is_used)


def _read_proof(place: StorageContext, live: Live, writer: Writer, drafts: Callable[[], Drafts]) -> _Proof:
    """The order matters: see the header."""
    parts, files = list_keys(place.blob, state_prefix()), list_keys(place.blob, checkpoint_prefix())
    used, drafted = live(), drafts()
    writers = read_registrations(place.meta).keys()
    return _Proof(parts, files, used, writers, _pins(place, writers, drafted, writer.id))


def _pins(place: StorageContext, writers: Set[str], drafts: Drafts, own: str = "") -> Pins:
    """`writers` were read before. The same error twice is damage; another one means a concurrent collector."""
    problem = ""
    while True:
        _, catalog = read_catalog(place.blob, place.meta)
        try:
            return _find_pinned(place, catalog, writers, drafts, own)
        except BlobMissing as error:
            if problem == str(error):
                raise
            problem = str(error)


def _find_pinned(place: StorageContext, catalog: Catalog, writers: Set[str], drafts: Drafts, own: str) -> Pins:
    blob = place.blob
    holds = read_holds(place.meta)
    alive = read_registrations(place.meta).keys()
    live_holds = [hold for name, (_, hold) in holds.items() if name in alive]
    claims = {name: number for name, number in catalog.claims.items() if name in writers and _is_open(name, drafts)}
    keys = {key for entry in catalog.entries for key in read_manifest(blob, entry).names()}
    numbers = {entry.number for entry in catalog.entries} | set(claims.values())
    held: set[str] = set()
    for hold in live_holds:
        found = _read_held(blob, hold)
        keys |= found
        numbers |= {entry.number for entry in hold.entries}
        held |= {key for key in found if hold.writer == own and hold.is_read and key.startswith(state_prefix())}
    for drafted in drafts.values():
        keys |= drafted or set()
    return Pins(frozenset(keys), frozenset(numbers), bool(claims), frozenset(held))


def _read_held(blob: Blob, hold: RestoreHold) -> set[str]:
    keys: set[str] = set()
    for entry in hold.entries:
        manifest = read_manifest(blob, entry)
        parts = (file.key for file in manifest.state_parts)
        keys |= {manifest_key(entry.number), *parts} if hold.is_read else set(manifest.names())
    return keys


def _is_open(writer: str, drafts: Drafts) -> bool:
    """A claim that this process gave up, but could not withdraw, protects nothing."""
    return writer not in drafts or drafts[writer] is not None


def _is_over(key: str, proof: _Proof, writer: Writer) -> bool:
    name = Name.parse(key)
    if name is None or key in proof.pins or key in proof.live:
        return False
    return name.writer == writer.id or name.writer not in proof.writers


def _is_manifest(key: str) -> bool:
    number = parse_number(key)
    return number is not None and key == manifest_key(number)


def _end_holds(place: StorageContext) -> None:
    """Remove the holds of writers that are no longer registered: they have no effect."""
    holds = read_holds(place.meta)
    alive = read_registrations(place.meta).keys()
    for name, (seqno, _) in holds.items():
        if name not in alive:
            place.commit([Write(restoring_key(name), seqno, None)])
