"""How a value is stored as bytes: every Meta record and every roll-up goes through here.

Layout, version 1:

    byte 0       format version of the value's own kind
    bytes 1-8    xxh64 of the rest, little endian
    bytes 9-     the value, as MessagePack

The version is looked at before anything else, so that a newer format is refused by number and never half-read; the
checksum tells damage from a misunderstanding.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import xxhash

from evertide.errors import RecordDamaged, UnsupportedFormat

__all__ = ["seal", "unseal"]

T = TypeVar("T")

_HEADER_BYTES = 9
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}


def seal(value: Any, version: int = 1) -> bytes:
    body = _encoder.encode(value)
    return bytes([version]) + xxhash.xxh64_intdigest(body).to_bytes(8, "little") + body


def unseal(data: bytes, kind: type[T], path: str, version: int = 1) -> T:
    """`path` is for the error: where the bytes lie."""
    if len(data) <= _HEADER_BYTES:
        raise RecordDamaged(path=path, why=f"{len(data)} bytes are too few for a record")
    if data[0] != version:
        raise UnsupportedFormat(path=path, found=data[0], supported=version)
    body = data[_HEADER_BYTES:]
    if xxhash.xxh64_intdigest(body).to_bytes(8, "little") != data[1:_HEADER_BYTES]:
        raise RecordDamaged(path=path, why="the checksum does not fit the content")
    try:
        decoder = _decoders.get(kind) or _decoders.setdefault(kind, msgspec.msgpack.Decoder(kind))
        found: T = decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise RecordDamaged(path=path, why=f"not a {kind.__name__}: {error}") from error
    return found
