"""The records of checkpoints in Meta, and the manifest of each (I11).

Stored under these keys of Meta, version 1 of each:

    checkpoints            `Catalog`: the published checkpoints, and the numbers being written; the newest counts
    restoring/<writer>     `RestoreHold`: the checkpoints that a writer reads, or whose parts its engine uses

1. Only the catalog says which checkpoints exist. The publishing writer changes it, under its guards; no process removes
   it. A hold is removed by its writer, or when that writer is no longer registered.
2. A *claim* says that a writer fills the directory of a number. The writer makes it before it puts the first file; the
   commit that publishes the checkpoint ends it. So no two writers fill one directory, and garbage collection deletes no
   directory and no part of a shard that a live writer is about to name.

The *manifest* lists all files of one checkpoint, by name, length and digest. It is stored as the blob
`checkpoints/<number>/manifest.json`, version 1. The publishing writer puts it once, after all files that it names;
garbage collection deletes it with its directory.

    {"version": 1, "checksum": "<xxh3-128 of the compact JSON of what follows>", "checkpoint": {...}}

Beside it in the directory:

    state.bin        what the engine needs besides its parts; only the engine interprets it
    pipeline.bin     the definition of the pipeline; only the pipeline interprets it
    <shard>.state    the state of a member shard at the checkpoint's time, sealed

Invariants, and what they prevent:

1. The version is checked first, the checksum second. Otherwise a newer manifest would be half-read, and garbage
   collection would delete what a damaged one no longer names.
2. It names every file that a restart needs (`files`), and every part of the member shards (`shards`). Otherwise the
   storage could not be restored if Meta is lost.
3. It never changes, and the catalog has its length and digest. Otherwise another manifest could replace it unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import xxhash

from evertide.errors import CheckpointDamaged, RecordDamaged, UnsupportedFormat
from evertide.shard.state import ShardState
from evertide.store.blob import Blob
from evertide.store.meta import Meta, unseal
from evertide.store.paths import CHECKPOINTS, checkpoint_key, checkpoint_prefix, restoring_key, state_prefix
from evertide.types import Generation, SequenceNumber, Time

FORMAT_VERSION = 1

MANIFEST = "manifest.json"
STATE_FILE = "state.bin"
PIPELINE_FILE = "pipeline.bin"


class StateFile(msgspec.Struct, frozen=True):
    """A file that a checkpoint needs. The digest is the xxh3-128 of its bytes, hexadecimal."""

    key: str
    bytes: int
    digest: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of one checkpoint, and the facts that a restart needs before it reads them."""

    number: int
    time: Time
    """The checkpoint contains all transactions below this time."""
    made_at_s: float
    writer: str
    fingerprint: str
    generation: Generation
    members: tuple[str, ...]
    positions: dict[str, str]
    """By source, its position before `time`: a text that only the source interprets."""
    files: tuple[StateFile, ...]
    """The checkpoint's own files, and the state parts."""
    shards: dict[str, tuple[StateFile, ...]]
    """By member shard, its parts at that time."""

    @property
    def state_parts(self) -> tuple[StateFile, ...]:
        return tuple(file for file in self.files if file.key.startswith(state_prefix()))

    @property
    def shard_files(self) -> tuple[StateFile, ...]:
        return tuple(file for files in self.shards.values() for file in files)

    @property
    def all_files(self) -> tuple[StateFile, ...]:
        return (*self.files, *self.shard_files)

    @property
    def own_files(self) -> tuple[StateFile, ...]:
        prefix = checkpoint_prefix(self.number)
        return tuple(file for file in self.files if file.key.startswith(prefix))

    def file(self, key: str, path: str) -> StateFile:
        """Return the entry of a file. `path`, the manifest's location, is for the error if there is none."""
        found = next((file for file in self.files if file.key == key), None)
        if found is None:
            raise RecordDamaged(path=path, why=f"the manifest does not name {key}")
        return found

    def names(self) -> Iterator[str]:
        """Yield the keys that must not be deleted while this checkpoint may be used, including the manifest's own."""
        yield manifest_key(self.number)
        for file in (*self.files, *self.shard_files):
            yield file.key


