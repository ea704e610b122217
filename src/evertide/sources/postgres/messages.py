"""Decode the messages of a replication connection: the stream's own, and those of `pgoutput` inside.

The protocol is version 2 of pgoutput, of servers from 14. A large transaction may be *streamed* while it is open, in
blocks between `StreamStart` and `StreamStop`. In a block every change has the id of its subtransaction, and a part of
the transaction may be rolled back later (`StreamAbort`).

A value is the text that the server writes, None for NULL, or `UNCHANGED`: a large value that an update did not change.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import msgspec

_EPOCH_S = 946_684_800
"""Seconds from 1970 to 2000, the epoch of PostgreSQL."""

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_UINT = struct.Struct(">I")
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">bQQq")
_STREAM_COMMIT = struct.Struct(">IbQQq")
_TWO_XIDS = struct.Struct(">II")
_STREAM_START = struct.Struct(">Ib")
_WAL = struct.Struct(">QQq")
_KEEPALIVE = struct.Struct(">Qqb")
_STATUS = struct.Struct(">cQQQqb")


class UnknownMessage(Exception):
    """The server, or a proxy before it, sent something that pgoutput does not have. The receiver names the source."""


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = _Unchanged()
Value = bytes | None | _Unchanged


class Begin(msgspec.Struct, frozen=True):
    commit_lsn: int
    commit_s: float
    xid: int


class Commit(msgspec.Struct, frozen=True):
    commit_lsn: int
    end_lsn: int
    commit_s: float


class RelationColumn(msgspec.Struct, frozen=True):
    name: str
    type_oid: int
    type_modifier: int
    is_identity: bool


class RelationMessage(msgspec.Struct, frozen=True):
    oid: int
    name: tuple[str, str]
    """Schema and table."""
    identity: str
    """d: the primary key, i: an index, f: all columns, n: nothing."""
    columns: tuple[RelationColumn, ...]
    xid: int = 0


class RowChange(msgspec.Struct, frozen=True, gc=False):
    """`old` is None for an insert, and for an update that did not change the identity; `new` is None for a delete."""

    relation: int
    old: list[Value] | None
    new: list[Value] | None
    is_old_whole: bool = False
    """Whether `old` has all columns, not only those of the identity."""
    xid: int = 0


class Truncate(msgspec.Struct, frozen=True):
    relations: tuple[int, ...]
    xid: int = 0


class StreamStart(msgspec.Struct, frozen=True):
    xid: int


class StreamStop(msgspec.Struct, frozen=True):
    pass


class StreamCommit(msgspec.Struct, frozen=True):
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_s: float


class StreamAbort(msgspec.Struct, frozen=True):
    xid: int
    subxid: int


Message = (
    Begin | Commit | RelationMessage | RowChange | Truncate | StreamStart | StreamStop | StreamCommit | StreamAbort
)


class Keepalive(msgspec.Struct, frozen=True):
    wal_end: int
    """Everything committed up to this position was sent."""
    wants_reply: bool


def parse_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def is_data(content: bytes) -> bool:
    """Whether an outer message contains a pgoutput message; if not, it is a keepalive."""
    return content[0] == 0x77  # w


def read_lsn(content: bytes) -> int:
    """The position of an outer data message in the server's log."""
    start: int = _WAL.unpack_from(content, 1)[0]
    return start


def decode_keepalive(content: bytes) -> Keepalive:
    if content[:1] != b"k":
        raise UnknownMessage(f"a message of the unknown kind {content[:1]!r}")
    end, _, reply = _KEEPALIVE.unpack_from(content, 1)
    return Keepalive(end, bool(reply))


def encode_status(received: int, bound: int, wall_s: float, *, wants_reply: bool) -> bytes:
    """Encode a status update: the position received, and the bound one, which the server may discard up to."""
    micros = int((wall_s - _EPOCH_S) * 1_000_000)
    return _STATUS.pack(b"r", max(received, bound), bound, bound, micros, int(wants_reply))


def decode_new_row(content: bytes, *, is_streamed: bool) -> tuple[int, int, list[Value]] | None:
    """Decode an insert, or an update without an old row, quickly: xid, relation and values.

    None for any other message, and for an update with an unchanged value: use `decode`.
    """
    kind = content[0]
    at = 5 if is_streamed else 1
    if kind not in (0x49, 0x55) or content[at + 4] != 0x4E:  # I, U, N
        return None
    values, _ = _values(content, at + 5)
    if kind == 0x55 and UNCHANGED in values:
        return None
    return _UINT.unpack_from(content, 1)[0] if is_streamed else 0, _UINT.unpack_from(content, at)[0], values


