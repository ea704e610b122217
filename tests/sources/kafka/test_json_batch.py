"""JSON decoded as a whole and record by record: the same rows, bit for bit, and the same faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evertide.brokers import EnvelopeKind
from evertide.sources.contract import Rows, TableDeclaration
from evertide.sources.kafka.formats import JsonFormat
from evertide.sources.kafka.json_batch import JsonBatch
from evertide.sources.kafka.positions import PartitionRecords
from evertide.sources.kafka.rows import EnvelopeRows

KINDS = {
    "id": pa.int64(),
    "small": pa.int8(),
    "ratio": pa.float64(),
    "amount": pa.decimal128(7, 2),
    "name": pa.string(),
    "good": pa.bool_(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
}
NUMBERS = [
    "0",
    "-0",
    "5",
    "-7",
    "128",
    "1.5",
    "1.50",
    "1.234",
    "1e2",
    "-1E-2",
    "12345.6",
    "99999.99",
    "123456.7",
    "1e400",
]
NUMBERS += [
    "9007199254740993",
    "-9007199254740992",
    "0.1",
    "1e-400",
    "-1e-400",
    "9223372036854775808",
    "NaN",
    "Infinity",
]
NUMBERS += ["-0.0", "0e5", "01", "+1", "1.", ".5", "-", "1e", "12345678901234567890123456789012345678901234567890"]
TEXTS = [
    "",
    "x",
    "é",
    "\\u0000",
    "\\ud83d\\ude00",
    "\\ud800",
    "a\\nb",
    "5",
    "1.25",
    " 1",
    "+1.5",
    "1.",
    ".5",
    "-",
    "1e2",
    "NaN",
]
TEXTS += [
    "0" * 300 + "1",
    "2026-01-31",
    "2026-02-30",
    "2026-01-31T10:20:30Z",
    "2026-01-31 10:20:30.123456",
    "0000-01-01",
]
TEXTS += [
    "2026-01-31T10:20:30.1234567Z",
    "2026-01-31T10",
    "2026-01-31T10:20:30+01:00",
    "2026-01-31T24:00:00",
    "true",
    "null",
]
GOOD: dict[str, Sequence[str]] = {
    "id": ["1", "-5", "null", "9223372036854775807"],
    "small": ["1", "-128", "null"],
    "ratio": ["1.5", "2", "null", "-3.25", "1e10", "0", "0.1"],
    "amount": ["1.5", "2", '"3.25"', "null", "99999.99", "1e1"],
    "name": ['"a"', '""', "null", '"\\u00e9\\n"', '"{}"', '"}{"'],
    "good": ["true", "false", "null"],
    "day": ['"2026-01-31"', "null", '"1969-12-31"'],
    "at": ['"2026-01-31T10:20:30Z"', '"2026-01-31 10:20:30.5"', "null"],
    "local": ['"2026-01-31T10:20:30"', "null"],
}
ANY = st.one_of(
    st.sampled_from([*NUMBERS, "null", "true", "false", "[]", "{}", '{"a": 1}', "[1]", "tru"]),
    st.sampled_from([f'"{text}"' for text in TEXTS]),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(json.dumps),
    st.decimals(-1000, 1000, places=3).map(str),
    st.decimals(-1000, 1000, places=2).map(lambda number: f'"{number}"'),
)
BROKEN = [
    b"",
    b"{",
    b"}",
    b"{}{}",
    b"[]",
    b"null",
    b" {}",
    b"{} ",
    b"{}\n{}",
    b"\xef\xbb\xbf{}",
    b'{"name": "\xff"}',
    b"{},",
    b"{}x",
]
BROKEN += [
    b'{"name": "}',
    b'{"}',
    b'{"id": {}',
    b'{"id": 1,}',
    b"{}//",
    b"{'id': 1}",
    b'{"name": "a\tb"}',
    b'{"id": 1\n}',
]
EXAMPLES = settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@st.composite
def objects(draw: st.DrawFn, names: Sequence[str], *, is_good: bool) -> bytes:
    fields = []
    for name in names:
        value = draw(st.sampled_from(GOOD[name]) if is_good or draw(st.integers(0, 5)) else ANY)
        if draw(st.integers(0, 9)):
            fields.append(f'"{name}": {value}')
    if not is_good and draw(st.integers(0, 9)) == 0:
        fields.append(draw(st.sampled_from(['"id": 1', '"ID": 1', '"other": 1', '"id": 2, "id": 3'])))
    space = draw(st.sampled_from([" ", "", "\r", "\t"]))
    return ("{" + f"{space},".join(fields) + space + "}").encode("utf-8", "surrogatepass")


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], list[bytes | None]]:
    names = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=4, unique=True))
    good = draw(st.lists(objects(names, is_good=True), min_size=1, max_size=12))
    values: list[bytes | None] = [*good]
    for _ in range(draw(st.integers(0, 2))):
        bad = st.one_of(
            objects(names, is_good=False), objects(names, is_good=False), st.sampled_from(BROKEN), st.none()
        )
        values.insert(draw(st.integers(0, len(values))), draw(bad))
    return names, values


def declare(names: Sequence[str], key: tuple[str, ...] = (), **defaults: str) -> TableDeclaration:
    schema = pa.schema([pa.field(name, KINDS[name], nullable=name not in key) for name in names])
    return TableDeclaration("orders", schema, key, "kafka", {}, "shop.sql, line 7", defaults)


def decode(declaration: TableDeclaration, values: list[bytes | None], *, is_whole: bool) -> Rows:
    records = PartitionRecords(0, [], list(range(10, 10 + len(values))), [None] * len(values), values)
    whole = JsonBatch(declaration) if is_whole else None
    envelope = EnvelopeRows(declaration, EnvelopeKind.APPEND, JsonFormat(declaration.schema), None, whole=whole)
    return envelope.rows(records, "orders-0")


def bits(rows: Rows) -> Any:
    """Distinguishes -0.0 from 0.0, and ignores a buffer's bytes under NULL."""
    sink = pa.BufferOutputStream()
    table = rows.rows.combine_chunks()
    made = pa.table(
        {name: pa.array(table.column(name).to_pylist(), table.column(name).type) for name in table.schema.names}
    )
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    return sink.getvalue().to_pybytes(), table.schema, rows.faults


