"""Messages decoded many at a time and one by one: the same rows, the same faults, in the same places."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evertide.sources.contract import OP
from evertide.sources.postgres.batches import HEAD, WORTHWHILE, extract_new_rows
from evertide.sources.postgres.transactions import BufferLimits, CompleteTransactions
from tests.sources.postgres.test_messages import Memory, begin, commit, insert, relation, transactions

XID = struct.pack(">I", 3)
TEXTS = st.one_of(
    st.none(),
    st.integers(-(10**20), 10**20).map(lambda number: str(number).encode()),
    st.text('aé"\0', max_size=4).map(str.encode),
    st.just(b"\xff\xfe"),
)


def value(text: bytes | None) -> bytes:
    return b"n" if text is None else b"t" + struct.pack(">i", len(text)) + text


def tuple_of(*values: bytes | None) -> bytes:
    return struct.pack(">h", len(values)) + b"".join(map(value, values))


@st.composite
def changes(draw: st.DrawFn) -> bytes:
    """A change of the table, or of another one; without the id of the subtransaction."""
    oid = struct.pack(">I", draw(st.sampled_from([5, 5, 5, 6])))
    kind = draw(st.sampled_from("IIIIIUUmsDT"))
    if kind == "T":
        return b"T" + struct.pack(">iB", 1, 0) + oid
    key, note = draw(TEXTS), draw(TEXTS)
    if kind == "D":
        return b"D" + oid + b"K" + tuple_of(key or b"1", None)
    if kind == "m":  # an update of the key
        return b"U" + oid + b"K" + tuple_of(draw(TEXTS) or b"1", None) + b"N" + tuple_of(key, note)
    if kind == "s":  # an update that omits an unchanged value
        return b"U" + oid + b"N" + struct.pack(">h", 2) + value(key) + b"u"
    return kind.encode() + oid + b"N" + tuple_of(key, note)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Transactions, small and large, some of them streamed, with subtransactions that are rolled back."""
    found = [begin(50), relation("id", "note"), commit(50)]
    for number in range(draw(st.integers(1, 6))):
        inside = draw(st.lists(changes(), max_size=30))
        lsn = 100 * (number + 1)
        if draw(st.booleans()):
            found += [begin(lsn), *inside, commit(lsn)]
            continue
        xids = [struct.pack(">I", draw(st.sampled_from([3, 4]))) for _ in inside]
        said = [relation("id", "note", xid=XID)]
        said += [one[:1] + xid + one[1:] for one, xid in zip(inside, xids, strict=True)]
        cut = draw(st.integers(0, len(said)))
        found += [b"S" + XID + b"\1", *said[:cut], b"E", b"S" + XID + b"\0", *said[cut:], b"E"]
        found += [b"A" + XID + struct.pack(">I", 4)] * draw(st.integers(0, 1))
        found.append(b"c" + struct.pack(">IbQQq", 3, 0, lsn, lsn + 8, 0))
    return found


