"""pgoutput, byte by byte, and its decoding without a server: repeats, and errors in the middle."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from evertide.errors import SourceFailed
from evertide.journal.records import Staged
from evertide.postgres import TableName
from evertide.sources.contract import DELETE, OP, TRUNCATE, UPSERT, TableDeclaration
from evertide.sources.postgres.catalog import RemoteColumn, UpstreamTable
from evertide.sources.postgres.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Keepalive,
    RelationMessage,
    RowChange,
    StreamAbort,
    StreamCommit,
    Truncate,
    UnknownMessage,
    decode,
    decode_keepalive,
    decode_new_row,
    encode_status,
    format_lsn,
    is_data,
    parse_lsn,
    read_lsn,
)
from evertide.sources.postgres.receiver import Receiver
from evertide.sources.postgres.server import SourceAddress
from evertide.sources.postgres.transactions import BufferLimits, CompleteTransactions, TransactionAssembler
from evertide.sources.postgres.types import PgType
from tests.kit.runtime import ManualRuntime

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])


def text(value: str | None) -> bytes:
    return b"n" if value is None else b"t" + struct.pack(">i", len(value.encode())) + value.encode()


def row(*values: str | None) -> bytes:
    return struct.pack(">h", len(values)) + b"".join(map(text, values))


def begin(commit: int) -> bytes:
    return b"B" + struct.pack(">QqI", commit, 0, 7)


def commit(lsn: int) -> bytes:
    return b"C" + struct.pack(">bQQq", 0, lsn, lsn + 8, 1_000_000)


def relation(*names: str, xid: bytes = b"", oid: int = 5, kind: int = 20) -> bytes:
    columns = b"".join(
        (b"\1" if name == "id" else b"\0")
        + name.encode()
        + b"\0"
        + struct.pack(">Ii", kind if name == "id" else 25, -1)
        for name in names
    )
    return b"R" + xid + struct.pack(">I", oid) + b"public\0orders\0d" + struct.pack(">h", len(names)) + columns


def insert(*values: str | None, xid: bytes = b"") -> bytes:
    return b"I" + xid + struct.pack(">I", 5) + b"N" + row(*values)


def test_every_message_is_decoded() -> None:
    assert decode(begin(9), is_streamed=False) == Begin(9, 946684800.0, 7)
    assert decode(commit(9), is_streamed=False) == Commit(9, 17, 946684801.0)
    found = decode(relation("id", "note"), is_streamed=False)
    assert isinstance(found, RelationMessage)
    assert (found.oid, found.name, found.identity) == (5, ("public", "orders"), "d")
    assert [(column.name, column.type_oid, column.is_identity) for column in found.columns] == [
        ("id", 20, True),
        ("note", 25, False),
    ]
    update = b"U" + struct.pack(">I", 5) + b"K" + row("1", None) + b"N" + struct.pack(">h", 2) + text("2") + b"u"
    assert decode(update, is_streamed=False) == RowChange(5, [b"1", None], [b"2", UNCHANGED])
    delete = b"D" + struct.pack(">II", 3, 5) + b"O" + row("1", "x")
    assert decode(delete, is_streamed=True) == RowChange(5, [b"1", b"x"], None, is_old_whole=True, xid=3)
    assert decode(b"T" + struct.pack(">iBII", 2, 1, 5, 6), is_streamed=False) == Truncate((5, 6))
    assert decode(b"A" + struct.pack(">II", 3, 4), is_streamed=False) == StreamAbort(3, 4)
    streamed = b"c" + struct.pack(">IbQQq", 3, 0, 9, 17, 0)
    assert decode(streamed, is_streamed=False) == StreamCommit(3, 9, 17, 946684800.0)
    for ignored in (b"O" + b"\0" * 9, b"Y\0\0\0\5x\0y\0", b"M\0"):
        assert decode(ignored, is_streamed=False) is None
    assert decode_new_row(insert("1", None, xid=b"\0\0\0\3"), is_streamed=True) == (3, 5, [b"1", None])
    assert decode_new_row(update, is_streamed=False) is None
    with pytest.raises(UnknownMessage, match="unknown kind"):
        decode(b"?", is_streamed=False)
    with pytest.raises(UnknownMessage, match="unknown kind"):
        decode(b"I" + struct.pack(">I", 5) + b"N" + struct.pack(">h", 1) + b"b", is_streamed=False)


def test_outer_messages_and_positions() -> None:
    data, life = b"w" + struct.pack(">QQq", 5, 6, 0) + b"B", b"k" + struct.pack(">Qqb", 6, 0, 1)
    assert (is_data(data), read_lsn(data)) == (True, 5)
    assert (is_data(life), decode_keepalive(life)) == (False, Keepalive(6, wants_reply=True))
    with pytest.raises(UnknownMessage, match="unknown kind"):
        decode_keepalive(b"z")
    assert parse_lsn("1/A0") == (1 << 32) | 0xA0
    assert format_lsn(parse_lsn("16/B374D848")) == "16/B374D848"
    told = struct.unpack(">cQQQqb", encode_status(9, 5, 946684801.0, wants_reply=True))
    assert told == (b"r", 9, 5, 5, 1_000_000, 1)


class Memory:
    """Staging without a journal."""

    def __init__(self) -> None:
        self.kept: dict[str, pa.Table] = {}
        self.dropped: list[str] = []

    def stage(self, table: str, rows: pa.Table) -> Staged:
        key = str(len(self.kept) + len(self.dropped))
        self.kept[key] = rows
        return Staged(table, key, rows.num_rows, rows.nbytes, "")

    def load(self, fragment: Staged) -> pa.Table:
        return self.kept[fragment.key]

    def drop(self, fragments: Sequence[Staged]) -> None:
        for fragment in fragments:
            del self.kept[fragment.key]
            self.dropped.append(fragment.key)


def transactions(
    done: list[CompleteTransactions],
    staging: Memory,
    after: int = 0,
    limits: BufferLimits = BufferLimits(),  # noqa: B008 - frozen
) -> TransactionAssembler:
    declaration = TableDeclaration("orders", SCHEMA, ("id",), "postgres", {}, "shop.sql:1")
    columns = (
        RemoteColumn("id", "id", pa.int64(), PgType("int8", "bigint"), "20:-1", is_key=True, is_nullable=False),
        RemoteColumn("note", "note", pa.string(), PgType("text", "text"), "25:-1", is_key=False, is_nullable=True),
    )
    upstream = UpstreamTable(declaration, TableName("public", "orders"), columns, is_partitioned=False)
    address = SourceAddress("", str, "evertide", "here")
    known = {"public.orders": {"id": "20:-1", "note": "25:-1"}}
    return TransactionAssembler(address, [upstream], staging, done.append, after=after, columns=known, limits=limits)


def staged(done: list[CompleteTransactions], staging: Memory) -> list[tuple[int, int | None]]:
    tables = [staging.kept[fragment.key] for each in done for fragment in each.fragments]
    return [(each[OP], each["id"]) for one in tables for each in one.to_pylist()]


def take(several: TransactionAssembler, *messages: bytes) -> None:
    for message in messages:
        several.take(message)


def test_j10_bound_transactions_are_dropped() -> None:
    """Both transactions are sent again; the position is the end of the first. Without it, rows would be bound twice."""
    done: list[CompleteTransactions] = []
    staging = Memory()
    several = transactions(done, staging, after=108)
    take(several, begin(100), relation("id", "note"), insert("1", "a"), commit(100))
    take(several, begin(108), insert("2", "b"), commit(108))
    several.flush()
    assert staged(done, staging) == [(UPSERT, 2)]
    assert [each.end_lsn for each in done] == [116]
    assert several.after == 116


def test_transactions_before_an_unreadable_one_are_kept() -> None:
    """The relation changes in the middle of the second transaction: its first row must be dropped, that of the first
    kept.
    """
    done: list[CompleteTransactions] = []
    staging = Memory()
    several = transactions(done, staging)
    take(several, begin(100), relation("id", "note"), insert("1", "a"), commit(100), begin(200), insert("2", "b"))
    with pytest.raises(SourceFailed, match="'note' was dropped or renamed"):
        several.take(relation("id"))
    several.flush_whole()
    several.drop()
    assert staged(done, staging) == [(UPSERT, 1)]


def test_a_relation_that_changes_in_a_streamed_transaction_applies_at_its_commit() -> None:
    done: list[CompleteTransactions] = []
    staging = Memory()
    xid = struct.pack(">I", 3)
    start, stop = b"S" + xid + b"\1", b"E"
    several = transactions(done, staging)
    take(several, start, relation("id", xid=xid), insert("1", xid=xid), stop, b"A" + xid + xid)
    take(several, start, relation("id", "note", xid=xid), insert("2", "b", xid=xid), stop)
    take(several, b"c" + struct.pack(">IbQQq", 3, 0, 100, 108, 0))
    assert staged(done, staging) == [(UPSERT, 2)]
    take(several, start, relation("id", xid=xid), stop)
    with pytest.raises(SourceFailed, match="'note' was dropped or renamed"):
        take(several, b"c" + struct.pack(">IbQQq", 3, 0, 200, 208, 0))


def test_t7_staged_rows_of_an_aborted_transaction_are_dropped_at_once() -> None:
    """It may be large, and the process may live for long."""
    done: list[CompleteTransactions] = []
    staging = Memory()
    xid = struct.pack(">I", 3)
    several = transactions(done, staging, limits=BufferLimits(rows=2))
    take(several, b"S" + xid + b"\1", relation("id", "note", xid=xid))
    take(several, *(insert(str(number), "x", xid=xid) for number in range(5)), b"E")
    assert len(staging.kept) == 2
    take(several, b"A" + xid + xid)
    assert staging.kept == {}
    assert several._streamed == {}


def test_all_streamed_transactions_together_are_bounded() -> None:
    done: list[CompleteTransactions] = []
    staging = Memory()
    several = transactions(done, staging, limits=BufferLimits(open_bytes=3000))
    for number in range(50):
        xid = struct.pack(">I", number + 1)
        take(
            several, b"S" + xid + b"\1", relation("id", "note", xid=xid), insert(str(number), "x" * 100, xid=xid), b"E"
        )
        assert sum(one.rows.bytes for one in several._streamed.values()) <= 3000
    several.drop()
    assert staging.kept == {}
    assert done == []


def test_a_key_that_moves_and_a_truncate_are_rows_in_order() -> None:
    done: list[CompleteTransactions] = []
    staging = Memory()
    several = transactions(done, staging)
    moved = b"U" + struct.pack(">I", 5) + b"K" + row("1", None) + b"N" + row("2", "b")
    deleted = b"D" + struct.pack(">I", 5) + b"K" + row("2", None)
    cut = b"T" + struct.pack(">iBI", 1, 0, 5)
    take(several, begin(100), relation("id", "note"), moved, cut, deleted, commit(100))
    several.flush()
    assert staged(done, staging) == [(DELETE, 1), (UPSERT, 2), (TRUNCATE, None), (DELETE, 2)]


def test_a_message_that_pgoutput_does_not_have_is_a_failure_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail: the problem asked the user to report a bug, though a server or a proxy sent the message."""
    queue: Any = SimpleNamespace(is_closed=False, epoch=0)
    server: Any = SimpleNamespace(address=SourceAddress("", str, "evertide", "here"))
    receiver = Receiver(server, [], cast("Any", SimpleNamespace(slot="s")), queue, cast("Any", None), ManualRuntime())

    def fail(_: Receiver) -> None:
        queue.is_closed = True
        decode_keepalive(b"z")

    monkeypatch.setattr(Receiver, "_session", fail)
    receiver._run()
    assert receiver.problem is not None
    assert (receiver.problem.error_code, receiver.problem.source) == ("source_failed", "evertide")
    assert receiver.problem.why == "the server, or a proxy before it, sent a message of the unknown kind b'z'"