@EXAMPLES
@given(case=cases(), is_keyed=st.booleans())
def test_both_ways_give_the_same_result(case: tuple[list[str], list[bytes | None]], is_keyed: bool) -> None:
    names, values = case
    declaration = declare(names, tuple(names[:1]) if is_keyed else ())
    assert bits(decode(declaration, values, is_whole=True)) == bits(decode(declaration, values, is_whole=False))


@pytest.mark.parametrize("name", KINDS)
def test_every_value_by_itself(name: str) -> None:
    """Each value in a table of its own column, between two valid records."""
    declaration = declare([name])
    quoted = [f'"{text}"' for text in TEXTS]
    for text in [*NUMBERS, *quoted, *GOOD[name], "true", "[]", "{}", "null"]:
        values: list[bytes | None] = [b"{}", f'{{"{name}": {text}}}'.encode(), b"{}"]
        assert bits(decode(declaration, values, is_whole=True)) == bits(decode(declaration, values, is_whole=False)), (
            text
        )
    for broken in BROKEN:
        several = [b"{}", broken, b"{}"]
        assert bits(decode(declaration, [*several], is_whole=True)) == bits(
            decode(declaration, [*several], is_whole=False)
        )


def test_the_usual_case_is_decoded_as_a_whole() -> None:
    """Otherwise only the time would show it."""
    whole = JsonBatch(declare(list(KINDS)))
    for at in range(7):
        fields = ", ".join(f'"{name}": {values[at % len(values)]}' for name, values in GOOD.items())
        assert whole.columns([f"{{{fields}}}".encode()] * 3) is not None, fields
    assert JsonBatch(declare(["id"], id="7")).columns([b"{}"]) is None, "a missing field is its default"
    assert whole.columns([]) is None
