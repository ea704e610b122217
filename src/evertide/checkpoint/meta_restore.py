"""Restore Meta from a checkpoint: for a storage whose Meta is lost, and for the import of an archive.

The result is the content of the checkpoint: everything below its time c.

1. Read the state of each member shard, and verify it against the manifest.
2. Write the records of the generation up to the checkpoint's number, so that numbering continues there.
3. Put each state as a roll-up. One commit writes everything else: the catalog with this checkpoint alone; per shard its
   first log record, the address of the roll-up, and its since; the records `journal` and `committed` of transaction
   c - 1; the pipeline's definition; and the first record of `storage`. Until then the storage cannot be opened, so an
   interrupted restore is simply repeated. A rewind (`evertide.checkpoint.rewind`) passes the journal and the holds that
   stay as `kept`.
4. Write FORMAT and the second record of `storage`.

Older checkpoints are not restored: the journal that a replay from them needs begins with this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import xxhash

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.rebuild import make_shard_writes
from evertide.checkpoint.records import (
    PIPELINE_FILE,
    Catalog,
    CatalogEntry,
    Manifest,
    list_part_files,
    manifest_key,
    shard_file_key,
)
from evertide.checkpoint.registration import change
from evertide.checkpoint.verification import read_file
from evertide.errors import RecordDamaged
from evertide.journal.records import Bound, Committed, Input
from evertide.shard.state import ShardState
from evertide.store.meta import Meta, Write, seal, unseal
from evertide.store.open import FORMAT_TEXT
from evertide.store.paths import (
    CHECKPOINTS,
    COMMITTED,
    FORMAT,
    GENERATION,
    JOURNAL,
    PIPELINE,
    STORAGE,
    checkpoint_key,
    producer_key,
    shard_key,
)
from evertide.store.writers import GenerationRecord, Writer
from evertide.types import Generation, Time


def is_lost(meta: Meta) -> bool:
    """Whether Meta has no record of its storage: neither of its creation, nor of any shard."""
    return meta.head(STORAGE) is None and not meta.heads(shard_key(""))


def make_catalog_entry(place: StorageContext, manifest: Manifest) -> CatalogEntry:
    key = manifest_key(manifest.number)
    content = place.retry_read(lambda: place.blob.get(key))
    digest = xxhash.xxh3_128_hexdigest(content)
    return CatalogEntry(manifest.number, manifest.time, key, len(content), digest, manifest.made_at_s)


@dataclass(frozen=True)
class RetainedMeta:
    """The part of Meta that is kept."""

    generation: Generation
    """At least the generation of the last transaction in the journal."""
    pipeline: bytes
    """The checkpoint's definition of the pipeline, with this generation."""
    holds: Mapping[str, Mapping[str, int]]
    """By shard."""
    journal: tuple[Write, ...] = ()
    """Records that replace the journal; empty if the journal stays as it is."""


def restore_meta(
    place: StorageContext, manifest: Manifest, writer: Writer, *, last: int, kept: RetainedMeta | None = None
) -> CatalogEntry:
    """See the header. All files are verified; `last` is the highest number that any checkpoint ever had.

    With `kept`, the journal exists, and the pipeline completes the transactions from the checkpoint's time on from it.
    """
    entry = make_catalog_entry(place, manifest)
    states = {name: _state(place, manifest, name) for name in manifest.members}
    pipeline = kept.pipeline if kept else read_pipeline_file(place, manifest)
    _renew_generation(place, manifest, kept.generation if kept else manifest.generation, writer)
    with writer.claim() as seq:
        writes = [
            Write(CHECKPOINTS, 0, seal(Catalog((entry,), {}, max(last, entry.number), place.runtime.new_id()))),
            *(
                write
                for state in states.values()
                for write in make_shard_writes(place, state, writer, seq, _holds(kept, state))
            ),
            *(kept.journal if kept else _journal(place, manifest, writer)),
            Write(COMMITTED, 0, seal(Committed(Time(manifest.time - 1), {}, {}, writer.id))),
            Write(PIPELINE, 0, pipeline),
            Write(STORAGE, 0, FORMAT_TEXT),
        ]
        change(place, writer, writes)
    place.put(FORMAT, FORMAT_TEXT)
    place.commit([Write(STORAGE, 1, FORMAT_TEXT)])
    return entry


def read_pipeline_file(place: StorageContext, manifest: Manifest) -> bytes:
    path = place.blob.path(manifest_key(manifest.number))
    return read_file(place, manifest.file(checkpoint_key(manifest.number, PIPELINE_FILE), path))


def _state(place: StorageContext, manifest: Manifest, shard: str) -> ShardState:
    key = shard_file_key(manifest.number, shard)
    path = place.blob.path(key)
    state = unseal(
        read_file(place, manifest.file(key, place.blob.path(manifest_key(manifest.number)))), ShardState, path
    )
    if state.upper != manifest.time or state.shard != shard or list_part_files(state) != manifest.shards.get(shard):
        raise RecordDamaged(path=path, why=f"the file is not the state of shard {shard!r} that the manifest describes")
    return state


def _renew_generation(place: StorageContext, manifest: Manifest, generation: Generation, writer: Writer) -> None:
    head = place.retry_read(lambda: place.meta.head(GENERATION))
    for number in range(head.seqno if head else 0, generation):
        record = GenerationRecord(Generation(number + 1), manifest.members, writer.id)
        change(place, writer, [Write(GENERATION, number, seal(record))], writer.guards()[:1])
    writer.adopt_generation()


def _holds(kept: RetainedMeta | None, state: ShardState) -> Mapping[str, int]:
    return kept.holds.get(state.shard, {}) if kept else {}


def _journal(place: StorageContext, manifest: Manifest, writer: Writer) -> Iterator[Write]:
    time, now_s = manifest.time - 1, place.runtime.wall_s()
    inputs = {source: Input(position, position) for source, position in manifest.positions.items()}
    bound = Bound(Time(time), manifest.generation, inputs, writer.id, writer.new_token(), now_s)
    yield Write(JOURNAL, 0, seal(bound))
    for key, record in place.retry_read(lambda: place.meta.heads(producer_key(""))).items():
        yield Write(key, record.seqno, None)  # of lost transactions; the positions have the checkpoint's numbers
