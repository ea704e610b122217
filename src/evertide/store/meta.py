"""`Meta`: the interface for small records: a log per key, with compare-and-set.

A key has records 1, 2, 3, ...; the newest is the head. Records that must change together change in one `commit` over
several keys, which makes atomic visibility (I4) and fencing (I16) simple.

Contract, checked for every implementation by `tests/store/test_meta.py`:

1. `commit(writes, guards)` succeeds if and only if the head of every written and every guarded key has the expected
   number (0: the key has no record). A write appends record `expected + 1`; a write without data removes the key with
   all its records. On return all of the commit is durable, or none of it ever is. Several writes of one key append
   consecutive records, each of which expects the one before; otherwise a commit writes a key once.
2. If a number differs, nothing is written, and `commit` returns a `Stale` with the first such key in key order. It is a
   value, not an error: losing a race is ordinary. A commit that succeeded returns None.
3. A removed key starts again at 0, so only keys with a never-reused id in their name may be removed: otherwise a guard
   could mistake the new key for the old.
4. `scan(key, after, limit)` returns the records above `after`, without gaps, oldest first, as of one moment: all of
   them, or the first `limit` (at least 1), at the cost of these only. `heads(prefix)` returns the newest record of
   every key with that prefix, in key order, as of one moment.
5. `truncate(key, below)` deletes the records below a number; the head always stays.
6. Failures are typed (I14): `Unavailable` means that nothing happened, `OutcomeUnknown` that the commit may have. A
   commit whose outcome is unknown may even still be under way: read back, and commit again with the same expected
   numbers; at most one of the two can succeed. Reads raise `Unavailable` only; an unreadable store raises
   `RecordDamaged`.
7. `wait(key, after, timeout_s)` returns True as soon as the head may be above `after`: at once for commits through this
   object, by polling for those of other processes; False after the timeout. It may return True early, never too late.
8. Implementations are safe to share between threads; other processes open their own.

`seal` encodes a value as bytes, for every record and for every roll-up of a shard. Layout, version 1:

    byte 0       format version of the value's own kind
    bytes 1-8    xxh64 of the rest, little endian
    bytes 9-     the value, as MessagePack

The version is checked first, so that a newer format is refused by number and never half-read; the checksum
distinguishes damage from a wrong type.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
import xxhash

from evertide.errors import RecordDamaged, UnsupportedFormat
from evertide.types import SequenceNumber

T = TypeVar("T")

_HEADER_BYTES = 9
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}
_decoder_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Record:
    seqno: SequenceNumber
    data: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """Append `data` as record `expected + 1` of `key`, or remove the key if there is no data."""

    key: str
    expected: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class Guard:
    """The head of the key must have the expected number; the commit does not write the key."""

    key: str
    expected: int


@dataclass(frozen=True, slots=True)
class Stale:
    """The commit did not happen: the head of `key` was `found`, not `expected`."""

    key: str
    expected: int
    found: SequenceNumber


class Meta(Protocol):
    """A log of records per key, with compare-and-set over several keys; the header has the rules."""

    def head(self, key: str) -> Record | None: ...

    def heads(self, prefix: str) -> dict[str, Record]: ...

    def scan(self, key: str, after: int = 0, limit: int | None = None) -> list[Record]: ...

    def commit(self, writes: Sequence[Write], guards: Sequence[Guard] = ()) -> Stale | None: ...

    def truncate(self, key: str, below: int) -> None: ...

    def wait(self, key: str, after: int, timeout_s: float) -> bool: ...

    def close(self) -> None: ...

    def path(self, key: str) -> str:
        """The record's location, for messages."""
        ...


def seal(value: Any, version: int = 1) -> bytes:
    body = _encoder.encode(value)
    return bytes([version]) + xxhash.xxh64_intdigest(body).to_bytes(8, "little") + body


def check_seal(data: bytes, path: str, version: int = 1) -> None:
    """Check version and checksum, for any kind of value. `path` is for the error."""
    if len(data) <= _HEADER_BYTES:
        raise RecordDamaged(path=path, why=f"the record has only {len(data)} bytes")
    if data[0] != version:
        raise UnsupportedFormat(path=path, found=data[0], supported=version)
    body = data[_HEADER_BYTES:]
    if xxhash.xxh64_intdigest(body).to_bytes(8, "little") != data[1:_HEADER_BYTES]:
        raise RecordDamaged(path=path, why="the checksum does not match the content")


def unseal(data: bytes, kind: type[T], path: str, version: int = 1) -> T:
    """`path`, the location of the bytes, is for the error."""
    check_seal(data, path, version)
    body = data[_HEADER_BYTES:]
    try:
        found: T = (_decoders.get(kind) or _make_decoder(kind)).decode(body)
    except msgspec.MsgspecError as error:
        raise RecordDamaged(path=path, why=f"not a {kind.__name__}: {error}") from error
    return found


def _make_decoder(kind: type) -> msgspec.msgpack.Decoder[Any]:
    """One thread at a time: two that make the first decoder of a kind at the same moment crash the process."""
    with _decoder_lock:
        if kind not in _decoders:
            _decoders[kind] = msgspec.msgpack.Decoder(kind)
        return _decoders[kind]