class _Versioned(msgspec.Struct):
    version: int


class _ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    checksum: str
    checkpoint: Manifest


def manifest_key(number: int) -> str:
    return checkpoint_key(number, MANIFEST)


def shard_file_key(number: int, shard: str) -> str:
    return checkpoint_key(number, f"{shard}.state")


def parse_number(key: str) -> int | None:
    """The checkpoint whose directory has this blob; None if the blob is elsewhere, or the directory has no number."""
    name, _, rest = key.removeprefix(checkpoint_prefix()).partition("/")
    if not rest or not name.isdecimal() or not key.startswith(checkpoint_prefix()):
        return None
    return int(name) if key == checkpoint_key(int(name), rest) else None


def make_state_file(key: str, content: bytes) -> StateFile:
    return StateFile(key, len(content), xxhash.xxh3_128_hexdigest(content))


def list_part_files(state: ShardState) -> tuple[StateFile, ...]:
    """The blobs of a shard's state, without inline parts."""
    return tuple(StateFile(part.key, part.bytes, part.checksum) for part in state.parts if part.key)


def encode_manifest(manifest: Manifest) -> bytes:
    """Indented, so that people can read it, too."""
    envelope = _ManifestFile(FORMAT_VERSION, _checksum(manifest), manifest)
    return msgspec.json.format(msgspec.json.encode(envelope), indent=2) + b"\n"


def decode_manifest(content: bytes, path: str) -> Manifest:
    """`path`, the location of the manifest, is for the error."""
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(path=path, found=version, supported=FORMAT_VERSION)
        found = msgspec.json.decode(content, type=_ManifestFile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordDamaged(path=path, why=f"the file is not a manifest: {error}") from error
    if _checksum(found.checkpoint) != found.checksum:
        raise RecordDamaged(path=path, why="the checksum does not match the content")
    return found.checkpoint


def _checksum(manifest: Manifest) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(manifest))


class CatalogEntry(msgspec.Struct, frozen=True):
    number: int
    time: Time
    key: str
    """The key of its manifest."""
    bytes: int
    digest: str
    """The xxh3-128 of the manifest, hexadecimal."""
    made_at_s: float


class Catalog(msgspec.Struct, frozen=True):
    entries: tuple[CatalogEntry, ...] = ()
    """Oldest first."""
    claims: dict[str, int] = {}
    """By writer, the number that it is writing."""
    last: int = 0
    """The highest number ever claimed, so that none is reused."""
    change: str = ""
    """A unique id: distinguishes a commit with unknown outcome from a peer's."""


class RestoreHold(msgspec.Struct, frozen=True):
    writer: str
    entries: tuple[CatalogEntry, ...]
    is_read: bool
    """Whether the restore has read the checkpoints, so that only the state parts are still needed."""
    held_at_s: float
    change: str


def read_catalog(blob: Blob, meta: Meta) -> tuple[SequenceNumber, Catalog]:
    """Return its record number and content. If it is missing although checkpoints exist, raise an error (C4)."""
    path = meta.path(CHECKPOINTS)
    record = meta.head(CHECKPOINTS)
    if record is None:
        found = list_numbers(entry.key for entry in blob.list(checkpoint_prefix()))
        record = meta.head(CHECKPOINTS) if found else None  # a peer may have published its first one meanwhile
        if record is None and found:
            there = ", ".join(blob.path(checkpoint_prefix(number)) for number in found)
            raise CheckpointDamaged(path=path, why=f"the catalog is missing, but these checkpoints exist: {there}")
    if record is None:
        return SequenceNumber(0), Catalog()
    return record.seqno, unseal(record.data, Catalog, path)


def read_holds(meta: Meta) -> dict[str, tuple[SequenceNumber, RestoreHold]]:
    found = {}
    for key, record in meta.heads(restoring_key("")).items():
        hold = unseal(record.data, RestoreHold, meta.path(key))
        found[hold.writer] = (record.seqno, hold)
    return found


def list_numbers(keys: Iterable[str]) -> list[int]:
    """The numbers of the checkpoints that these blobs belong to."""
    return sorted({number for key in keys if (number := parse_number(key)) is not None})
