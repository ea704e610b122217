"""`Manifest`: all files of one checkpoint, by name, length and digest (I11).

Stored as the blob `checkpoints/<number>/manifest.json`, version 1. The publishing writer puts it once, after all files
that it names; garbage collection deletes it with its directory.

    {"version": 1, "checksum": "<xxh3-128 of the compact JSON of what follows>", "checkpoint": {...}}

Beside it in the directory:

    state.bin        what the engine needs besides its parts; only the engine interprets it
    pipeline.bin     the definition of the pipeline; only the pipeline interprets it
    <shard>.state    the state of a member shard at the checkpoint's time, sealed

Invariants, and what they prevent:

1. The version is checked first, the checksum second: a newer manifest would be half-read, and garbage collection would
   delete what a damaged one no longer names.
2. It names every file that a restart needs (`files`), and every part of the member shards (`shards`): with both, the
   storage can be restored even if Meta is lost.
3. It never changes. The catalog has its length and digest: another manifest could replace it unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import xxhash

from evertide.errors import RecordDamaged, UnsupportedFormat
from evertide.shard.state import ShardState
from evertide.store.paths import checkpoint_key, checkpoint_prefix, state_prefix
from evertide.types import Generation, Time

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "PIPELINE_FILE",
    "STATE_FILE",
    "Manifest",
    "StateFile",
    "decode_manifest",
    "encode_manifest",
    "list_part_files",
    "make_state_file",
    "manifest_key",
    "parse_number",
    "shard_file_key",
]

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
