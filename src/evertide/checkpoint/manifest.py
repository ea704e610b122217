"""`Manifest`: everything that one checkpoint needs, by name, length and digest (I11).

Where it lies: the blob `checkpoints/<number>/manifest.json`. Version 1. Whoever publishes the checkpoint writes it,
once, after all files that it names; collection deletes it with its directory.

    {"version": 1, "checksum": "<xxh3-128 of the compact JSON of what follows>", "checkpoint": {...}}

Beside it in the directory:

    state.bin        what the engine needs besides its parts; only the engine understands it
    pipeline.bin     the record that says what the pipeline declares; only the pipeline understands it
    <shard>.state    the state of a member shard at the checkpoint's time, sealed

Invariants, and what would break without them:

1. The version is looked at first, the checksum second: or a newer manifest would be half-read, and a damaged one would
   let collection delete what it no longer names.
2. It names every file that a restart needs (`files`), and every part of the member shards (`shards`): with both, the
   storage can be had again although the whole of Meta is lost.
3. It never changes. The catalog knows its length and digest, so that it cannot be exchanged for another one.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import xxhash

from evertide.errors import RecordDamaged, UnsupportedFormat
from evertide.shard.state import ShardState
from evertide.store.paths import checkpoint_key, checkpoint_prefix, state_prefix
from evertide.types import Generation

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "PIPELINE_FILE",
    "STATE_FILE",
    "Manifest",
    "StateFile",
    "decode_manifest",
    "encode_manifest",
    "file_of",
    "manifest_key",
    "number_of",
    "shard_file_key",
    "shard_parts",
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
    time: int
    """It holds all transactions below this one."""
    made_at_s: float
    writer: str
    fingerprint: str
    generation: Generation
    members: tuple[str, ...]
    positions: dict[str, str]
    """Per source, where it stands before `time`: a text that only the source understands."""
    files: tuple[StateFile, ...]
    """Its own files, and the state parts."""
    shards: dict[str, tuple[StateFile, ...]]
    """Per member shard, its parts at that time."""

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
        """What it says about a file. `path` is where the manifest lies: for the error if it does not name the file."""
        found = next((file for file in self.files if file.key == key), None)
        if found is None:
            raise RecordDamaged(path=path, why=f"it does not name {key}")
        return found

    def names(self) -> Iterator[str]:
        """Everything that must not be deleted while this checkpoint may be used; itself, too."""
        yield manifest_key(self.number)
        for file in (*self.files, *self.shard_files):
            yield file.key


class _Versioned(msgspec.Struct):
    version: int


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    checksum: str
    checkpoint: Manifest


def manifest_key(number: int) -> str:
    return checkpoint_key(number, MANIFEST)


def shard_file_key(number: int, shard: str) -> str:
    return checkpoint_key(number, f"{shard}.state")


def number_of(key: str) -> int | None:
    """The checkpoint whose directory a blob lies in; None if it lies elsewhere, or the directory is nobody's."""
    name, _, rest = key.removeprefix(checkpoint_prefix()).partition("/")
    if not rest or not name.isdecimal() or not key.startswith(checkpoint_prefix()):
        return None
    return int(name) if key == checkpoint_key(int(name), rest) else None


def file_of(key: str, content: bytes) -> StateFile:
    return StateFile(key, len(content), xxhash.xxh3_128_hexdigest(content))


def shard_parts(state: ShardState) -> tuple[StateFile, ...]:
    """The blobs of a shard's state; what is inline lies in the state itself."""
    return tuple(StateFile(part.key, part.bytes, part.checksum) for part in state.parts if part.key)


def encode_manifest(manifest: Manifest) -> bytes:
    """For people to read, too."""
    envelope = _Envelope(FORMAT_VERSION, _checksum(manifest), manifest)
    return msgspec.json.format(msgspec.json.encode(envelope), indent=2) + b"\n"


def decode_manifest(content: bytes, path: str) -> Manifest:
    """`path` is for the error: where it lies."""
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(path=path, found=version, supported=FORMAT_VERSION)
        found = msgspec.json.decode(content, type=_Envelope)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RecordDamaged(path=path, why=f"not a manifest: {error}") from error
    if _checksum(found.checkpoint) != found.checksum:
        raise RecordDamaged(path=path, why="the checksum does not fit the content")
    return found.checkpoint


def _checksum(manifest: Manifest) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(manifest))
