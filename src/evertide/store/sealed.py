"""The encoding of a value as bytes, for every Meta record and every roll-up.

Layout, version 1:

    byte 0       format version of the value's own kind
    bytes 1-8    xxh64 of the rest, little endian
    bytes 9-     the value, as MessagePack

The version is checked first, so that a newer format is refused by number and never half-read; the checksum
distinguishes damage from a wrong type.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec
import xxhash

from evertide.errors import RecordDamaged, UnsupportedFormat

__all__ = ["check_seal", "seal", "unseal"]

T = TypeVar("T")

_HEADER_BYTES = 9
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}
_decoder_lock = threading.Lock()


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