def decode(content: bytes, *, is_streamed: bool) -> Message | None:
    """Decode one pgoutput message; None if the source ignores its kind. `is_streamed`: inside a streamed block."""
    kind = content[:1]
    if kind in b"IUD":
        return _change(content, is_streamed=is_streamed)
    found = _DECODERS.get(kind)
    if found is not None:
        return found(content, is_streamed)
    if kind not in (b"O", b"Y", b"M"):  # origin, type, message of an application
        raise UnknownMessage(f"a message of the unknown kind {kind!r}")
    return None


def _begin(content: bytes, _is_streamed: bool) -> Begin:  # noqa: FBT001 - all decoders are called alike
    lsn, micros, xid = _BEGIN.unpack_from(content, 1)
    return Begin(lsn, _seconds(micros), xid)


def _commit(content: bytes, _is_streamed: bool) -> Commit:  # noqa: FBT001
    _, lsn, end, micros = _COMMIT.unpack_from(content, 1)
    return Commit(lsn, end, _seconds(micros))


def _stream_start(content: bytes, _is_streamed: bool) -> StreamStart:  # noqa: FBT001
    xid, _ = _STREAM_START.unpack_from(content, 1)
    return StreamStart(xid)


def _stream_stop(_content: bytes, _is_streamed: bool) -> StreamStop:  # noqa: FBT001
    return StreamStop()


def _stream_commit(content: bytes, _is_streamed: bool) -> StreamCommit:  # noqa: FBT001
    xid, _, lsn, end, micros = _STREAM_COMMIT.unpack_from(content, 1)
    return StreamCommit(xid, lsn, end, _seconds(micros))


def _stream_abort(content: bytes, _is_streamed: bool) -> StreamAbort:  # noqa: FBT001
    return StreamAbort(*_TWO_XIDS.unpack_from(content, 1))


def _truncate(content: bytes, is_streamed: bool) -> Truncate:  # noqa: FBT001
    xid, at = _xid(content, is_streamed=is_streamed)
    (count,) = _INT.unpack_from(content, at)
    return Truncate(struct.unpack_from(f">{count}I", content, at + 5), xid)


def _relation(content: bytes, is_streamed: bool) -> RelationMessage:  # noqa: FBT001
    xid, at = _xid(content, is_streamed=is_streamed)
    (oid,) = _UINT.unpack_from(content, at)
    schema, at = _string(content, at + 4)
    table, at = _string(content, at)
    identity = content[at : at + 1].decode()
    (count,) = _SHORT.unpack_from(content, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        is_identity = bool(content[at] & 1)
        name, at = _string(content, at + 1)
        (type_oid,), (modifier,) = _UINT.unpack_from(content, at), _INT.unpack_from(content, at + 4)
        at += 8
        columns.append(RelationColumn(name, type_oid, modifier, is_identity))
    return RelationMessage(oid, (schema or "pg_catalog", table), identity, tuple(columns), xid)


def _change(content: bytes, *, is_streamed: bool) -> RowChange:
    xid, at = _xid(content, is_streamed=is_streamed)
    (oid,) = _UINT.unpack_from(content, at)
    at += 4
    old: list[Value] | None = None
    is_old_whole = False
    mark = content[at : at + 1]
    if mark in (b"K", b"O"):
        is_old_whole = mark == b"O"
        old, at = _values(content, at + 1)
        mark = content[at : at + 1]
    new = _values(content, at + 1)[0] if mark == b"N" else None
    return RowChange(oid, old, new, is_old_whole, xid)


def _values(content: bytes, at: int) -> tuple[list[Value], int]:
    (count,) = _SHORT.unpack_from(content, at)
    at += 2
    values: list[Value] = []
    append, length_at = values.append, _INT.unpack_from
    for _ in range(count):
        kind = content[at]
        if kind == 0x74:  # t
            begin = at + 5
            at = begin + length_at(content, at + 1)[0]
            append(content[begin:at])
            continue
        at += 1
        if kind == 0x6E:  # n
            append(None)
        elif kind == 0x75:  # u
            append(UNCHANGED)
        else:
            raise UnknownMessage(f"a value of the unknown kind {chr(kind)!r}")
    return values, at


def _xid(content: bytes, *, is_streamed: bool) -> tuple[int, int]:
    return (_UINT.unpack_from(content, 1)[0], 5) if is_streamed else (0, 1)


def _string(content: bytes, at: int) -> tuple[str, int]:
    end = content.index(b"\0", at)
    return content[at:end].decode(), end + 1


def _seconds(micros: int) -> float:
    return micros / 1_000_000 + _EPOCH_S


_DECODERS: dict[bytes, Callable[[bytes, bool], Message]] = {
    b"B": _begin,
    b"C": _commit,
    b"R": _relation,
    b"T": _truncate,
    b"S": _stream_start,
    b"E": _stream_stop,
    b"c": _stream_commit,
    b"A": _stream_abort,
}