def outer(content: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", 1, 1, 0) + content


def stage(messages: list[bytes], limits: BufferLimits, batch: int) -> Any:
    """The staged rows and the error at the end. `batch` 1: one by one."""
    done: list[CompleteTransactions] = []
    staging = Memory()
    several = transactions(done, staging, limits=limits)
    error = ""
    try:
        for at in range(0, len(messages), batch):
            if batch == 1:
                several.take(messages[at])
            else:
                several.take_all([outer(one) for one in messages[at : at + batch]])
        several.flush()
    except Exception as raised:  # noqa: BLE001 - both ways must fail alike
        error = str(raised)
        several.flush_whole()
    several.drop()
    tables = [staging.kept[fragment.key] for each in done for fragment in each.fragments]
    return [table.to_pylist() for table in tables], [table.schema for table in tables], error, several.after


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(messages=streams(), batch=st.sampled_from([60, 97, 10_000]))
def test_both_ways_give_the_same_result(messages: list[bytes], batch: int) -> None:
    limits = BufferLimits(rows=10_000)
    assert stage(messages, limits, batch) == stage(messages, limits, 1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(messages=st.lists(changes().map(lambda one: b"x" * HEAD + one), min_size=1, max_size=80), data=st.data())
def test_truncated_messages_are_decoded_one_by_one(messages: list[bytes], data: st.DataObject) -> None:
    """A message that is too short or too long is never taken for a row."""
    at = data.draw(st.integers(0, len(messages) - 1))
    length = data.draw(st.integers(1, len(messages[at]) - HEAD))
    broken = [*messages]
    broken[at] = messages[at][: HEAD + length - 1] + b"I" if length == 1 else messages[at][: HEAD + length]
    longer = [*messages]
    longer[at] = messages[at] + b"\0"
    for several in (broken, longer):
        if several[at] != messages[at]:
            assert at in extract_new_rows(several, is_streamed=False)[1]


def test_a_truncated_last_message_is_no_row() -> None:
    """No bytes follow the last message: its end must be compared, not limited."""
    whole = b"x" * HEAD + insert("1", "note")
    for length in range(HEAD + 6, len(whole)):
        assert extract_new_rows([whole, whole[:length]], is_streamed=False)[1] == [1], length


def test_rows_are_staged_as_soon_as_there_are_enough() -> None:
    """And no row of a batch is lost, for any limits."""
    rows = [insert(str(number), "x") for number in range(1000)]
    messages = [begin(100), relation("id", "note"), *rows, commit(100)]
    tables, _, _, _ = stage(messages, BufferLimits(rows=300), 10_000)
    assert [len(table) for table in tables] == [300, 300, 300, 100]
    assert [row["id"] for table in tables for row in table] == list(range(1000))
    assert [len(table) for table in stage(messages, BufferLimits(bytes=20_000), 10_000)[0]] != [1000]


def test_few_messages_are_decoded_one_by_one() -> None:
    """Both ways are used, and a row keeps its place among those of the other way."""
    many = [insert(str(number), "many") for number in range(WORTHWHILE)]
    messages = [begin(100), relation("id", "note"), insert("-1", "few"), *many, insert("-2", "few"), commit(100)]
    done: list[CompleteTransactions] = []
    staging = Memory()
    several = transactions(done, staging)
    several.take_all([outer(one) for one in messages[:3]])
    several.take_all([outer(one) for one in messages[3:-2]])
    several.take_all([outer(one) for one in messages[-2:]])
    several.flush()
    [table] = staging.kept.values()
    assert [row["id"] for row in table.to_pylist()] == [-1, *range(WORTHWHILE), -2]
    assert set(table.column(OP).to_pylist()) == {0}
    assert isinstance(table, pa.Table)


def test_a_change_of_the_order_of_columns_is_followed() -> None:
    rows = [[insert(str(number), "x"), insert("x", str(number))] for number in range(60)]
    messages = [begin(100), relation("id", "note"), *(one for one, _ in rows)]
    messages += [relation("note", "id"), *(other for _, other in rows), commit(100)]
    [table], _, _, _ = stage(messages, BufferLimits(), 10_000)
    assert [(row["id"], row["note"]) for row in table] == [(number, "x") for number in range(60)] * 2


def test_rows_of_an_interleaved_streamed_transaction_stay_separate() -> None:
    """Rows of the same table, in the same messages, before and after those of a transaction that is still open."""
    xid = struct.pack(">I", 3)
    few = [
        [insert(str(100 * part + number), "x", xid=xid if part == 1 else b"") for number in range(30)]
        for part in range(3)
    ]
    messages = [begin(50), relation("id", "note"), *few[0], commit(50)]
    messages += [b"S" + xid + b"\1", relation("id", "note", xid=xid), *few[1], b"E"]
    messages += [begin(100), *few[2], commit(100), b"c" + struct.pack(">IbQQq", 3, 0, 200, 208, 0)]
    both = [[row["id"] for row in table] for table in stage(messages, BufferLimits(), 10_000)[0]]
    assert both == [[*range(30), *range(200, 230)], [*range(100, 130)]]
    assert stage(messages, BufferLimits(), 10_000) == stage(messages, BufferLimits(), 1)
