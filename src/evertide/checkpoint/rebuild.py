"""`rebuild_shard`: restore a shard whose newest state is unreadable, from a checkpoint and the shard's log.

1. The base is the shard's state in a checkpoint, at time c, verified by the manifest's digest.
2. The log must have every append from c to the committed time of the pipeline. They are applied in order. Compactions
   are skipped: their inputs are the parts that base and appends name. So a damaged part that a compaction wrote is
   replaced by its inputs, if a checkpoint still keeps those.
3. All parts are read and compared with their digests before anything is changed.
4. One commit writes a roll-up that replaces the whole log, and the record of since and holds. Then the old log is
   truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from evertide.checkpoint.context import StorageContext
from evertide.checkpoint.records import Manifest, list_part_files, manifest_key, shard_file_key
from evertide.checkpoint.registration import change
from evertide.checkpoint.verification import check_files, read_file
from evertide.errors import Damaged, EvertideError
from evertide.shard.hold import HoldRecord
from evertide.shard.shard_log import Rollup
from evertide.shard.state import Appended, Created, Finalized, LogEntry, ShardState, SinceAdvanced, apply
from evertide.store.meta import Write, seal, unseal
from evertide.store.paths import Name, hold_key, rollup_blob_key, rollup_key, shard_key
from evertide.store.writers import Writer
from evertide.types import SequenceNumber


def rebuild_shard(
    place: StorageContext, name: str, manifests: Iterable[Manifest], upper: int | None, writer: Writer
) -> Manifest | None:
    """Return the checkpoint that the shard was restored from; None if none suffices. The shard must reach `upper`."""
    for manifest in manifests:
        state = _state_from(place, name, manifest, upper)
        if state is not None and not check_files(place, list_part_files(state)):
            _commit(place, state, writer)
            return manifest
    return None


def read_last_holds(place: StorageContext, name: str, since: int) -> dict[str, int]:
    """The holds of the newest readable record. Older records hold earlier times, which keeps more."""
    for record in reversed(place.retry_read(lambda: place.meta.scan(hold_key(name)))):
        try:
            found = unseal(record.data, HoldRecord, place.meta.path(hold_key(name)))
        except EvertideError:
            continue
        # The hold of a backfill ends with its process, and no process is running.
        return {one: max(at, since) for one, at in found.holds.items() if not one.startswith("backfill-")}
    return {}


def _state_from(place: StorageContext, name: str, manifest: Manifest, upper: int | None) -> ShardState | None:
    key = shard_file_key(manifest.number, name)
    try:
        named = manifest.file(key, place.blob.path(manifest_key(manifest.number)))
        state = unseal(read_file(place, named), ShardState, place.blob.path(key))
        for entry in _entries(place, name):
            if isinstance(entry.diff, Appended) and entry.diff.lower >= state.upper:
                state = apply(state, entry, place.meta.path(shard_key(name)))
            elif isinstance(entry.diff, SinceAdvanced) and state.since < entry.diff.since < state.upper:
                state = msgspec.structs.replace(state, since=entry.diff.since)
            elif isinstance(entry.diff, Finalized):
                return None
    except Damaged:
        return None
    return state if upper is None or state.upper == upper else None


def _entries(place: StorageContext, name: str) -> Iterator[LogEntry]:
    """Yield the readable entries. Applying them detects a gap between appends."""
    path = place.meta.path(shard_key(name))
    for record in place.retry_read(lambda: place.meta.scan(shard_key(name))):
        try:
            yield unseal(record.data, LogEntry, path)
        except EvertideError:
            continue


def _commit(place: StorageContext, state: ShardState, writer: Writer) -> None:
    heads = [place.meta.head(key) for key in _keys(state.shard)]
    numbers = [head.seqno if head else 0 for head in heads]
    with writer.claim() as seq:
        holds = read_last_holds(place, state.shard, state.since)
        change(place, writer, make_shard_writes(place, state, writer, seq, holds, numbers))
    place.meta.truncate(shard_key(state.shard), numbers[0] + 1)


def _keys(name: str) -> tuple[str, str, str]:
    return shard_key(name), rollup_key(name), hold_key(name)


def make_shard_writes(  # noqa: PLR0917
    place: StorageContext,
    state: ShardState,
    writer: Writer,
    seq: int,
    holds: Mapping[str, int],
    numbers: Sequence[int] = (0, 0, 0),
) -> list[Write]:
    """Put the state as a roll-up; return the writes of the shard's log, of the roll-up's address, and of the holds.

    The roll-up covers the record of the log: a reader starts from the roll-up. `numbers` are those of the last records.
    """
    name, token = state.shard, writer.new_token()
    bare = seal(msgspec.structs.replace(state, tokens={}))
    put = place.put(rollup_blob_key(name, Name(writer.id, seq, "state")), bare)
    records = (
        LogEntry(writer.id, token, Created(name, state.schema)),
        Rollup(SequenceNumber(numbers[0] + 1), put.key, put.bytes, put.digest),
        HoldRecord(state.since, dict(holds), f"{writer.id}-{token}"),
    )
    return [Write(key, number, seal(record)) for key, number, record in zip(_keys(name), numbers, records, strict=True)]
